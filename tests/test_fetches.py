"""What the records of fetches say of slow samples, collation and the workers' time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.evidence import TAIL, Fetches
from fasttrain_doctor.fetches import fetches_of
from fasttrain_doctor.probe.items import Items
from fasttrain_doctor.recorded import Process
from fasttrain_doctor.records import Kind, Record
from fasttrain_doctor.steps import Step, Steps
from tests.records_made import MS, process, record
from tests.watched import watch

COLLATE = 0.25  # ms
FAR = Step(0, 10**15, 0, 1, 1)
OF_LOADER_1 = Steps((FAR,), "loader", 1, (1,), None)


def fetched(batches: Sequence[Sequence[float]], kind: Kind = Kind.NEXT) -> list[Record]:
    """The records of fetches in the main process whose samples took so many ms, indexed in order."""
    out, now, index = [], 1.0, 0
    for batch in batches:
        items = Items(object(), range(index, index + len(batch)), False, round(now * MS))
        end = now
        for ms in batch:
            end += ms
            items.marks.append(round(end * MS))
        slowest, slow, a, b, c = items.facts()
        out.append(record(kind, now, end + COLLATE, a=1))
        out.append(record(Kind.FETCH, now, end + COLLATE, c=len(batch)))
        out.append(record(Kind.ITEMS, now, end, obj=slowest, flag=slow, a=a, b=b, c=c))
        now, index = end + 1.0, index + len(batch)
    return out


def found(records: Sequence[Record], workers: Sequence[Process] = (), step: Step = FAR) -> Fetches:
    out = fetches_of(process(records), workers, OF_LOADER_1, [step])
    assert out is not None
    return out


def in_batches(times: Sequence[float], size: int) -> list[Sequence[float]]:
    return [times[i : i + size] for i in range(0, len(times), size)]


@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=60), st.integers(1, 20))
def test_the_sum_and_the_slowest_are_exact_whatever_the_batches(times: list[float], size: int) -> None:
    fetches = found(fetched(in_batches(times, size)))
    count = len(times)
    assert fetches.samples == count
    assert fetches.item == pytest.approx(sum(times) / count / 1e3, rel=1e-3)
    assert fetches.collate == pytest.approx(COLLATE * len(in_batches(times, size)) / count / 1e3, rel=1e-3)
    assert fetches.slowest == pytest.approx(max(times) / 1e3, abs=2e-9)
    assert fetches.slowest_index is not None
    assert times[fetches.slowest_index] == pytest.approx(max(times), abs=2e-6)
    assert 0 <= (fetches.tail or 0) <= 1


@given(st.integers(40, 120).flatmap(lambda n: st.permutations(range(n))), st.sampled_from([1, 2, 3, 4, 7, 16, 64]))
def test_slow_samples_are_counted_wherever_they_fall(order: list[int], size: int) -> None:
    """One in eight takes 20 ms instead of 1: the tail is what they take beyond 3 ms, in batches of any size."""
    times = [20.0 if i % 8 == 0 else 1.0 for i in order]
    fetches = found(fetched(in_batches(times, size)))
    slow = times.count(20.0)
    assert fetches.median == pytest.approx(1e-3, rel=1e-3)
    assert fetches.slow_share == pytest.approx(slow / len(times))
    assert fetches.tail == pytest.approx(slow * (20 - TAIL) / sum(times), rel=1e-3)


@given(st.lists(st.floats(1.0, 2.0), min_size=32, max_size=200), st.sampled_from([1, 2, 3, 5, 16, 64]))
def test_samples_that_vary_a_little_have_no_tail(times: list[float], size: int) -> None:
    fetches = found(fetched(in_batches(times, size)))
    assert (fetches.tail, fetches.slow_share) == (0, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16, 256, 1024])
def test_one_in_sixteen_is_seen_with_any_batch_size(size: int) -> None:
    times = [1.0 + (i % 7) / 10 + (30 if i % 16 == 5 else 0) for i in range(2048)]
    fetches = found(fetched(in_batches(times, size)))
    median = sorted(times)[1023]
    assert fetches.median == pytest.approx(median / 1e3, rel=0.25)
    assert fetches.slow_share == pytest.approx(1 / 16, rel=0.02)
    assert fetches.tail == pytest.approx(sum(max(0, t - TAIL * median) for t in times) / sum(times), abs=0.03)


def test_samples_that_come_all_at_once_have_no_tail_to_tell_of() -> None:
    records = [record(Kind.NEXT, 1, 10, a=1), record(Kind.FETCH, 1, 10, c=4)]
    fetches = found([*records, record(Kind.ITEMS, 1, 9, a=-1, b=-1, c=-1)])
    assert fetches.item == pytest.approx(2e-3)
    assert fetches.collate == pytest.approx(0.25e-3)
    assert (fetches.median, fetches.slowest, fetches.tail, fetches.slow_share) == (None,) * 4


def test_other_loaders_fetches_and_those_outside_the_window_do_not_count() -> None:
    mine = fetched([[1, 1], [2, 2]])
    others = [record(Kind.NEXT, 50, 60, a=2), record(Kind.FETCH, 51, 59, c=8), record(Kind.ITEMS, 51, 58, a=1, c=1)]
    assert found([*mine, *others]).samples == 4
    assert found(mine, step=Step(0, 4 * MS, 0, 1, 1)).samples == 2
    assert fetches_of(process(others), [], OF_LOADER_1, [FAR]) is None
    assert fetches_of(process(mine), [], OF_LOADER_1, []) is None


def test_workers_are_busy_idle_or_sending() -> None:
    """Of each 10 ms a worker fetches 6 and is blocked for 3; its thread for sending computes 1 ms a batch."""
    records = []
    for t in range(0, 100, 10):
        records.append(record(Kind.FETCH, t, t + 6, flag=1, c=2))
        records.append(record(Kind.ITEMS, t, t + 5, a=3 * MS, c=2 * MS))
        records.append(record(Kind.BETWEEN, t + 6, t + 10, cpu0=0, cpu1=MS // 2, a=MS // 2, b=MS))
    served = record(Kind.ITERATOR, 0, 1, obj=7, a=1, b=1)
    asked = [record(Kind.NEXT, t, t + 9, obj=7, a=1, cpu0=0, cpu1=2 * MS) for t in range(5, 95, 10)]
    worker = process(records, pid=2, parent=1, worker=0)
    window = [Step(t * MS, (t + 10) * MS, 0, 1, 1) for t in range(5, 95, 10)]
    fetches = fetches_of(process([served, *asked]), [worker], OF_LOADER_1, window)
    assert fetches is not None
    assert fetches.busy == pytest.approx(0.6)
    assert fetches.idle == pytest.approx(0.3)
    assert fetches.unpack == pytest.approx(2e-3)
    assert fetches.pack == pytest.approx(1e-3, rel=0.15)
    assert fetches.item == pytest.approx(2.5e-3)


def test_what_lies_between_epochs_is_no_workers_idling() -> None:
    records = [record(Kind.FETCH, 0, 10, flag=1, c=1), record(Kind.FETCH, 100, 110, flag=1, c=1)]
    records += [record(Kind.ITEMS, r.t0 / MS, r.t1 / MS, a=MS, c=MS) for r in records]
    between = record(Kind.BETWEEN, 10, 100, cpu0=0, cpu1=0, a=0)
    worker = process([*records, between], pid=2, parent=1, worker=0)
    steps = [Step(0, 10 * MS, 0, 1, 1), Step(100 * MS, 110 * MS, 0, 1, 1)]
    fetches = fetches_of(process([]), [worker], OF_LOADER_1, steps)
    assert fetches is not None
    assert (fetches.busy, fetches.idle) == (None, None)


# What each sample took by the script's own clock comes back; the data set's code finds all as it is without us.
SCRIPT = """
import json, time, torch, traceback
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

class Slow(Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i):
        began = time.perf_counter()
        info = get_worker_info()
        assert info is None or info.dataset is self
        time.sleep(0.03 if i % 16 == 5 else 0.0015)
        return torch.ones(8), i, time.perf_counter() - began

class Stream(IterableDataset):
    def __iter__(self): return iter(range(10))

class Odd(Slow):
    asked = []
    def __bool__(self): return False
    def __getattr__(self, name):
        self.asked.append(name)
        raise AttributeError(name)

class Together(Slow):
    def __getitems__(self, indices): return [self[i] for i in indices]

class Never(Slow):
    __getitems__ = None

def train(loader):
    notes, began = [], time.perf_counter_ns()
    for x, i, took in loader:
        notes.append([i.tolist(), took.tolist()])
        opt.zero_grad(); net(x).sum().backward(); opt.step()
    return began, time.perf_counter_ns(), notes

SHAPES = (64, 1, 0), (128, 8, 0), (128, 8, 2), (64, 1, 2)  # samples, batch, workers
net = nn.Linear(8, 1); opt = torch.optim.SGD(net.parameters(), 0.0)
notes = [train(DataLoader(Slow(n), batch, num_workers=w)) for n, batch, w in SHAPES]

seen = {}
for cls in (Odd, Together, Never):
    iterator = iter(DataLoader(cls(8), 4))
    Odd.asked.clear()
    seen[cls.__name__] = [i.tolist() for _, i, _ in iterator]
    fetcher = iterator._dataset_fetcher
    assert type(fetcher.dataset) is cls
    seen.setdefault("asked", sorted(Odd.asked))
class Broken(Slow):
    def __getitem__(self, i): raise KeyError(i)

frames = []
for data in (Broken(4), Subset(Broken(4), [1, 2])):
    try: next(iter(DataLoader(data, 2)))
    except KeyError as error: frames += [f.filename for f in traceback.extract_tb(error.__traceback__)]
seen["frames of ours"] = [name for name in frames if "doctor" in name]
inner = Subset(Slow(16), [3, 5, 7, 9]); outer = Subset(inner, [2, 0, 1])
seen["subset"] = [i.tolist() for _, i, _ in DataLoader(outer, 2)]
seen["keys"] = [i for _, i, _ in DataLoader(Slow(4), batch_size=None, sampler=[2, 1])]
stream = iter(DataLoader(Stream(), 4))
seen["stream"] = [x.tolist() for x in stream]
assert type(stream._dataset_fetcher.dataset_iter) is type(iter(range(1)))
print(json.dumps([notes, seen]))
"""


@pytest.mark.alone
def test_planted_slow_samples_come_back_from_both_kinds_of_loader(tmp_path: Path) -> None:
    watched = watch(SCRIPT, tmp_path)
    notes, seen = json.loads(watched.stdout)
    assert watched.code == 0, watched.stderr
    assert watched.recorded.degraded() == []
    steps = watched.watched.steps.steps
    for began, ended, batches in notes:
        window = [s for s in steps if s.start >= began and s.end <= ended]
        assert len(window) >= len(batches) - 1  # the last of an epoch may stay open
        truth = [(t, i) for indices, took in batches[: len(window)] for i, t in zip(indices, took, strict=True)]
        times = sorted(t for t, _ in truth)
        fetches = fetches_of(watched.watched.process, watched.watched.workers, watched.watched.steps, window)
        assert fetches is not None
        limit = TAIL * times[len(times) // 2]
        # Where the machine is busy a sample may be put off its CPU past its own clocks: ours see no less than those.
        mean = sum(times) / len(times)
        assert fetches.item is not None
        assert 0.98 * mean < fetches.item < 1.3 * mean
        assert fetches.slowest is not None
        assert fetches.slowest > 0.98 * times[-1]
        assert fetches.slow_share == pytest.approx(sum(t > limit for t in times) / len(times), abs=0.1)
        assert fetches.tail == pytest.approx(sum(max(0.0, t - limit) for t in times) / sum(times), abs=0.06)
        assert fetches.slowest_index is not None
        took = {i: t for t, i in truth}
        assert took.get(fetches.slowest_index, 0.0) < fetches.slowest
        assert fetches.collate is not None
        assert fetches.collate < 0.2 * fetches.item
    assert seen == {
        "Odd": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "Together": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "Never": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "asked": ["__getitems__", "__getitems__"],
        "frames of ours": [],
        "subset": [[7, 3], [5]],
        "keys": [2, 1],
        "stream": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]],
    }
