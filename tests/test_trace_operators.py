"""Operators by their own time, per phase and step; and a trace that torch's profiler writes on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.trace import device_metrics, operators, read
from tests.trace_samples import ENGINE, Sample, small

torch = pytest.importorskip("torch")


def found(made: Sample, folder: Path) -> list[tuple[Phase, str, float, float, str]]:
    return [
        (o.phase, o.name, round(o.seconds * 1e6, 3), o.calls, o.device) for o in operators(read(made.write(folder)))
    ]


def test_an_operators_own_time_leaves_out_what_it_called(tmp_path: Path) -> None:
    made = Sample()
    made.host("aten::linear", 0, 100)
    made.host("aten::addmm", 10, 80)
    made.host("aten::addmm", 85, 95)
    made.host("aten::copy_", 20, 30)
    made.host("aten::linear", 0, 40, tid=ENGINE)  # another thread: not inside the first
    assert found(made, tmp_path) == [
        (Phase.FORWARD, "aten::addmm", 70, 2, "cpu"),
        (Phase.FORWARD, "aten::linear", 60, 2, "cpu"),
        (Phase.FORWARD, "aten::copy_", 10, 1, "cpu"),
    ]


def test_phases_come_from_the_range_round_an_operator_and_steps_divide(tmp_path: Path) -> None:
    made = Sample()
    for n in range(2):
        t = n * 1000.0
        made.step(n, t, t + 900)
        made.host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t, t + 100, "user_annotation")
        made.host("aten::stack", t + 10, t + 60)
        made.host("aten::addmm", t + 200, t + 300)
        made.host("autograd::engine::evaluate_function: AddmmBackward0", t + 400, t + 500)
        made.host("aten::mm", t + 410, t + 450)
        made.host("Optimizer.step#SGD.step", t + 600, t + 700, "user_annotation")
        made.host("aten::add_", t + 610, t + 640)
        made.host("Optimizer.zero_grad#SGD.zero_grad", t + 750, t + 800, "user_annotation")
        made.host("aten::zero_", t + 755, t + 775)
    made.host("aten::outside", 950, 990)  # between steps: evaluation, say
    made.step(2, 2000, 2001)  # opened and closed at the end of the recording
    assert found(made, tmp_path) == [
        (Phase.PREPARE, "aten::stack", 50, 1, "cpu"),
        (Phase.FORWARD, "aten::addmm", 100, 1, "cpu"),
        (Phase.BACKWARD, "aten::mm", 40, 1, "cpu"),
        (Phase.OPTIMIZER, "aten::add_", 30, 1, "cpu"),
        (Phase.OPTIMIZER, "aten::zero_", 20, 1, "cpu"),
    ]


def test_children_that_end_late_by_rounding_still_belong_to_their_parent(tmp_path: Path) -> None:
    made = Sample()
    made.host("aten::linear", 0, 10)
    made.host("aten::addmm", 4, 11)
    made.host("aten::relu", 11, 15)
    assert {name: time for _, name, time, *_ in found(made, tmp_path)} == {
        "aten::linear": 3,
        "aten::addmm": 7,
        "aten::relu": 4,
    }


def test_device_time_goes_to_the_operator_that_launched_it(tmp_path: Path) -> None:
    assert found(small(), tmp_path) == [
        (Phase.FORWARD, "aten::mm", 100, 1, "cuda"),
        (Phase.BACKWARD, "aten::mm", 200, 1, "cuda"),
    ]


def test_copies_and_communication_are_not_the_launching_phases(tmp_path: Path) -> None:
    made = Sample()
    made.host("aten::copy_", 0, 20)
    made.work("Memcpy HtoD (Pageable -> Device)", 10, 40, call=5, cat="gpu_memcpy", bytes=64)
    made.host("nccl:all_reduce", 50, 60, "user_annotation")
    made.work("ncclDevKernel_AllReduce_Sum_f32", 60, 90, call=55)
    made.work("mystery", 95, 99)
    assert found(made, tmp_path) == [
        (Phase.H2D, "aten::copy_", 30, 1, "cuda"),
        (Phase.OTHER, "ncclDevKernel_AllReduce_Sum_f32", 30, 1, "cuda"),
        (Phase.OTHER, "mystery", 4, 1, "cuda"),
    ]


def test_only_the_top_of_each_phase_is_kept(tmp_path: Path) -> None:
    made = Sample()
    for n in range(8):
        made.host(f"aten::op{n}", n * 100, n * 100 + n + 1)
    assert [o.name for o in operators(read(made.write(tmp_path)), top=3)] == ["aten::op7", "aten::op6", "aten::op5"]


def test_a_training_profiled_here_comes_out_by_phase(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(128, 64), torch.randint(10, (128,)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for n, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=32)):
            with torch.profiler.record_function(f"ProfilerStep#{n}"):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = read(path)
    top = operators(trace)
    named = {(o.phase, o.name): o for o in top}
    assert device_metrics(trace) is None
    assert trace.notes == ()
    assert named[Phase.FORWARD, "aten::addmm"].calls == 2
    assert named[Phase.BACKWARD, "aten::mm"].calls >= 3
    assert any(phase is Phase.OPTIMIZER for phase, _ in named)
    assert all(o.device == "cpu" and 0 < o.seconds < 10 for o in top)
    assert not any("#" in o.name or "evaluate_function" in o.name for o in top)
