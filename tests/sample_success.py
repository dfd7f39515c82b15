"""A run that found a slow loader and proved the fix: the diagnosis the other samples are made from."""

from __future__ import annotations

import math
import random

from fasttrain_doctor.diagnosis import (
    Diagnosis,
    Epoch,
    FindingFacts,
    FloorFacts,
    Interval,
    LoaderFacts,
    LoaderRole,
    Loop,
    NotMeasured,
    OperatorFacts,
    Overhead,
    Projected,
    Ranks,
    Startup,
    Steps,
    StepTime,
    Transform,
    TrialFacts,
    Tuned,
)


def window(mean: float, warmup: int = 7, measured: int = 60) -> list[float]:
    draw = random.Random(7)
    warm = [mean * (1 + 1.6 * math.exp(-i / 2)) for i in range(warmup)]
    steady = [mean * draw.gauss(1, 0.04) for _ in range(measured)]
    steady[41] *= 1.9  # a hiccup of the disk
    return warm + steady


def _pairs(mid: float, count: int = 8, spread: float = 0.03) -> list[float]:
    draw = random.Random(int(mid * 1000))
    return [round(mid * draw.gauss(1, spread), 3) for _ in range(count)]


MACHINE = {
    "cores": 16.0,
    "logical_cores": 16,
    "memory": 128 << 30,
    "memory_free": 96 << 30,
    "shm_free": 64 << 30,
    "gpus": [{"name": "NVIDIA H200", "memory": 139 << 30, "capability": [9, 0], "driver": "575.57"}],
    "platform": "Linux-6.8.0-x86_64",
    "python": "3.11.9",
    "torch": "2.14.1+cu130",
    "torch_cuda": "13.0",
    "cpu_flags": ["avx2", "avx512f", "amx_bf16"],
    "interop_threads": 8,
    "intraop_threads": 16,
}
CPU_MACHINE = {**MACHINE, "gpus": [], "cores": 2.0, "logical_cores": 2, "torch": "2.14.1+cpu", "torch_cuda": None}

WORKERS = {"dataloader-workers": {"num_workers": 8, "prefetch_factor": 4, "persistent_workers": True}}
GPU_WHY = "this machine has no accelerator"

SUCCESS = Diagnosis(
    tool="0.1.0",
    status="complete",
    degraded=[],
    not_measured=[NotMeasured(what="GPU throttle reasons", why="NVML does not report them on this board")],
    command=["python", "train.py", "--epochs", "10"],
    script="train.py",
    started="2026-11-30T21:06:04+01:00",
    seconds=78.4,
    machine=MACHINE,
    clock="device",
    loop=Loop(
        file="train.py",
        lines=(40, 52),
        loaders=[
            LoaderRole(role="train", file="train.py", line=34),
            LoaderRole(role="eval", file="train.py", line=36),
        ],
    ),
    steps=Steps(measured=60, warmup=7, found_by="loader", batches_per_step=1, samples_per_step=64),
    step=StepTime(mean=0.118, median=0.1171, p10=0.112, p90=0.1243),
    phases={
        "io": 0.058,
        "prepare": 0.021,
        "h2d": 0.004,
        "forward": 0.014,
        "backward": 0.0168,
        "optimizer": 0.004,
        "other": 0.0002,
    },
    data=0.079,
    inferred=[],
    other={
        "sync": 0.0001,
        "checkpoint": 0.0,
        "logging": 0.0001,
        "collective": None,
        "eval": 0.0,
        "lock": None,
        "gc": 0.0,
        "python": 0.0,
    },
    hidden={"io": 0.0, "prepare": 0.0, "h2d": 0.0011},
    contention=0.012,
    loader=LoaderFacts(
        num_workers=0,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
        batch_size=64,
        transforms=[
            Transform(name="Image.open + decode", seconds=0.00019),
            Transform(name="RandomResizedCrop", seconds=0.00008),
            Transform(name="RandomHorizontalFlip", seconds=0.00001),
            Transform(name="ToTensor", seconds=0.00004),
            Transform(name="Normalize", seconds=0.00002),
        ],
        hot_lines=[
            {"file": "data.py", "line": 21, "seconds": 0.00091, "code": "image = Image.open(path).convert('RGB')"},
            {"file": "data.py", "line": 22, "seconds": 0.00014, "code": "return self.transform(image), label"},
        ],
    ),
    epoch=Epoch(batches=782, start=0.31, eval=4.2, checkpoint=0.4),
    startup=Startup(imports=2.9, first_batch=0.34, workers=0.0),
    ranks=Ranks(world=1, reported=1, step={"0": 0.118}, straggler=None),
    floor=FloorFacts(step=0.041, ceiling=2.88),
    findings=[
        FindingFacts(
            code="IO001",
            rule="input-wait-io",
            lost=0.49,
            message="each step waits 49% of its time for reads (num_workers=0, 16 CPU cores)",
            evidence={"io": 0.058, "step": 0.118, "num_workers": 0, "cores": 16},
            fixes=["dataloader-workers", "stream-prefetch"],
        ),
        FindingFacts(
            code="OP001",
            rule="slow-optimizer",
            lost=0.02,
            message="AdamW steps 161 tensors one kernel at a time: 4 ms of each step (fused=None)",
            evidence={"optimizer": 0.004, "tensors": 161, "cls": "torch.optim.adamw.AdamW"},
            fixes=["fused-optimizer"],
        ),
    ],
    trials=[
        TrialFacts(
            settings={"dataloader-workers": {"num_workers": 8, "prefetch_factor": 4, "persistent_workers": True}},
            effect="reseeded",
            verdict="faster",
            speedup=Interval(mid=2.41, low=2.33, high=2.49),
            expected=2.7,
            pairs=8,
            reason="",
            stage="guided",
            pair_ratios=_pairs(2.41),
            steps=256,
            seconds=21.0,
        ),
        TrialFacts(
            settings={"stream-prefetch": True},
            effect="exact",
            verdict="no-difference",
            speedup=Interval(mid=1.01, low=0.99, high=1.03),
            expected=1.03,
            pairs=8,
            reason="within the noise of ±2%",
            stage="guided",
            pair_ratios=_pairs(1.01, spread=0.015),
            steps=256,
            seconds=9.6,
        ),
        TrialFacts(
            settings={**WORKERS, "fused-optimizer": True},
            over=WORKERS,
            effect="rounding",
            verdict="no-difference",
            speedup=Interval(mid=1.01, low=0.99, high=1.02),
            expected=1.02,
            pairs=8,
            reason="within the noise of ±2%",
            stage="guided",
            pair_ratios=_pairs(1.01, spread=0.012),
            steps=256,
            seconds=9.1,
        ),
        TrialFacts(
            settings={"dataloader-workers": {"num_workers": 12, "prefetch_factor": 2, "persistent_workers": True}},
            effect="reseeded",
            verdict="faster",
            speedup=Interval(mid=2.61, low=2.5, high=2.7),
            expected=2.8,
            pairs=8,
            reason="",
            stage="search",
            pair_ratios=_pairs(2.61),
            steps=256,
            seconds=8.2,
        ),
        TrialFacts(
            settings={"dataloader-workers": {"num_workers": 64, "prefetch_factor": 2, "persistent_workers": True}},
            effect="reseeded",
            verdict="failed",
            speedup=None,
            expected=None,
            pairs=0,
            reason="out of shared memory: /dev/shm has 64 GB, the workers asked for more",
            stage="search",
            pair_ratios=[],
            steps=0,
            seconds=3.0,
        ),
        TrialFacts(
            settings={"dataloader-workers": {"num_workers": 8, "prefetch_factor": 4, "persistent_workers": True}},
            effect="reseeded",
            verdict="faster",
            speedup=Interval(mid=2.62, low=2.51, high=2.71),
            expected=2.6,
            pairs=3,
            reason="",
            stage="confirm",
            pair_ratios=[2.58, 2.62, 2.66],
            steps=180,
            seconds=24.0,
        ),
    ],
    noise=0.02,
    tuned=Tuned(
        settings=WORKERS,
        effect="reseeded",
        speedup=Interval(mid=2.62, low=2.51, high=2.71),
        projected=Projected(speedup=2.4, epochs=10, break_even_steps=12),
        loss="within-envelope",
        confirmed=True,
        step=0.045,
    ),
    candidate=None,
    verdict="",
    operators=[
        OperatorFacts(phase="forward", name="aten::convolution", seconds=0.0081, calls=53, device="cuda"),
        OperatorFacts(phase="forward", name="aten::batch_norm", seconds=0.0029, calls=53, device="cuda"),
        OperatorFacts(phase="forward", name="aten::relu_", seconds=0.0011, calls=49, device="cuda"),
        OperatorFacts(phase="backward", name="aten::convolution_backward", seconds=0.0114, calls=53, device="cuda"),
        OperatorFacts(phase="backward", name="aten::batch_norm_backward", seconds=0.0031, calls=53, device="cuda"),
        OperatorFacts(phase="optimizer", name="aten::_foreach_addcdiv_", seconds=0.0018, calls=2, device="cuda"),
        OperatorFacts(phase="prepare", name="aten::stack", seconds=0.0009, calls=2, device="cpu"),
    ],
    device={
        "busy": 0.31,
        "compute": 0.29,
        "comm_exposed": 0.0,
        "copy_exposed": 0.034,
        "idle": 0.66,
        "idle_by_reason": {"input": 0.62, "launch": 0.03, "sync": 0.01},
        "h2d_exposed": 0.034,
        "h2d_pageable_bytes": 38535168,
        "h2d_pinned_bytes": 0,
        "tensor_core": 0.0,
        "small_kernels": 0.08,
    },
    trace="trace.rank0.json.gz",
    overhead=Overhead(per_step=0.00012, share=0.001),
    unprotected=[],
    moved=["checkpoints/epoch0.pt"],
    step_seconds=window(0.118),
    executions=7,
)
