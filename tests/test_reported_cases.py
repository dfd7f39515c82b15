"""What people reported, as evidence made to order: the rule that must speak, and what must not be advised.

Each case is named after the thread in which somebody found the cause. Where the popular fix did nothing or hurt, the
rule that would lead to it is among those that must be silent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fasttrain_doctor.evidence import (
    Copies,
    Debug,
    EpochCost,
    Evidence,
    Fetches,
    Gpu,
    HotLine,
    Look,
    Operator,
    Phase,
    Pressure,
)
from fasttrain_doctor.rules import diagnose
from tests.evidence_samples import CPU, GPU, evidence

CUDA = {"device": "cuda", "autocast": "bfloat16"}
ON_DEVICE = {"machine": GPU, "clock": "device", "model": CUDA}
STEP = {"forward": 0.04, "backward": 0.06}
SMALL_BOX = replace(CPU, cores=2, logical_cores=2)
LARGE_OPERATORS = (
    Operator(Phase.FORWARD, "aten::convolution", 0.03, 60, "cpu"),
    Operator(Phase.BACKWARD, "aten::convolution_backward", 0.05, 60, "cpu"),
)
TINY_OPERATORS = (
    Operator(Phase.FORWARD, "aten::addmm", 160e-6, 204, "cpu"),
    Operator(Phase.BACKWARD, "aten::mm", 300e-6, 437, "cpu"),
)


@dataclass(frozen=True)
class Reported:
    """A report: what the tool would see of it, which rules must speak with which words, which must be silent."""

    report: str
    seen: Evidence
    says: tuple[tuple[str, str], ...] = ()  # rule, words in its message
    silent: tuple[str, ...] = ()
    first: str | None = None  # the rule that comes first


def fetches(item: float, collate: float = 0.0) -> Fetches:
    return Fetches(
        samples=4000, item=item, collate=collate, median=item, slowest=item, slowest_index=7, tail=0.0, slow_share=0.0
    )


def profiled(case: Evidence, *operators: Operator) -> Evidence:
    return replace(case, operators=operators)


DATA = (
    Reported(
        "fengzhang427/LRD#6: all loaders without workers",
        evidence(io=0.2, prepare=0.05, **STEP),
        says=(("input-wait-io", "num_workers=0"), ("input-wait-cpu", "num_workers=0")),
    ),
    Reported(
        "NVlabs/Deep_Object_Pose#88: workers forced to 0",
        evidence(io=0.2, loader={"start_method": "spawn"}, **STEP),
        says=(("input-wait-io", "num_workers=0"),),
    ),
    Reported(
        "open-mmlab/mmhuman3d#233: workers made anew for each epoch",
        evidence(loader={"num_workers": 4}, epoch=EpochCost(batches=300, start=390.0), **STEP),
        says=(("epoch-restart", "persistent_workers"),),
        first="epoch-restart",
    ),
    Reported(
        "boreshkinai/delta-interpolator#3: ten seconds an epoch where workers are spawned",
        evidence(
            loader={"num_workers": 4, "start_method": "spawn"}, epoch=EpochCost(batches=400, start=10.0), **STEP
        ),
        says=(("epoch-restart", "persistent_workers"),),
    ),
    Reported(
        "boreshkinai/delta-interpolator#3 (counter): none where they are forked",
        evidence(
            loader={"num_workers": 4, "start_method": "fork"}, epoch=EpochCost(batches=400, start=0.2), **STEP
        ),
        silent=("epoch-restart",),
    ),
    Reported(
        "Lightning#17410: trivial items from workers",
        evidence(prepare=0.02, forward=0.001, loader={"num_workers": 2}, fetches=fetches(1e-6)),
        says=(("worker-transfer", "try 0"),),
    ),
    Reported(
        "mmdetection#6867: cv2 starts as many threads as cores in each worker",
        evidence(
            prepare=0.3, loader={"num_workers": 16}, worker_threads=16, contention=0.7,
            pressure=Pressure(cpu=0.8, tree_cpu=15.5), **STEP,
        ),
        says=(("thread-oversubscription", "16 workers of 16 threads"),),
    ),
    Reported(
        "liebharc/homr#128 (counter): as many threads, and nothing waits for a core",
        evidence(
            loader={"num_workers": 16}, worker_threads=12, contention=0.02, pressure=Pressure(cpu=0.01, tree_cpu=6.0),
            **STEP,
        ),
        silent=("thread-oversubscription", "worker-contention"),
    ),
    Reported(
        "chainer/chainerrl#235: OMP_NUM_THREADS set after the import",
        evidence(machine=SMALL_BOX, threads=32, queued=0.5, pressure=Pressure(cpu=0.9, tree_cpu=2.0), **STEP),
        says=(("thread-oversubscription", "32 compute threads"),),
    ),
    Reported(
        "nasa-nccs-hpda/pytorch-caney#44: one core for eight workers, and the file system blamed",
        evidence(
            prepare=0.5, machine=replace(CPU, cores=1), loader={"num_workers": 8}, contention=0.8,
            pressure=Pressure(cpu=0.9, tree_cpu=1.0), **STEP,
        ),
        says=(("worker-contention", "1 CPU core"),),
        silent=("input-wait-io", "storage-bound", "small-files"),
    ),
    Reported(
        "springfall2008/batpred#4771: a quota of four where twelve are visible",
        evidence(
            prepare=0.1, machine=replace(CPU, cores=4, logical_cores=12), loader={"num_workers": 12},
            pressure=Pressure(throttled=3.0, tree_cpu=4.0), **STEP,
        ),
        says=(("cpu-quota", "a quota of 4 CPU cores"),),
    ),
    Reported(
        "horovod#824: data on a slow network store",
        evidence(io=0.9, loader={"num_workers": 2}, machine=SMALL_BOX, pressure=Pressure(io=0.0, disk_read=0.0), **STEP),
        says=(("input-wait-io", "more workers than cores can help"),),
        silent=("storage-bound",),  # no disk of this machine is what it waits for
        first="input-wait-io",
    ),
    Reported(
        "roboflow/rf-detr#1396 (counter): archives of samples where reads cost nothing",
        evidence(
            io=0.0005, loader={"num_workers": 4}, fetches=fetches(0.004),
            look=Look(4000, 60, stages={"read": 3e-5}, opens=1.0, read_calls=3.0, read_bytes=80_000.0, storage_bytes=0.0),
            pressure=Pressure(io=0.001, disk_read=0.0), **STEP,
        ),
        silent=("small-files", "storage-bound", "input-wait-io"),
    ),
    Reported(
        "mani-skill/ManiSkill#1040: a chunk of 24 frames read for one",
        evidence(io=0.08, prepare=0.1, **STEP),
        says=(("input-wait-io", "reads"), ("input-wait-cpu", "preprocessing")),
    ),
    Reported(
        "braindecode#89: a row of a data frame per item",
        evidence(prepare=0.5, **STEP),
        says=(("input-wait-cpu", "preprocessing"),),
        silent=("input-wait-io", "small-files", "storage-bound"),
        first="input-wait-cpu",
    ),
    Reported(
        "huggingface/datasets#7753: formatting row by row",
        evidence(prepare=0.034, **STEP),
        says=(("input-wait-cpu", "25%"),),
        first="input-wait-cpu",
    ),
    Reported(
        "mattmcclean/sagemaker-reinvent-chalktalk-2018#2: very large pictures",
        evidence(prepare=0.2, **STEP),
        says=(("input-wait-cpu", "preprocessing"),),
        silent=("input-wait-io",),
    ),
    Reported(
        "talmolab/dreem#72 (counter): augmentation on the GPU where workers hide it",
        evidence(loader={"num_workers": 8}, fetches=fetches(0.02), **STEP, **ON_DEVICE),
        silent=("input-wait-cpu", "input-wait", "worker-contention", "slow-collate"),
    ),
    Reported(
        "asyml/texar-pytorch#213: batches moved to the device while they are collated",
        evidence(prepare=0.02, fetches=fetches(0.0001, 0.0003), loader={"collate": "data.collate"}, **STEP, **ON_DEVICE),
        says=(("slow-collate", "`collate`"),),
    ),
)  # fmt: skip

HOUSEKEEPING = (
    Reported(
        "pytorch#103339: collections walk over a list of a billion numbers",
        evidence(other={"gc": 0.12}, **STEP),
        says=(("gc-pauses", "gc.freeze()"),),
        first="gc-pauses",
    ),
    Reported(
        "pytorch#5902, #13246, #20433: references counted in shared lists copy their pages",
        evidence(
            machine=replace(CPU, memory_free=32 << 30), loader={"num_workers": 2}, pressure=Pressure(growth=7e6), **STEP
        ),
        says=(("memory-growth", "Python lists shared with workers"),),
    ),
    Reported(
        "joliGEN#374: each loss read in each step",
        evidence(device={"idle_by_reason": {"sync": 0.5}}, **STEP, **ON_DEVICE),
        says=(("host-sync-in-loop", "every few steps"),),
        first="host-sync-in-loop",
    ),
    Reported(
        "facebookresearch/fairchem#2193: 348 reads a step, the GPU half idle",
        evidence(
            device={"idle_by_reason": {"sync": 0.15}}, spans={"sync": (("ocp/model.py:88", 0.02),)}, **STEP, **ON_DEVICE
        ),
        says=(("host-sync-in-loop", "model.py:88"),),
    ),
    Reported(
        "an A100 that computes throughout (counter): .item() in each step cost nothing",
        evidence(
            other={"sync": 0.09},
            device={"busy": 0.99, "idle": 0.01, "idle_by_reason": {"sync": 0.002}},
            **STEP,
            **ON_DEVICE,
        ),
        silent=("host-sync-in-loop",),
    ),
    Reported(
        "pytorch#31474: a norm read for each parameter to clip",
        evidence(
            other={"python": 0.03}, look=Look(0, 20, loop_lines=(HotLine("train.py", 57, "clip", 0.026),)), **STEP
        ),
        says=(("host-work-in-loop", "train.py:57"),),
    ),
    Reported(
        "fastai#2516: a confusion matrix of 10,000 classes in the validation",
        evidence(epoch=EpochCost(batches=500, eval=400.0), **STEP),
        says=(("eval-dominates", "of each epoch"),),
        first="eval-dominates",
    ),
    Reported(
        "wandb#950: TensorBoard's calls take three times the step",
        evidence(other={"logging": 0.3}, spans={"logging": (("train.py:90", 0.3),)}, **STEP),
        says=(("logging-in-loop", "train.py:90"),),
        first="logging-in-loop",
    ),
    Reported(
        "EveryVoiceTTS#204: a validation after each epoch of a few steps",
        evidence(epoch=EpochCost(batches=8, eval=3.0), **STEP),
        says=(("eval-dominates", "after 8 batches"),),
    ),
    Reported(
        "Nerogar/OneTrainer#1459: collection and emptied cache forced in each step",
        evidence(other={"gc": 0.1}, spans={"gc": (("modules/util.py:20", 0.1),)}, **STEP),
        says=(("gc-pauses", "gc.collect() at util.py:20"),),
        first="gc-pauses",
    ),
    Reported(
        "facebookresearch/dinov3#150 (counter): memory creeps because the collector is off",
        evidence(machine=replace(CPU, memory_free=8 << 30), pressure=Pressure(growth=3e6), **STEP),
        says=(("memory-growth", "left"),),
        silent=("gc-pauses",),
    ),
    Reported(
        "yenchenlin/nerf-pytorch#42, icon-lab/SynDiff#43: anomaly detection left on",
        evidence(debug=(Debug("anomaly detection", "torch.is_anomaly_enabled()"),), **STEP),
        says=(("debug-mode-left-on", "anomaly detection"),),
        first="debug-mode-left-on",
    ),
    Reported(
        "pytorch#134191: a third of the step in AdamW, with a debugger attached",
        evidence(forward=0.02, backward=0.02, optimizer=0.02, debug=(Debug("a debugger", "sys.gettrace()"),)),
        says=(("debug-mode-left-on", "a debugger"),),
        first="debug-mode-left-on",
    ),
    Reported(
        "checkpoints written in each step",
        evidence(other={"checkpoint": 0.15}, spans={"checkpoint": (("train.py:61", 0.15),)}, **STEP),
        says=(("checkpoint-stall", "train.py:61"),),
        first="checkpoint-stall",
    ),
)

COMPUTE = (
    Reported(
        "metatensor/metatrain#1273: non_blocking without pinned memory",
        evidence(h2d=0.009, copies=Copies(0.009, 0.0, 38e6, 0.0, "train.py:40"), **STEP, **ON_DEVICE),
        says=(("pageable-copy", "pin_memory=False"),),
        silent=("blocking-copy",),  # the flag is there, and does nothing
    ),
    Reported(
        "pytorch#101291 (counter): a fused update of few large tensors",
        evidence(optimizer=0.02, update={"device": "cuda", "parameters": 4, "elements": 64 << 20}, **STEP, **ON_DEVICE),
        silent=("slow-optimizer",),
    ),
    Reported(
        "many small tensors in the update",
        evidence(forward=0.01, backward=0.01, optimizer=0.02, update={"parameters": 1200}),
        says=(("slow-optimizer", "1200 tensors"),),
        first="slow-optimizer",
    ),
    Reported(
        "apex#297, fairchem#397 (counter): lower precision without units for it",
        evidence(
            machine=replace(GPU, gpus=(Gpu("GeForce GTX 1080 Ti", 11 << 30, (6, 1)),)), clock="device",
            model={"device": "cuda"}, **STEP,
        ),
        silent=("full-precision-compute",),
    ),
    Reported(
        "apex#806, lightwood#340 (counter): lower precision in a net too small for the device",
        evidence(
            machine=GPU, clock="device", model={"device": "cuda"},
            device={"busy": 0.2, "compute": 0.2, "idle": 0.8, "idle_by_reason": {"dispatch": 0.7}}, **STEP,
        ),
        says=(("small-batch", "a larger batch"),),
        silent=("full-precision-compute",),
    ),
    Reported(
        "the same on a CPU (counter): bf16 in a small net",
        profiled(
            evidence(
                forward=0.0005, backward=0.0009, machine=replace(CPU, cpu_flags=("avx512_bf16",)),
            ),
            *TINY_OPERATORS,
        ),
        silent=("full-precision-compute",),
    ),
    Reported(
        "karpathy/build-nanogpt#6 (counter): fewer launches where the device is saturated",
        evidence(device={"busy": 0.99, "compute": 0.99, "idle": 0.01, "idle_by_reason": {"dispatch": 0.005}}, **STEP, **ON_DEVICE),
        silent=("small-batch", "host-work-in-loop", "host-sync-in-loop"),
    ),
    Reported(
        "large operators on a CPU (counter): a larger batch brings nothing",
        profiled(evidence(**STEP), *LARGE_OPERATORS),
        silent=("small-batch", "host-work-in-loop", "slow-optimizer"),
    ),
)  # fmt: skip

each_report = pytest.mark.parametrize("case", [*DATA, *HOUSEKEEPING, *COMPUTE], ids=lambda case: case.report)


@each_report
def test_the_reported_cause_is_named_and_no_fix_that_did_not_help(case: Reported) -> None:
    found = {rule.name: finding for rule, finding in diagnose(case.seen)}
    for rule, words in case.says:
        assert rule in found, f"{rule} is silent; found: {sorted(found)}"
        assert words in found[rule].message
    assert not set(case.silent) & set(found)
    if case.first is not None:
        assert next(iter(found)) == case.first


@each_report
def test_nobody_is_told_to_turn_something_off_that_keeps_a_training_alive(case: Reported) -> None:
    assert not [finding.message for _, finding in diagnose(case.seen) if "gc.disable" in finding.message]


def test_counter_examples_draw_no_finding_at_all_that_names_a_fix() -> None:
    for case in (*DATA, *HOUSEKEEPING, *COMPUTE):
        if "(counter)" in case.report:
            named = [(rule.name, rule.fixes) for rule, _ in diagnose(case.seen) if rule.fixes]
            assert named == [], case.report
