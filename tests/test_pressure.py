"""What the machine's samples say of the window, and when a growth is clear enough to be told."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from fasttrain_doctor.copies import copies_of
from fasttrain_doctor.evidence import Copies
from fasttrain_doctor.nvml import GpuSample
from fasttrain_doctor.pressure import pressure_of
from fasttrain_doctor.probe import device, spans, state
from fasttrain_doctor.probe.loop import Loop
from fasttrain_doctor.probe.recorder import Recorder
from fasttrain_doctor.recorded import read_probe
from fasttrain_doctor.records import Kind
from fasttrain_doctor.sampling import Sample
from fasttrain_doctor.steps import Step, Steps
from fasttrain_doctor.trend import growth, steady_slope
from tests.records_made import MS, process, record

HALF = 500_000_000


def noise(count: int, sd: float = 0.05, seed: int = 3) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(0, sd) for _ in range(count)]


def test_steps_that_grow_are_told_by_how_much():
    grown = [1 + i / 60 + e for i, e in enumerate(noise(60))]
    assert growth(grown) == pytest.approx(0.66, abs=0.1)
    assert growth(grown[::-1]) == pytest.approx(-0.66, abs=0.1)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param([1.0] * 60, id="constant"),
        pytest.param([1 + i / 1000 for i in range(60)], id="a trace of growth"),
        pytest.param([1 + i for i in range(6)], id="too few"),
        pytest.param([1.0] * 40 + [2.0] * 20, id="another level"),
        pytest.param([1.0] * 57 + [9.0] * 3, id="a slow end"),
        pytest.param([1.0, 1.0, 1.0, 4.0] * 15, id="a period"),
        pytest.param([], id="none"),
    ],
)
def test_what_does_not_grow_steadily_has_no_trend(seconds):
    assert growth(seconds) is None


def test_noise_alone_hardly_ever_has_a_trend():
    assert sum(growth([1 + e for e in noise(60, 0.3, seed)]) is not None for seed in range(200)) <= 2


def test_a_long_series_is_thinned_and_its_slope_kept():
    assert steady_slope(range(5000), [2.0 * i for i in range(5000)]) == pytest.approx(2.0)


def samples(count: int = 21, **fields: object) -> list[Sample]:
    return [Sample(t=i * HALF, **fields) for i in range(count)]


def test_pressure_is_that_of_the_window():
    quiet = samples(5, waiting_cpu=0.0, disk_read=0.0, tree_cpu=1.0)
    busy = [Sample(t=(5 + i) * HALF, waiting_cpu=0.5, disk_read=100.0, tree_cpu=2.0) for i in range(5)]
    found = pressure_of(quiet + busy, 5 * HALF - HALF // 2, 9 * HALF)
    assert found is not None
    assert (found.cpu, found.disk_read, found.tree_cpu, found.throttled, found.gpu_busy) == (
        0.5,
        100.0,
        2.0,
        None,
        None,
    )
    assert pressure_of(quiet, 100 * HALF, 200 * HALF) is None
    assert pressure_of([], 0, 1) is None


def test_a_window_shorter_than_the_time_between_samples_has_the_one_that_covers_it():
    around = [Sample(t=i * HALF, waiting_io=i / 10) for i in range(4)]
    found = pressure_of(around, HALF + HALF // 4, HALF + HALF // 2)
    assert found is not None
    assert found.io == pytest.approx(0.2)


def test_the_control_groups_own_pressure_counts_where_there_is_one():
    found = pressure_of(samples(4, waiting_cpu=0.9, group_waiting_cpu=0.1), 0, 4 * HALF)
    assert found is not None
    assert found.cpu == pytest.approx(0.1)


def test_a_share_stays_one():
    found = pressure_of(samples(4, waiting_cpu=1.0002), 0, 4 * HALF)
    assert found is not None
    assert found.cpu == 1.0


def test_memory_grows_only_where_it_does_so_steadily_and_by_something():
    size = 1 << 30
    grown = [replace(s, tree_memory=size + i * (50 << 20)) for i, s in enumerate(samples())]
    found = pressure_of(grown, 0, 21 * HALF)
    assert found is not None
    assert found.growth == pytest.approx(2 * (50 << 20))
    for sizes in ([size] * 21, [size + i * 4096 for i in range(21)], [size] * 11 + [2 * size] * 10):
        flat = [replace(s, tree_memory=n) for s, n in zip(samples(), sizes, strict=True)]
        assert pressure_of(flat, 0, 21 * HALF).growth is None


def test_only_what_slows_a_gpu_in_use_is_named():
    used = GpuSample(busy=0.9, slowed_by=("power-cap",))
    cool = GpuSample(busy=0.9, slowed_by=("application-clocks",))
    idle = GpuSample(busy=0.0, slowed_by=("idle", "thermal-software"))
    found = pressure_of([Sample(t=i * HALF, gpus=(idle, used if i % 2 else cool)) for i in range(9)], 0, 9 * HALF)
    assert found is not None
    assert found.gpu_slowed_by == (("power-cap", 0.5),)
    assert found.gpu_busy == pytest.approx(0.9)


class Tensor:
    """What the hook asks of a tensor of the host's."""

    is_cuda = False

    def is_pinned(self) -> bool:
        return True

    def numel(self) -> int:
        return 10

    def element_size(self) -> int:
        return 4


def test_the_hook_on_copies_notes_where_one_that_took_long_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "recorder", Recorder(str(tmp_path)))
    monkeypatch.setattr(state, "loop", Loop(None))
    monkeypatch.setattr(spans, "_places", {})

    def cuda(tensor: Tensor, **kwargs: bool) -> Tensor:
        time.sleep(0.001)
        return tensor

    hooked = device._copy(cuda)
    hooked(Tensor(), non_blocking=True)
    (seen,) = read_probe(tmp_path).processes
    (copy,) = seen.of(Kind.COPY)
    (place,) = seen.facts_of("place")
    assert (copy.flag, copy.a, copy.b) == (3, 40, place["id"])
    assert place["file"] == __file__


def test_copies_that_the_host_waits_for_are_told_apart_with_their_place():
    steps = [Step(0, 10 * MS, 0, 1, 1), Step(10 * MS, 20 * MS, 0, 1, 1)]
    place = ({"fact": "place", "id": 1, "file": "train.py", "line": 7},)
    copies = [
        record(Kind.COPY, 1, 3, flag=0, a=100, b=1),
        record(Kind.COPY, 4, 5, flag=1, a=10),
        record(Kind.COPY, 6, 9, flag=3, a=1000),
        record(Kind.COPY, 30, 39, flag=0, a=1),
    ]
    found = copies_of(replace(process(copies), facts=place), Steps(tuple(steps), "loader", 1, (1,), None), steps)
    assert found == Copies(pageable=0.001, blocking=0.0005, pageable_bytes=50, blocking_bytes=5, place="train.py:7")
    assert copies_of(process([]), Steps(tuple(steps), "loader", 1, (1,), None), steps) is None
