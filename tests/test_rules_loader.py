"""What the rules on loading promise beyond their pages: when they speak, what they leave alone, and that they agree."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings

from fasttrain_doctor.evidence import EpochCost, Evidence, HotLine, Phase
from fasttrain_doctor.rules import Finding, diagnose, waiting
from fasttrain_doctor.tuners.fixes import all_fixes
from tests.evidence_samples import CPU, EPOCH, FETCHES, GPU, LOOK, PRESSURE, evidence, evidences

FEW = replace(CPU, cores=2, logical_cores=2)
ON_DEVICE = {"machine": GPU, "clock": "device", "model": {"device": "cuda", "autocast": "bfloat16"}}


def named(case: Evidence) -> dict[str, Finding]:
    return {rule.name: finding for rule, finding in diagnose(case)}


def found(**signals: object) -> dict[str, Finding]:
    return named(evidence(**signals))  # type: ignore[arg-type]


def offered(case: Evidence) -> list[int]:
    """Return the worker counts that the fix would try."""
    values = all_fixes()["dataloader-workers"].options(case).values
    return [value["num_workers"] for value in values if isinstance(value, dict)]


# All of them.


def test_a_loader_that_keeps_up_draws_no_finding() -> None:
    seen = {"look": LOOK, "fetches": FETCHES, "pressure": PRESSURE, "epoch": EPOCH, "threads": 16, "queued": 0.0}
    assert (
        found(prepare=0.0005, forward=0.1, loader={"num_workers": 4}, contention=0.01, worker_threads=1, **seen) == {}
    )


@settings(max_examples=200, deadline=None)
@given(evidences())
def test_what_is_told_of_a_wait_is_no_more_than_the_wait(case: Evidence) -> None:
    said, waits = named(case), waiting(case)
    own = ("straggler-sample", "slow-collate", "worker-transfer", "small-files", "storage-bound", "data-outside-loader")
    for name in own:
        assert name not in said or (waits is not None and said[name].lost <= waits + 1e-9), name


@settings(max_examples=200, deadline=None)
@given(evidences())
def test_no_finding_asks_for_more_workers_where_another_asks_for_fewer(case: Evidence) -> None:
    said = named(case)
    if "worker-contention" in said:
        assert not [f.message for f in said.values() if "more workers" in f.message]


@pytest.mark.parametrize(("share", "speaks"), [(0.04, True), (0.02, False)])
def test_a_wait_is_named_before_it_is_a_twentieth_of_the_step(share: float, speaks: bool) -> None:
    wait, rest = share * 0.1, (1 - share) * 0.1
    assert ("input-wait-io" in found(io=wait, forward=rest)) is speaks
    assert ("input-wait-cpu" in found(prepare=wait, forward=rest)) is speaks
    assert ("input-wait" in found(io=None, prepare=None, data=wait, forward=rest)) is speaks


# Cores: workers, threads, quotas.


@pytest.mark.parametrize(
    ("cores", "ratio", "io", "prepare"), list(product((1, 2, 8, 16), (1, 2, 8), (0.0, 0.04), (0.05, 0.5)))
)
def test_where_workers_queue_the_fix_offers_fewer(cores: int, ratio: int, io: float, prepare: float) -> None:
    workers = cores * ratio
    machine = replace(CPU, cores=cores, logical_cores=cores)
    case = evidence(
        io=io, prepare=prepare, forward=0.05, machine=machine, loader={"num_workers": workers}, contention=0.5
    )
    assert "worker-contention" in named(case)
    assert min(offered(case)) < workers


def test_more_workers_than_cores_that_wait_for_reads_do_not_contend() -> None:
    reads = found(io=0.08, prepare=0.01, forward=0.02, machine=FEW, loader={"num_workers": 16}, contention=0.3)
    assert "worker-contention" not in reads


def test_ranks_share_the_cores_with_their_workers() -> None:
    case = evidence(prepare=0.05, forward=0.05, loader={"num_workers": 4}, contention=0.4)
    assert "worker-contention" not in named(case)  # 4 on 16 cores
    assert "8 ranks" in named(replace(case, world=8))["worker-contention"].message


def test_many_threads_on_a_lightly_loaded_machine_are_left_alone() -> None:
    """liebharc/homr#128: 192 threads; fewer left the speed as it was."""
    idle = replace(PRESSURE, cpu=0.02, tree_cpu=6.0)
    seen = {"threads": 192, "worker_threads": 192, "queued": 0.001, "contention": 0.01, "pressure": idle}
    said = found(prepare=0.05, forward=0.05, loader={"num_workers": 4}, **seen)
    assert set(said) == {"input-wait-cpu"}


def test_threads_and_workers_that_fight_for_the_cores_are_both_named() -> None:
    seen = {"machine": FEW, "loader": {"num_workers": 2}, "queued": 0.15}
    said = found(forward=0.05, backward=0.05, threads=2, **seen)["thread-oversubscription"]
    assert "2 compute threads beside 2 workers" in said.message
    assert "torch.set_num_threads(1)" in said.message
    assert said.lost == pytest.approx(0.15)
    assert "thread-oversubscription" not in found(forward=0.05, backward=0.05, threads=1, **seen)


def test_ranks_that_take_all_cores_each_are_oversubscribed() -> None:
    pressed = replace(PRESSURE, cpu=0.8, tree_cpu=15.5)
    case = evidence(forward=0.05, backward=0.05, threads=16, pressure=pressed)
    assert "thread-oversubscription" not in named(case)
    said = named(replace(case, world=4))["thread-oversubscription"]
    assert "4 ranks of 16 compute threads" in said.message
    assert "torch.set_num_threads(4)" in said.message


def test_other_programs_on_the_cores_are_no_fault_of_the_scripts_threads() -> None:
    others = replace(PRESSURE, cpu=0.9, tree_cpu=0.8)
    said = found(forward=0.1, machine=FEW, threads=16, queued=0.3, pressure=others)
    assert "thread-oversubscription" not in said


def test_threads_of_a_process_whose_model_is_on_a_device_compute_nothing() -> None:
    pressed = replace(PRESSURE, cpu=0.9, tree_cpu=15.9)
    assert "thread-oversubscription" not in found(forward=0.1, threads=64, queued=0.2, pressure=pressed, **ON_DEVICE)


def test_a_quota_costs_a_device_only_its_idle_time() -> None:
    """springfall2008/batpred#4771: cpu_count says 12, the quota gives 4."""
    pod = replace(GPU, cores=4, logical_cores=12)
    held = replace(PRESSURE, throttled=4.0, tree_cpu=4.0)
    seen = ON_DEVICE | {"machine": pod, "pressure": held, "forward": 0.1}
    assert "cpu-quota" not in found(device={"idle": 0.01}, **seen)
    assert found(device={"idle": 0.4}, **seen)["cpu-quota"].lost == pytest.approx(0.2)
    assert "cpu-quota" not in found(**seen)  # whether the device waits was not seen, and data is there


def test_a_quota_names_what_was_set_by_the_machine() -> None:
    pod = replace(CPU, cores=4, logical_cores=12)
    held = replace(PRESSURE, throttled=2.0, tree_cpu=4.0)
    said = found(prepare=0.05, forward=0.05, machine=pod, loader={"num_workers": 2}, threads=4, pressure=held)
    assert "raise the quota" in said["cpu-quota"].message
    said = found(prepare=0.05, forward=0.05, machine=pod, loader={"num_workers": 12}, threads=12, pressure=held)
    assert "num_workers=12, 12 compute threads, set them by the quota" in said["cpu-quota"].message


# Inside a fetch: stragglers, collation.

SLOW = replace(FETCHES, item=0.002, collate=0.0, median=0.001, slowest=0.1, tail=0.5, slow_share=1 / 100)


def test_workers_that_would_keep_up_without_stragglers_wait_for_nothing_else() -> None:
    # 64 samples of 2 ms: 128 ms of work, 32 ms for each of four workers, beside a step of 40 ms.
    keeps_up = found(io=0.01, forward=0.04, loader={"num_workers": 4}, fetches=SLOW)
    assert keeps_up["straggler-sample"].lost == pytest.approx(0.2)  # all of the wait
    # 640 ms of work, 160 ms for each beside 20 ms: half of the work is half of the 160 ms.
    behind = found(io=0.14, forward=0.02, loader={"num_workers": 4}, fetches=replace(SLOW, item=0.01))
    assert behind["straggler-sample"].lost == pytest.approx(0.5)


def test_a_high_mean_without_a_tail_is_no_straggler() -> None:
    assert "straggler-sample" not in found(io=0.1, forward=0.05, fetches=replace(SLOW, median=0.002, tail=0.0))


def test_one_slow_sample_in_a_window_is_a_hiccup() -> None:
    once = replace(SLOW, slow_share=1 / SLOW.samples)
    assert "straggler-sample" not in found(io=0.1, forward=0.05, fetches=once)


def test_samples_put_off_the_cpu_are_not_slow_samples() -> None:
    case = {"prepare": 0.1, "forward": 0.05, "fetches": replace(SLOW, tail=0.2)}
    assert "straggler-sample" not in found(contention=0.2, **case)
    assert "straggler-sample" in found(contention=0.0, **case)


def test_where_threads_queue_slow_samples_are_reckoned_from_the_tail() -> None:
    """Measured with one sample in 16 of 40 ms beside 1 ms, while others kept the cores busy: one in 5 was counted."""
    noisy = replace(SLOW, item=0.0042, median=0.0011, slowest=0.047, tail=0.65, slow_share=0.3)
    said = found(io=0.03, forward=0.01, fetches=noisy, contention=0.17)["straggler-sample"]
    assert "1 in 16 over" in said.message
    assert "straggler-sample" not in found(io=0.03, forward=0.01, fetches=noisy, contention=0.0)  # truly one in 3


def test_a_straggler_of_an_iterable_data_set_has_no_index() -> None:
    said = found(io=0.1, forward=0.05, fetches=replace(SLOW, slowest_index=None))["straggler-sample"]
    assert "the slowest 100 ms, median 1.0 ms" in said.message


def test_collation_costs_no_more_than_its_own_work() -> None:
    trivial = replace(FETCHES, item=2e-6, collate=2e-6)
    said = found(prepare=0.0009, forward=0.0003, loader={"num_workers": 2}, fetches=trivial)
    assert said["slow-collate"].lost == pytest.approx(64 * 2e-6 / 0.0012)
    assert said["worker-transfer"].lost > said["slow-collate"].lost


def test_default_collation_is_met_by_whole_batches_and_an_own_one_by_fewer_copies() -> None:
    half = {"prepare": 0.05, "forward": 0.05, "fetches": replace(FETCHES, item=0.0005, collate=0.0005)}
    usual = found(loader={"collate": "torch.utils.data._utils.collate.default_collate"}, **half)
    assert "batch_size=None" in usual["slow-collate"].message
    own = found(loader={"collate": "train.make_loader.<locals>.pad"}, **half)
    assert "`pad`" in own["slow-collate"].message


# Between processes.


def test_workers_on_trivial_items_are_told_to_go_and_the_fix_tries_it() -> None:
    """Lightning#17410; here 2 workers took 1.2 ms a step and none 0.297."""
    trivial = replace(FETCHES, item=4e-6, collate=8e-6)
    case = evidence(prepare=0.0009, forward=0.0003, loader={"num_workers": 2, "batch_size": 8}, fetches=trivial)
    case = replace(case, breakdown=replace(case.breakdown, samples_per_step=8))
    said = named(case)["worker-transfer"]
    assert said.message.endswith("try 0)")
    assert said.lost == pytest.approx((0.0009 - 8 * 12e-6) / 0.0012)
    assert 0 in offered(case)
    none = replace(case, loader=replace(case.loader, num_workers=0))  # type: ignore[type-var]
    assert "worker-transfer" not in named(none)


def test_a_batch_of_many_pieces_is_told_to_be_merged_before_workers_are_told_to_go() -> None:
    """Measured: 202 tensors and 5000 numbers a batch took 222 ms a step with 2 workers and 5 ms without."""
    fetches = replace(FETCHES, item=1e-5, collate=1e-5, unpack=0.03, pack=0.02)
    pieces = {"batch_tensors": 202, "batch_objects": 5000}
    said = found(prepare=0.19, forward=0.03, loader={"num_workers": 2}, fetches=fetches, **pieces)["worker-transfer"]
    assert "(202 tensors, 5000 Python objects a batch, merge them" in said.message
    assert said.lost == pytest.approx((0.19 - 64 * 2e-5) / 0.22)


def test_a_hand_off_that_waits_behind_other_programs_is_not_slow() -> None:
    """Measured on two cores that others kept busy: 2.1 ms of work, 26 ms of waiting, 0.19 cores for the script."""
    waits = {"prepare": 0.026, "forward": 0.001, "machine": FEW, "loader": {"num_workers": 2}, "contention": 0.36}
    fetches = replace(FETCHES, item=25e-6, collate=5e-6)
    others = replace(PRESSURE, cpu=0.99, tree_cpu=0.19)
    assert "worker-transfer" not in found(fetches=fetches, pressure=others, **waits)
    assert "worker-transfer" in found(fetches=fetches, pressure=replace(others, tree_cpu=1.8), **waits)
    assert "worker-transfer" in found(fetches=fetches, pressure=replace(others, cpu=0.05), **waits)


def test_workers_that_work_as_long_as_the_step_waits_are_not_trivial() -> None:
    assert "worker-transfer" not in found(
        prepare=0.02, forward=0.01, loader={"num_workers": 2}, fetches=replace(FETCHES, item=0.001)
    )


def test_growing_memory_is_put_down_to_lists_only_where_forked_workers_can_copy_one() -> None:
    passing = replace(FETCHES, item=0.002, unpack=0.004)
    seen = {"prepare": 0.01, "forward": 0.03, "fetches": passing, "pressure": replace(PRESSURE, growth=5e6)}
    large = {"num_workers": 2, "dataset_length": 2_000_000}
    assert "memory grows 4.8 MiB/s" in found(loader=large, **seen)["worker-transfer"].message
    for other in ({"dataset_length": 1000}, {"start_method": "spawn"}):
        assert "memory grows" not in found(loader=large | other, **seen)["worker-transfer"].message


# Storage.

READS = replace(LOOK, stages={"read": 0.001}, opens=1.0, read_calls=2.0, read_bytes=20_000.0, storage_bytes=20_000.0)


def test_only_what_is_blocked_in_reads_is_lost_to_small_files() -> None:
    # 128 ms blocked in a step, of which 64 samples wait 1 ms each in reads; the rest is a collation's.
    said = found(io=0.128, forward=0.128, look=READS)
    assert said["input-wait-io"].lost == pytest.approx(0.5)
    assert said["small-files"].lost == pytest.approx(0.25)


def test_few_large_reads_are_slow_but_not_small() -> None:
    large = replace(READS, read_bytes=20e6, storage_bytes=20e6)
    assert "small-files" not in found(io=0.064, forward=0.064, look=large)


def test_reads_from_the_page_cache_are_not_the_storages_doing() -> None:
    """roboflow/rf-detr#1396: shards were expected to help where next to nothing was read from disk."""
    cached = replace(READS, stages={"read": 0.0}, storage_bytes=0.0)
    quiet = replace(PRESSURE, io=0.005, disk_read=2e4)
    assert found(prepare=0.0005, io=0.0005, forward=0.1, look=cached, pressure=quiet) == {}
    others = replace(PRESSURE, io=0.6, disk_read=3e8)  # another program reads
    assert set(found(io=0.05, forward=0.05, look=cached, pressure=others)) == {"input-wait-io"}


def test_a_wait_for_a_network_is_one_for_reads_alone() -> None:
    far = replace(PRESSURE, io=0.0, disk_read=0.0)
    assert set(found(io=0.05, forward=0.05, pressure=far)) == {"input-wait-io"}


def test_disk_figures_must_fit_what_samples_read_where_that_is_known() -> None:
    wanting = replace(READS, storage_bytes=None, read_bytes=1e6)  # 64 MB in 100 ms
    stalls = replace(PRESSURE, io=0.6, disk_read=600e6)
    assert "storage-bound" in found(io=0.05, forward=0.05, look=wanting, pressure=stalls)
    assert "storage-bound" not in found(io=0.05, forward=0.05, look=wanting, pressure=replace(stalls, disk_read=30e6))


# Loops and epochs.


def test_of_a_loop_without_a_loader_only_lines_that_make_the_batch_are_named() -> None:
    lines = [("main", 0.1), ("batch", 0.018), ("log", 0.0005)]  # the first holds the whole step
    look = replace(LOOK, loop_lines=tuple(HotLine("train.py", 10 + i, f, s) for i, (f, s) in enumerate(lines)))
    case = evidence(prepare=0.02, forward=0.05, look=look)
    case = replace(case, loader=None, breakdown=replace(case.breakdown, inferred=(Phase.IO, Phase.PREPARE)))
    said = named(case)["data-outside-loader"]
    assert "18 ms at train.py:11" in said.message
    assert said.evidence["lines"] == ["train.py:11 batch 18 ms"]
    elsewhere = replace(case.breakdown, other={**case.breakdown.other, "python": 0.017})
    assert "train.py" not in named(replace(case, breakdown=elsewhere))["data-outside-loader"].message  # it may be there


def test_starting_workers_quickly_is_not_told() -> None:
    """boreshkinai/delta-interpolator#3: ten seconds an epoch where they were spawned, none where they were forked."""
    epoch = EpochCost(batches=400, start=10.0)
    spawned = found(forward=0.1, loader={"num_workers": 4, "start_method": "spawn"}, epoch=epoch)
    assert "by spawn" in spawned["epoch-restart"].message
    assert spawned["epoch-restart"].of == "epoch"
    assert found(forward=0.1, loader={"num_workers": 4, "start_method": "fork"}, epoch=replace(epoch, start=0.1)) == {}


def test_the_fix_keeps_workers_wherever_starting_them_was_found_to_cost() -> None:
    case = evidence(forward=0.1, loader={"num_workers": 4, "length": 400}, epoch=EpochCost(batches=400, start=10.0))
    first = all_fixes()["dataloader-workers"].options(case).values[0]
    assert first == {"num_workers": 4, "prefetch_factor": 2, "persistent_workers": True}


def test_a_lock_in_the_loop_is_placed_by_its_span_where_nothing_looked_inside() -> None:
    said = found(forward=0.05, other={"lock": 0.02}, spans={"lock": (("app/train.py:9", 0.02),)})
    assert "at train.py:9" in said["lock-wait"].message
