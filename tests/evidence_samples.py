"""Evidence made to order: a builder with sensible defaults, and a hypothesis strategy that has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from fasttrain_doctor.evidence import (
    OTHER_PARTS,
    Breakdown,
    Device,
    Evidence,
    Floor,
    Gpu,
    Loader,
    Machine,
    Model,
    Optimizer,
    Phase,
)

CPU = Machine(cores=16, logical_cores=16, memory=64 << 30, torch="2.14.1", cpu_flags=("avx2",))
GPU = replace(CPU, gpus=(Gpu("NVIDIA H200", 141 << 30, (9, 0)),), torch_cuda="13.0")

LOADER = Loader(
    num_workers=0,
    prefetch_factor=None,
    pin_memory=False,
    persistent_workers=False,
    batch_size=64,
    length=100,
    dataset="torchvision.datasets.folder.ImageFolder",
    dataset_length=6400,
    iterable=False,
    sampler="RandomSampler",
    file="train.py",
    line=34,
)
MODEL = Model(cls="ResNet", parameters=161, elements=25_000_000, dtype="float32", device="cpu")
ADAM = Optimizer(cls="torch.optim.adamw.AdamW", parameters=161, elements=25_000_000, foreach=None, fused=None)
IDLE = Device(
    busy=0.6,
    compute=0.6,
    comm_exposed=0.0,
    copy_exposed=0.0,
    idle=0.4,
    idle_by_reason={"sync": 0.0},
    h2d_exposed=0.0,
    h2d_pageable_bytes=0,
    h2d_pinned_bytes=0,
)


def breakdown(
    other: Mapping[str, float | None] | None = None, clock: str = "host", **phases: float | None
) -> Breakdown:
    """A step made of the given phases in seconds; those not named took no time, None was not measured."""
    parts = dict.fromkeys(OTHER_PARTS, 0.0) | dict(other or {})
    split: dict[Phase, float | None] = dict.fromkeys(Phase, 0.0) | {
        Phase(k): v for k, v in phases.items() if k != "data"
    }
    split[Phase.OTHER] = (split[Phase.OTHER] or 0.0) + sum(x or 0.0 for x in parts.values())
    both = (split[Phase.IO], split[Phase.PREPARE])
    data = phases.get("data", None if None in both else sum(x or 0.0 for x in both))
    mean = sum(x or 0.0 for x in split.values()) + (0.0 if None not in both else data or 0.0)
    return Breakdown(
        mean=mean,
        median=mean,
        p10=mean,
        p90=mean,
        measured=60,
        warmup=7,
        found_by="loader",
        batches_per_step=1,
        samples_per_step=64,
        clock=clock,
        phases=split,
        data=data,
        other=parts,
        hidden={"io": 0.0, "prepare": 0.0, "h2d": 0.0},
        contention=None,
    )


def evidence(
    other: Mapping[str, float | None] | None = None,
    clock: str = "host",
    machine: Machine = CPU,
    loader: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    update: Mapping[str, Any] | None = None,
    device: Mapping[str, Any] | None = None,
    floor: Floor | None = None,
    spans: Mapping[str, tuple[tuple[str, float], ...]] | None = None,
    contention: float | None = None,
    **phases: float | None,
) -> Evidence:
    """Evidence of a step made of ``phases``; ``loader``, ``model``, ``update``, ``device`` hold what differs from the samples above."""
    return Evidence(
        machine=machine,
        breakdown=replace(breakdown(other, clock, **phases), contention=contention),
        loader=replace(LOADER, **(loader or {})),
        model=replace(MODEL, **(model or {})),
        optimizers=(replace(ADAM, **(update or {})),),
        device=None if device is None else replace(IDLE, **device),
        floor=floor,
        spans=spans or {},
    )


_seconds = st.none() | st.floats(0, 2)
_share = st.floats(0, 1)
_names = st.text(min_size=1, max_size=200)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """Anything a run could produce, plausible or not."""
    gpu = st.builds(Gpu, name=_names, capability=st.none() | st.tuples(st.integers(3, 12), st.integers(0, 9)))
    cores = draw(st.floats(0.1, 512))
    machine = Machine(
        cores=cores,
        logical_cores=int(cores) + 1,
        gpus=tuple(draw(st.lists(gpu, max_size=2))),
        cpu_flags=tuple(draw(st.lists(st.sampled_from(["avx2", "avx512_bf16", "amx_bf16"]), max_size=3))),
    )
    made = breakdown(
        {part: draw(_seconds) for part in ("sync", "logging")},
        draw(st.sampled_from(["host", "device"])),
        **{phase.value: draw(_seconds) for phase in Phase if phase is not Phase.OTHER},
    )
    loader = st.builds(
        lambda n, p: replace(LOADER, num_workers=n, pin_memory=p), n=st.integers(0, 4096), p=st.booleans()
    )
    model = st.builds(
        lambda **changes: replace(MODEL, **changes),
        dtype=st.sampled_from(["float32", "bfloat16"]),
        device=st.sampled_from(["cpu", "cuda", "cuda:1"]),
        autocast=st.none() | st.just("bfloat16"),
        tf32=st.none() | st.booleans(),
    )
    optimizer = st.builds(
        lambda **changes: replace(ADAM, **changes),
        cls=_names,
        parameters=st.integers(0, 10**9),
        foreach=st.none() | st.booleans(),
        fused=st.none() | st.booleans(),
    )
    device = st.builds(
        lambda sync, **changes: replace(IDLE, idle_by_reason={"sync": sync}, **changes),
        sync=_share,
        compute=_share,
        h2d_exposed=_share,
        h2d_pageable_bytes=st.integers(0, 1 << 40),
        h2d_pinned_bytes=st.integers(0, 1 << 40),
        tensor_core=st.none() | _share,
    )
    places = st.lists(st.tuples(_names, st.floats(0, 2)), max_size=2).map(tuple)
    return Evidence(
        machine=machine,
        breakdown=replace(made, contention=draw(st.none() | _share)),
        loader=draw(st.none() | loader),
        model=draw(st.none() | model),
        optimizers=tuple(draw(st.lists(optimizer, max_size=3))),
        device=draw(st.none() | device),
        floor=draw(st.none() | st.builds(Floor, free=_seconds, ready=_seconds, baseline=_seconds)),
        spans=draw(st.fixed_dictionaries({"sync": places, "logging": places})),
    )
