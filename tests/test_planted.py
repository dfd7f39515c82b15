"""Planted truth in two loops that ``test_truth`` has not: batches made in the loop, and a model whose threads spin.

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
from torch import nn
from torch.utils.data import DataLoader, Dataset

WHERE, WHAT, STEPS = *sys.argv[1:3], int(sys.argv[3])
DOSES = [float(ms) / 1e3 for ms in sys.argv[4:]]
WIDTH = int(os.environ.get("WIDTH", "16"))
dose, notes, borders = 0.0, [], []

def queued():
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as f: return int(f.read().split()[1]) / 1e9

def plant(where):
    if where != WHERE or not dose: return
    t0, q0, c0 = time.perf_counter(), queued(), time.thread_time()
    if WHAT == "wait": time.sleep(dose)
    else:
        while time.thread_time() < c0 + dose: pass
    c1, q1, t1 = time.thread_time(), queued(), time.perf_counter()
    notes.append([t0, t1 - t0, c1 - c0, q1 - q0])

class Images(Dataset):
    def __len__(self): return STEPS * len(DOSES)
    def __getitem__(self, i):
        global dose
        dose = DOSES[i // STEPS]
        plant("item")
        return torch.ones(16), i % 4

net = nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4)); opt = torch.optim.SGD(net.parameters(), 0.1)
made = ((torch.ones(1, 16), torch.arange(1)) for _ in range(STEPS * len(DOSES)))
for i, (x, y) in enumerate(made if WHERE == "made" else DataLoader(Images())):
    dose = DOSES[i // STEPS]
    borders.append([time.perf_counter(), queued()])
    plant("made")
    opt.zero_grad(); loss = nn.functional.cross_entropy(net(x), y); loss.backward(); opt.step()
with open("main.json", "w") as f: json.dump({"notes": notes, "borders": borders}, f)
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

    def close(self, base: Block) -> float:
        """What may lie between the planted and the found: 5 % of the step, and what queued beside it."""
        return 0.05 * self.breakdown.mean + self.stray + base.stray


def blocks(folder: Path, where: str, what: str, env: Mapping[str, str] | None = None) -> list[Block]:
    args = [where, what, str(STEPS), *map(str, DOSES)]
    seen = watch(SCRIPT, folder, args=args, env=env)
    left = json.loads((folder / "main.json").read_text())
    notes, borders = left["notes"], left["borders"]
    out = []
    for k in range(len(DOSES)):
        chosen = seen.watched.steps.steps[k * STEPS + DROPPED : (k + 1) * STEPS - 1]
        found = break_down(seen.watched.process, seen.watched.workers, replace(seen.watched.steps, steps=chosen), 1)
        assert found is not None
        assert_sums(found)
        chosen = chosen[found.warmup :]
        first, last, count = chosen[0].start / 1e9, chosen[-1].end / 1e9, len(chosen)
        inside = [n for n in notes if first <= n[0] < last]
        _, wall, cpu, queue = (sum(column) / count for column in zip(*inside, [0.0] * 4, strict=False))
        before = max(q for t, q in borders if t < first)
        after = next((q for t, q in borders if t >= last), borders[-1][1])
        stray = max(0.0, (after - before) / count - queue)
        out.append(Block(found, wall - cpu - queue, cpu, queue, stray))
    return out


def assert_split(base: Block, block: Block, what: str) -> None:
    io = block.wait if what == "wait" else 0.0
    assert block.phase(Phase.IO) - base.phase(Phase.IO) == pytest.approx(io, abs=block.close(base))
    assert block.breakdown.data is not None
    assert base.breakdown.data is not None
    data = block.breakdown.data - base.breakdown.data
    assert data == pytest.approx(block.planted, abs=block.close(base))


@pytest.mark.parametrize("what", ["wait", "burn"])
def test_a_delay_in_a_batch_made_in_the_loop_is_split_as_a_fetch_is(what: str, tmp_path: Path) -> None:
    base, *doses = blocks(tmp_path, "made", what)
    for block in doses:
        assert block.breakdown.inferred == ("io", "prepare")
        assert_split(base, block, what)


def test_a_wait_while_the_models_threads_spin_is_io(tmp_path: Path) -> None:
    env = {"OMP_NUM_THREADS": "2", "WIDTH": "100000"}
    base, *doses = blocks(tmp_path, "item", "wait", env=env)
    for block in doses:
        assert_split(base, block, "wait")
