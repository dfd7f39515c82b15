"""Planted truth: what a script waits and computes, by its own clocks, comes back in the right phase and size.

A sleep oversleeps and a computation is interrupted where others use the CPUs as well, so the dose asked for is not the
truth: the script notes how long each really took, how much of it its thread computed, and how much it queued for a CPU.
What the step queued outside of what was planted (``stray``) may be found in any phase.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fasttrain_doctor.breakdown import break_down
from fasttrain_doctor.evidence import Breakdown, Phase
from tests.watched import assert_sums, watch

SCRIPT = """
import json, os, sys, threading, time, torch
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.util import Finalize
from torch import nn
from torch.utils.data import DataLoader, Dataset

WHERE, WHAT, WORKERS, BATCH, STEPS = *sys.argv[1:3], *map(int, sys.argv[3:6])
DOSES = [float(ms) / 1e3 for ms in sys.argv[6:]]
WIDTH = int(os.environ.get("WIDTH", "16"))
dose, notes, borders = 0.0, [], []

def queued():
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as f: return int(f.read().split()[1]) / 1e9

def plant(where):
    if where != WHERE or not dose: return
    t0, q0, c0 = time.perf_counter(), queued(), time.thread_time()
    if WHAT == "wait": time.sleep(dose)
    elif WHAT == "pool": POOL.submit(burn, dose).result()
    else: burn(dose)
    c1, q1, t1 = time.thread_time(), queued(), time.perf_counter()
    notes.append([t0, t1 - t0, c1 - c0, q1 - q0])

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass

def leave(name):
    with open(name, "w") as f: json.dump({"notes": notes, "borders": borders}, f)

class Images(Dataset):
    def __len__(self): return BATCH * STEPS * len(DOSES)
    def __getitem__(self, i):
        global dose
        dose = DOSES[i // (BATCH * STEPS)]
        plant("item")
        return self.transform(torch.ones(16)), i % 4
    def transform(self, x): plant("transform"); return x

def collate(samples): plant("collate"); return torch.utils.data.default_collate(samples)

class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): plant("backward"); return g

class Net(nn.Module):
    def __init__(self): super().__init__(); self.a, self.b = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 4)
    def forward(self, x): plant("forward"); return self.b(Through.apply(self.a(x).relu()))

class Planted(torch.optim.SGD):
    def step(self, closure=None): plant("optimizer"); return super().step(closure)

class Line:
    def __str__(self): plant("log"); return "-"

def main():
    global dose
    torch.manual_seed(0)
    net = Net(); opt = Planted(net.parameters(), 0.1)
    if WHERE == "made":
        batches = ((torch.ones(BATCH, 16), torch.arange(BATCH) % 4) for _ in range(STEPS * len(DOSES)))
    else:
        batches = DataLoader(Images(), batch_size=BATCH, num_workers=WORKERS, collate_fn=collate,
            worker_init_fn=lambda i: Finalize(None, leave, (f"worker{i}.json",), exitpriority=1))
    for i, (x, y) in enumerate(batches):
        dose = DOSES[i // STEPS]
        borders.append([time.perf_counter(), queued()])
        plant("before"); plant("made")
        opt.zero_grad(); loss = nn.functional.cross_entropy(net(x), y); loss.backward(); opt.step()
        print(Line()); plant("after")
    leave("main.json")

if WHAT == "pool": POOL = ThreadPoolExecutor(1)
main()
"""

STEPS, DROPPED = 18, 5  # in each block; the first of a block were fetched ahead or are warm-up
DOSES = (0.0, 2.0, 6.0, 20.0)  # ms


@dataclass(frozen=True)
class Block:
    """A run of steps with one dose; seconds per step. ``wait``, ``busy`` and ``queue`` were planted."""

    breakdown: Breakdown
    wait: float
    busy: float
    queue: float
    stray: float

    @property
    def planted(self) -> float:
        return self.wait + self.busy + self.queue

    def phase(self, phase: Phase) -> float:
        seconds = self.breakdown.phases[phase]
        assert seconds is not None
        return seconds

    def close(self, base: Block, more: float = 0.0) -> float:
        """What may lie between the planted and the found: 5 % of the step, and what queued beside it."""
        return 0.05 * self.breakdown.mean + self.stray + base.stray + more


def blocks(
    folder: Path, where: str, what: str, workers: int = 0, batch: int = 1, env: Mapping[str, str] | None = None
) -> list[Block]:
    args = [where, what, str(workers), str(batch), str(STEPS), *map(str, DOSES)]
    seen = watch(SCRIPT, folder, args=args, env=env)
    left = {f.stem: json.loads(f.read_text()) for f in folder.glob("*.json")}
    notes = [n for name, made in left.items() for n in made["notes"]]
    borders = left["main"]["borders"]
    out = []
    for k in range(len(DOSES)):
        chosen = seen.watched.steps.steps[k * STEPS + DROPPED : (k + 1) * STEPS - 1]
        found = break_down(seen.watched.process, seen.watched.workers, replace(seen.watched.steps, steps=chosen), batch)
        assert found is not None
        assert_sums(found)
        chosen = chosen[found.warmup :]
        first, last, count = chosen[0].start / 1e9, chosen[-1].end / 1e9, len(chosen)
        inside = [n for n in notes if first <= n[0] < last]
        _, wall, cpu, queue = (sum(column) / count for column in zip(*inside, [0.0] * 4, strict=False))
        before = max(q for t, q in borders if t < first)
        after = next((q for t, q in borders if t >= last), borders[-1][1])
        stray = max(0.0, (after - before) / count - (0.0 if workers else queue))
        out.append(Block(found, wall - cpu - queue, cpu, queue, stray))
    return out


@pytest.mark.parametrize("what", ["wait", "burn"])
@pytest.mark.parametrize(
    ("where", "phase"), [("forward", Phase.FORWARD), ("backward", Phase.BACKWARD), ("optimizer", Phase.OPTIMIZER)]
)
def test_a_delay_in_computing_is_that_phases(where: str, phase: Phase, what: str, tmp_path: Path) -> None:
    base, *doses = blocks(tmp_path, where, what)
    for block in doses:
        assert block.phase(phase) - base.phase(phase) == pytest.approx(block.planted, abs=block.close(base))


@pytest.mark.parametrize(("where", "part"), [("after", "python"), ("before", "python"), ("log", "logging")])
def test_a_pause_of_the_loop_is_other(where: str, part: str, tmp_path: Path) -> None:
    base, *doses = blocks(tmp_path, where, "wait")
    for block in doses:
        found = (block.breakdown.other[part] or 0.0) - (base.breakdown.other[part] or 0.0)
        assert found == pytest.approx(block.planted, abs=block.close(base))


def assert_split(base: Block, block: Block, what: str) -> None:
    io = block.wait if what == "wait" else 0.0
    assert block.phase(Phase.IO) - base.phase(Phase.IO) == pytest.approx(io, abs=block.close(base))
    assert block.breakdown.data is not None
    assert base.breakdown.data is not None
    data = block.breakdown.data - base.breakdown.data
    assert data == pytest.approx(block.planted, abs=block.close(base))


@pytest.mark.parametrize("what", ["wait", "burn"])
@pytest.mark.parametrize("where", ["item", "transform", "collate"])
def test_a_delay_in_the_main_process_is_io_or_preparation(where: str, what: str, tmp_path: Path) -> None:
    base, *doses = blocks(tmp_path, where, what)
    for block in doses:
        assert_split(base, block, what)


@pytest.mark.parametrize("what", ["wait", "burn"])
def test_a_delay_in_a_batch_made_in_the_loop_is_split_as_a_fetch_is(what: str, tmp_path: Path) -> None:
    base, *doses = blocks(tmp_path, "made", what)
    for block in doses:
        assert block.breakdown.inferred == ("io", "prepare")
        assert_split(base, block, what)


@pytest.mark.parametrize("what", ["wait", "burn"])
@pytest.mark.parametrize("where", ["item", "collate"])
def test_a_delay_in_workers_is_io_or_preparation(where: str, what: str, tmp_path: Path) -> None:
    base, *doses = blocks(tmp_path, where, what, workers=2, batch=2 if where == "item" else 1)
    for block in doses:
        share = block.wait / block.planted if what == "wait" else 0.0
        assert block.breakdown.data is not None
        assert block.phase(Phase.IO) == pytest.approx(share * block.breakdown.data, abs=block.close(base))


def test_a_decode_in_a_pool_is_preparation(tmp_path: Path) -> None:
    base, *doses = blocks(tmp_path, "item", "pool")
    for block in doses:
        assert_split(base, block, "pool")


def test_a_wait_while_the_models_threads_spin_is_io(tmp_path: Path) -> None:
    env = {"OMP_NUM_THREADS": "2", "WIDTH": "100000"}
    base, *doses = blocks(tmp_path, "item", "wait", env=env)
    for block in doses:
        assert_split(base, block, "wait")
