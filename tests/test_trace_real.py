"""Traces from real GPU machines: known truths, and where we differ from a second opinion, why."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.trace import Timeline, Trace, device_metrics, operators, read, timeline

FOLDER = Path(__file__).resolve().parents[1] / ".." / "shared" / "traces"
FILES = sorted(str(p.relative_to(FOLDER)) for p in FOLDER.glob("*/**/*.json*"))
# No kernel, copy or memory set in them.
NO_DEVICE = {"edge/hta_cpu_only.json.gz", "edge/hta_cupti_profiler_counters.json.gz"}

pytestmark = [
    pytest.mark.skipif(not FILES, reason="the traces from GPU machines (../shared/traces) are not here"),
    pytest.mark.xdist_group("traces"),  # one process, so that each file is read once
]
each_file = pytest.mark.parametrize("file", FILES or ["no file"])


@cache
def loaded(file: str) -> Trace:
    if not (FOLDER / file).is_file():
        pytest.skip(f"{file} is not here")
    return read(FOLDER / file)


@cache
def line(file: str) -> Timeline | None:
    return timeline(loaded(file))


def shares(file: str) -> Timeline:
    found = line(file)
    assert found is not None
    return found


@cache
def second_opinion() -> dict[str, Any]:
    return dict(json.loads((FOLDER / "prototype.json").read_text(encoding="utf-8")))


@each_file
def test_every_file_is_analysed_or_has_no_device(file: str) -> None:
    trace = loaded(file)
    found = device_metrics(trace)
    assert (found is None) == (file in NO_DEVICE)
    assert operators(trace)
    assert trace.notes == ()


@each_file
def test_the_identity_holds(file: str) -> None:
    found = line(file)
    if found is None:
        pytest.skip(f"{file} has no device rows")
    assert found.busy + found.idle == pytest.approx(found.length, abs=0.01)
    assert found.compute + found.comm_exposed + found.copy_exposed == pytest.approx(found.busy, abs=0.01)
    assert sum(found.idle_by_reason.values()) == pytest.approx(found.idle, abs=0.01)
    assert min(found.idle_by_reason.values()) > -0.01
    assert sum(found.phases.values()) >= found.busy - 1e-6 * found.length - 1000  # sums count overlap twice


@each_file
def test_times_agree_with_the_second_opinion(file: str) -> None:
    theirs, found = second_opinion().get(file), line(file)
    if theirs is None or "window" not in theirs:
        assert found is None
        return
    assert found is not None
    if file == "amd/hta_mi250_minitoy_rocm62.json.gz":
        # Its second step launched nothing; they end the window with the device, we with the one real step.
        assert found.length == pytest.approx(9288.3, abs=0.1)
    else:
        assert found.length == pytest.approx(theirs["window"]["us"], abs=1)
    pairs = {
        "busy": found.busy,
        "compute": found.compute,
        "comm": found.comm,
        "comm_exposed": found.comm_exposed,
        "memcpy": found.copy,
        "h2d": found.h2d,
    }
    # Times that are fractions of a microsecond since the epoch hold a quarter of one in a float. They round ends as well
    # as starts to it; we add durations to times since the first row.
    rounding = 20 if file == "nvidia/hta_v100_ns_resolution_fwdbwd.pt.trace.json.gz" else 1
    assert pairs == pytest.approx({name: theirs[f"{name}_us"] for name in pairs}, abs=rounding)
    # We ask for copies outside kernels; they also take memory sets for cover.
    assert found.h2d_exposed == pytest.approx(theirs["h2d_exposed_us"], abs=60)
    assert found.h2d_exposed >= theirs["h2d_exposed_us"] - 1


@each_file
def test_reasons_agree_with_the_second_opinion_or_differ_for_a_reason(file: str) -> None:
    theirs, found = second_opinion().get(file), line(file)
    if theirs is None or found is None or file == "amd/hta_mi250_minitoy_rocm62.json.gz":
        pytest.skip(f"{file} has no comparable second opinion")
    ours, other = found.idle_by_reason, theirs["idle_reason_us"]
    # One step: what follows the device's last work is the host's time with us, the device's with them.
    # No launch in the trace: `unlinked` with us, the host's time with them.
    # Queries do not block: they count cudaEventQuery as waiting, we do not.
    # `zero_grad` is the optimizer's range, hence dispatch; they leave its Python untraced.
    tolerance = 0.006 * found.length + 2 * ours["unlinked"] + (200 if found.steps == 1 else 0)
    assert ours["loader"] == pytest.approx(other["dataloader"], abs=tolerance)
    assert ours["sync"] == pytest.approx(other["sync"], abs=tolerance)
    assert ours["allocator"] == pytest.approx(other["alloc"], abs=tolerance)
    assert ours["wait"] + ours["graph"] == pytest.approx(other["gpu_side_wait(>=10us)"], abs=2 * tolerance)
    assert ours["latency"] == pytest.approx(other["launch_latency(<10us)"], abs=tolerance)
    host = ours["optimizer"] + ours["dispatch"] + ours["python"] + ours["copy"]
    their_host = sum(other[name] for name in ("optimizer_host", "op_dispatch", "untraced_host", "memcpy_call"))
    assert host == pytest.approx(their_host, abs=2 * tolerance)


def test_loader_wait_is_seen_with_no_workers_and_gone_with_four() -> None:
    before = shares("nvidia/kineto_resnet50_v100_workers0.pt.trace.json.gz")
    after = shares("nvidia/kineto_resnet50_v100_workers4.pt.trace.json.gz")
    assert before.loader_exposed / before.length == pytest.approx(0.218, abs=0.001)
    assert before.idle_by_reason["loader"] / before.length == pytest.approx(0.214, abs=0.001)
    assert after.loader_exposed / after.length < 0.001
    assert (before.steps, after.steps) == (4, 4)
    assert after.length / 4 == pytest.approx(121_000, rel=0.001)


def test_a_free_loader_predicts_the_step_with_workers() -> None:
    before = shares("nvidia/kineto_resnet50_v100_workers0.pt.trace.json.gz")
    assert before.steps is not None
    assert (before.length - before.loader_exposed) / before.steps == pytest.approx(121_000, rel=0.05)


def test_loader_wait_of_the_2080_ti() -> None:
    found = shares("nvidia/param_resnet_rtx2080ti_dataloader.json.gz")
    assert found.loader_exposed / found.length == pytest.approx(0.459, abs=0.01)
    assert found.idle_by_reason["allocator"] / found.length == pytest.approx(0.084, abs=0.001)
    assert set(found.h2d_bytes) == {"pageable"}


def test_compiled_operators_that_carry_a_stream_are_not_device_work() -> None:
    """Counting them makes 17.1 % idle of 1.8 %."""
    found = shares("nvidia/nanogpt_h100_r0of8_2025-10_before_gradhook.json.gz")
    assert found.idle / found.length == pytest.approx(0.018, abs=0.001)


def test_overlapped_gradient_communication_is_seen_as_such() -> None:
    before = shares("nvidia/nanogpt_h100_r0of8_2025-10_before_gradhook.json.gz")
    after = shares("nvidia/nanogpt_h100_r0of8_2025-10_after_gradhook.json.gz")
    assert before.length / 2 == pytest.approx(61_010, rel=0.001)
    assert after.length / 2 == pytest.approx(60_280, rel=0.001)
    saved = (before.comm_exposed - after.comm_exposed) / 2
    assert saved == pytest.approx((before.length - after.length) / 2, abs=300)


def test_the_allocator_is_named_where_the_cache_was_off() -> None:
    found = shares("amd/tracelens_mi300x_ddp_resnet18_train_stack.json.gz")
    assert max(found.idle_by_reason, key=lambda reason: found.idle_by_reason[reason]) == "allocator"
    assert found.idle_by_reason["allocator"] / found.length == pytest.approx(0.886, abs=0.005)


def test_waits_inside_graphs_are_told_apart() -> None:
    found = shares("nvidia/hta_a100_80g_rank0of16.json.gz")
    waited = found.idle_by_reason["graph"] + found.idle_by_reason["wait"]
    assert waited / found.length == pytest.approx(0.607, abs=0.001)
    assert found.idle_by_reason["graph"] / waited > 0.9


@pytest.mark.parametrize(
    ("file", "share"),
    [
        ("nvidia/kineto_resnet50_v100_workers0.pt.trace.json.gz", 0.0),  # float32 on a V100
        ("nvidia/hta_a100_80g_rank0of16.json.gz", 0.93),
        # 0.84 by names in lower case only, which leave out the attention kernels of FlashAttnBwdSm90.
        ("nvidia/nanogpt_h100_r0of8_2025-10_before_gradhook.json.gz", 0.944),
    ],
)
def test_tensor_core_share(file: str, share: float) -> None:
    assert shares(file).tensor_core == pytest.approx(share, abs=0.005)


def test_most_kernels_of_a_resnet_are_small_and_take_no_time() -> None:
    found = shares("nvidia/kineto_resnet50_v100_workers0.pt.trace.json.gz")
    assert found.small_count == pytest.approx(0.623, abs=0.001)
    assert found.small_time == pytest.approx(0.014, abs=0.001)


@pytest.mark.parametrize("workers", [0, 4])
def test_backward_of_2021_is_found_by_its_thread(workers: int) -> None:
    found = shares(f"nvidia/kineto_resnet50_v100_workers{workers}.pt.trace.json.gz")
    assert found.phases["backward"] / 4 == pytest.approx(64_400, rel=0.005)
    assert found.phases["forward"] / 4 == pytest.approx(32_800, rel=0.005)


def test_device_operators_of_a_resnet_are_its_convolutions() -> None:
    found = operators(loaded("nvidia/kineto_resnet50_v100_workers4.pt.trace.json.gz"))
    assert next(o.name for o in found if o.phase is Phase.FORWARD) == "aten::cudnn_convolution"
    assert next(o.name for o in found if o.phase is Phase.BACKWARD) == "aten::cudnn_convolution_backward_weight"


def test_the_straggler_communicates_least_and_the_others_wait() -> None:
    ranks = [shares(f"multi/nanogpt_h100_8rank_2025-12/rank{n}.json.gz") for n in range(8)]
    assert min(range(8), key=lambda n: ranks[n].comm_exposed) == 1
    assert max(range(8), key=lambda n: ranks[n].idle) == 1
