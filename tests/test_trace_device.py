"""What a device's time went to, on traces small enough to work out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fasttrain_doctor.trace import Timeline, device_metrics, read, timeline
from tests.trace_samples import ENGINE, Sample, small


def analysed(made: Sample, folder: Path) -> Timeline:
    found = timeline(read(made.write(folder)))
    assert found is not None
    return found


def test_the_window_runs_between_ends_of_device_steps(tmp_path: Path) -> None:
    found = analysed(small(), tmp_path)
    assert found.window == (815, 1815)
    assert found.steps == 1
    assert (found.busy, found.compute, found.idle) == (300, 300, 700)
    assert found.notes == ()


def test_idle_is_laid_at_the_door_of_what_the_host_did(tmp_path: Path) -> None:
    """Gap 815 to 1515: the loader 400, an operator 12 before its launch, the launch 3 on its way, the rest unseen."""
    reasons = analysed(small(), tmp_path).idle_by_reason
    assert {reason: time for reason, time in reasons.items() if time} == {
        "loader": 400,
        "dispatch": 12,
        "latency": 3,
        "python": 285,
    }


def test_device_time_belongs_to_the_phase_of_its_launch(tmp_path: Path) -> None:
    assert analysed(small(), tmp_path).phases == {"forward": 100, "backward": 200}


def test_exposure_counts_only_what_nothing_else_covers(tmp_path: Path) -> None:
    made = Sample()
    made.work("gemm", 0, 100, call=-5)
    made.work("ncclDevKernel_AllReduce", 50, 150, call=10, tid=ENGINE)
    made.work("Memcpy HtoD (Pageable -> Device)", 140, 200, call=20, cat="gpu_memcpy", bytes=600)
    made.work("Memcpy HtoD (Pinned -> Device)", 90, 110, call=30, cat="gpu_memcpy", bytes=100)
    made.work("gemm", 230, 250, call=40)
    found = analysed(made, tmp_path)
    assert (found.busy, found.idle) == (220, 30)
    assert (found.compute, found.comm, found.comm_exposed, found.copy_exposed) == (120, 100, 50, 50)
    assert found.busy == found.compute + found.comm_exposed + found.copy_exposed
    assert (found.h2d, found.h2d_exposed) == (80, 50)
    assert found.h2d_bytes == {"pageable": 600, "pinned": 100}
    assert found.phases == {"comm": 100, "h2d": 80, "forward": 120}


@pytest.mark.parametrize(
    ("name", "cat", "reason"),
    [
        ("cudaStreamSynchronize", "cuda_runtime", "sync"),
        ("hipDeviceSynchronize", "cuda_runtime", "sync"),
        ("aten::_local_scalar_dense", "cpu_op", "sync"),
        ("cudaMemcpy", "cuda_runtime", "sync"),
        ("cudaMalloc", "cuda_runtime", "allocator"),
        ("hipFree", "cuda_runtime", "allocator"),
        ("cuMemMap", "cuda_driver", "allocator"),
        ("cudaMemcpyAsync", "cuda_runtime", "copy"),
        ("Optimizer.step#AdamW.step", "user_annotation", "optimizer"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation", "loader"),
        ("aten::add", "cpu_op", "dispatch"),
        ("ProfilerStep#7", "gpu_user_annotation", "python"),
    ],
)
def test_a_late_launch_is_explained_by_what_the_host_did_before_it(
    tmp_path: Path, name: str, cat: str, reason: str
) -> None:
    made = Sample()
    made.work("gemm", 0, 10, call=-5)
    made.host(name, 20, 90, cat)
    made.work("gemm", 100, 110, call=100)
    reasons = analysed(made, tmp_path).idle_by_reason
    assert reasons[reason] == (90 if reason == "python" else 70)
    assert sum(reasons.values()) == 90


def test_work_that_was_queued_waited_on_the_device(tmp_path: Path) -> None:
    made = Sample()
    made.work("gemm", 0, 10, call=-5)
    made.work("gemm", 60, 70, call=5)
    made.work("gemm", 120, 130, call=6, by="cudaGraphLaunch")
    made.work("gemm", 138, 140, call=7)
    made.work("gemm", 150, 160, call=None)
    reasons = analysed(made, tmp_path).idle_by_reason
    assert (reasons["wait"], reasons["graph"], reasons["latency"], reasons["unlinked"]) == (50, 50, 8, 10)


def test_what_the_backward_engine_did_while_the_loop_waited_for_it_counts(tmp_path: Path) -> None:
    made = Sample()
    made.work("gemm", 0, 10, call=-5)
    made.host("autograd::engine::evaluate_function: ReluBackward0", 15, 95, tid=ENGINE)
    made.host("hipFree", 20, 90, "cuda_runtime", ENGINE)
    made.work("gemm", 100, 110, call=98)
    assert analysed(made, tmp_path).idle_by_reason["allocator"] == 70


def test_older_traces_tell_backward_by_its_thread(tmp_path: Path) -> None:
    made = Sample()
    made.step(0, -10, 300)
    made.host("CudnnConvolutionBackward", 100, 150, tid=ENGINE)
    made.work("conv", 0, 50, call=-5)
    made.work("dgrad", 110, 180, call=105, tid=ENGINE)
    assert analysed(made, tmp_path).phases == {"forward": 50, "backward": 70}


def test_a_backward_inside_an_optimizers_closure_is_backward(tmp_path: Path) -> None:
    made = Sample()
    made.host("Optimizer.step#LBFGS.step", 0, 100, "user_annotation")
    made.host("autograd::engine::evaluate_function: MulBackward0", 10, 50)
    made.work("mul", 20, 40, call=15)
    made.work("axpy", 60, 70, call=55)
    assert analysed(made, tmp_path).phases == {"backward": 20, "optimizer": 10}


@pytest.mark.parametrize(
    ("kernel", "share"),
    [("ampere_sgemm_128x64_nn", 0), ("sm80_xmma_gemm_bf16bf16", 1), ("nvjet_tst_192x192", 1), ("vectorized_add", None)],
)
def test_tensor_cores_are_known_by_name(tmp_path: Path, kernel: str, share: float | None) -> None:
    made = Sample()
    made.work(kernel, 0, 50, call=-5)
    assert analysed(made, tmp_path).tensor_core == share


def test_small_kernels_are_counted_and_weighed(tmp_path: Path) -> None:
    made = Sample()
    for n in range(4):
        made.work("add", n * 100, n * 100 + (5 if n else 85), call=n * 100 - 5)
    found = analysed(made, tmp_path)
    assert found.small_count == 0.75
    assert found.small_time == pytest.approx(0.15)


def test_a_trace_without_device_rows_has_no_device(tmp_path: Path) -> None:
    made = Sample()
    made.host("aten::mm", 0, 10)
    assert device_metrics(read(made.write(tmp_path))) is None


def test_doubts_are_said(tmp_path: Path) -> None:
    made = Sample()
    made.work("gemm", 0, 10)
    made.work("gemm", 20, 30, call=15)
    notes = " ".join(analysed(made, tmp_path).notes)
    assert "no steps are marked" in notes
    assert "50% of the device's rows have no launch" in notes


spans = st.lists(
    st.tuples(
        st.sampled_from(["gemm", "ncclKernel", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)"]),
        st.integers(0, 500),
        st.integers(1, 80),
        st.none() | st.integers(-60, 500),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans, st.integers(0, 5))
def test_the_parts_sum_to_the_window_whatever_ran(
    tmp_path: Path, work: list[tuple[str, int, int, int | None]], steps: int
) -> None:
    made = Sample()
    for n in range(steps):
        made.step(n, n * 100, n * 100 + 100)
    for name, start, length, call in work:
        cat = "gpu_memcpy" if "Memcpy" in name else "gpu_memset" if "Memset" in name else "kernel"
        made.work(name, start, start + length, call=call, cat=cat, bytes=4)
        made.host("aten::op", start, start + length // 2)
    found = analysed(made, tmp_path)
    assert found.busy + found.idle == pytest.approx(found.length)
    assert found.compute + found.comm_exposed + found.copy_exposed == pytest.approx(found.busy)
    assert sum(found.idle_by_reason.values()) == pytest.approx(found.idle)
    assert min(found.idle_by_reason.values()) >= -1e-9
