"""Loops that run in other processes than the script's first, and loops that are compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fasttrain_doctor.breakdown import break_down
from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.steps import find_steps
from tests.conftest import environment
from tests.watched import HEAD, assert_sums, watch

TRAINS = """
class Late(Points):
    def __getitem__(self, i): time.sleep(0.005); return super().__getitem__(i)
def train(net, late=False, steps=12):
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader((Late if late else Points)(4 * steps), batch_size=4):
        opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
"""

RANKS = """
import os
import torch.distributed as dist
def rank_trains(rank, world, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    train(nn.parallel.DistributedDataParallel(Net()), late=rank == 1)
    dist.destroy_process_group()
if __name__ == "__main__":
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)); port = str(s.getsockname()[1])
    torch.multiprocessing.spawn(rank_trains, args=(2, port), nprocs=2)
"""

LAUNCHED = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(Points(48), batch_size=4):
    if dist.get_rank() == 0: time.sleep(0.02)
    opt.zero_grad(); loss_of(net(x), y).backward()
    for p in net.parameters(): dist.all_reduce(p.grad)
    opt.step()
dist.destroy_process_group()
"""

FORKED = """
def train_forked(net):
    torch.set_num_threads(1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(Points(48), batch_size=4, num_workers=1):
        opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
net = Net(); net.share_memory()
forked = [torch.multiprocessing.get_context("fork").Process(target=train_forked, args=(net,)) for _ in range(2)]
"""
TOGETHER = """
for p in forked: p.start()
for p in forked: p.join()
"""
IN_TURN = """
for p in forked: p.start(); p.join()
"""


def test_ranks_that_the_script_spawns_are_recorded_and_the_late_one_is_summarised(tmp_path: Path) -> None:
    """Gradients are exchanged within the backward: the rank that waits for the other one waits there."""
    seen = watch(HEAD + TRAINS + RANKS, tmp_path)
    ranks = seen.watched.ranks
    assert (ranks.world, ranks.reported) == (2, 2)
    assert sorted(ranks.step) == ["0", "1"]
    assert [p.rank for p in seen.recorded.trainers] == [0, 1]
    assert ranks.straggler == "1"
    assert seen.watched.process.rank == 1
    assert seen.phase(Phase.IO) > 0.015  # four samples of 5 ms
    assert seen.steps == 12
    assert_sums(seen.breakdown)


def test_ranks_of_torchrun_are_recorded_and_the_others_wait_is_a_collectives(tmp_path: Path) -> None:
    launcher = ["--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    seen = watch(HEAD + LAUNCHED, tmp_path, launcher=launcher)
    ranks = seen.watched.ranks
    assert (ranks.world, ranks.reported) == (2, 2)
    assert [p.rank for p in seen.recorded.trainers] == [0, 1]
    assert ranks.straggler == "0"
    assert seen.steps == 12
    assert_sums(seen.breakdown)
    waiting = next(p for p in seen.recorded.trainers if p.rank == 1)
    waited = break_down(waiting, [], find_steps(waiting), 4)
    assert waited is not None
    assert (waited.other["collective"] or 0.0) > 0.015
    assert_sums(waited)


@pytest.mark.parametrize("started", [TOGETHER, IN_TURN], ids=["together", "in turn"])
def test_trainers_that_the_script_forks_are_followed(started: str, tmp_path: Path) -> None:
    """As Hogwild's are: the first process trains nothing, and workers of a trainer's loader are no trainers.

    One is driven; one that begins when that has ended finds nobody to wait for.
    """
    seen = watch(HEAD + FORKED + started, tmp_path)
    assert len(seen.recorded.trainers) == 2
    assert seen.watched.ranks.reported == 2
    assert seen.steps == 12
    assert len(seen.watched.workers) == 1
    assert seen.recorded.degraded() == []
    assert seen.code == 0


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_are_known_as_the_loaders(method: str, tmp_path: Path) -> None:
    body = f"""
def main():
    net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(Points(), batch_size=4, num_workers=1, multiprocessing_context="{method}")
    for x, y in loader:
        opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
if __name__ == "__main__": main()
"""
    seen = watch(HEAD + body, tmp_path)
    assert len(seen.watched.workers) == 1
    assert seen.watched.workers[0].worker == 0
    assert seen.steps == 20
    assert seen.breakdown.hidden["prepare"] is not None


COMPILED = """
import json
import torch._dynamo
from torch._dynamo.utils import counters
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
{compile}
for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
    opt.zero_grad(); loss_of(run(x), y).backward(); opt.step()
    if i % 10 == 9:
        run.eval() if isinstance(run, nn.Module) else None
        with torch.no_grad(): run(x)
        run.train() if isinstance(run, nn.Module) else None
print(json.dumps({{"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values()),
                  "recompiles": sum(counters["recompiles"].values())}}))
"""

WAYS = {
    "model": 'run = torch.compile(net, backend="eager")',
    "method": 'net.compile(backend="eager"); run = net',
    "function": 'run = torch.compile(lambda x: net(x) * 2, backend="eager")',
}


@pytest.mark.parametrize("way", WAYS)
def test_compiled_code_is_compiled_as_it_would_be(way: str, tmp_path: Path) -> None:
    script = HEAD + COMPILED.format(compile=WAYS[way])
    seen = watch(script, tmp_path)
    alone = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert json.loads(seen.stdout) == json.loads(alone.stdout)
    assert seen.steps == 20
    assert seen.recorded.degraded() == []
