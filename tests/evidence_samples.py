"""Evidence made to order: a builder with sensible defaults, and a hypothesis strategy that has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from fasttrain_doctor.evidence import (
    OTHER_PARTS,
    STAGES,
    Breakdown,
    Copies,
    Debug,
    Device,
    EpochCost,
    Evidence,
    Fetches,
    Floor,
    Gpu,
    HotLine,
    Loader,
    Look,
    Machine,
    Model,
    Operator,
    Optimizer,
    Phase,
    Pressure,
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

# What nothing is wrong with: tests name only what they change, by ``replace``.
LOOK = Look(
    samples=640,
    steps=10,
    stages=dict.fromkeys(STAGES, 0.0),
    transforms=(),
    blocked_on_lock=0.0,
    opens=0.0,
    read_calls=0.0,
    read_bytes=0.0,
    storage_bytes=0.0,
)
FETCHES = Fetches(
    samples=3840,
    item=0.0004,
    collate=0.00001,
    median=0.0004,
    slowest=0.0006,
    slowest_index=17,
    tail=0.0,
    slow_share=0.0,
)
PRESSURE = Pressure(cpu=0.0, io=0.0, memory=0.0, throttled=0.0, disk_read=0.0, tree_cpu=1.0)
EPOCH = EpochCost(batches=100)
COPIES = Copies(pageable=0.0, blocking=0.0, pageable_bytes=0.0, blocking_bytes=0.0)


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
    look: Look | None = None,
    fetches: Fetches | None = None,
    pressure: Pressure | None = None,
    epoch: EpochCost | None = None,
    copies: Copies | None = None,
    debug: tuple[Debug, ...] | None = None,
    threads: int | None = None,
    worker_threads: int | None = None,
    queued: float | None = None,
    trend: float | None = None,
    batch_tensors: int | None = None,
    batch_objects: int | None = None,
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
        look=look,
        fetches=fetches,
        pressure=pressure,
        epoch=epoch,
        copies=copies,
        debug=debug,
        threads=threads,
        worker_threads=worker_threads,
        queued=queued,
        trend=trend,
        batch_tensors=batch_tensors,
        batch_objects=batch_objects,
    )


_seconds = st.none() | st.floats(0, 2)
_share = st.floats(0, 1)
_names = st.text(min_size=1, max_size=200)
_count = st.integers(0, 1 << 40)
_maybe_share = st.none() | _share
_rate = st.none() | st.floats(0, 1e12)
_lines = st.lists(
    st.builds(HotLine, file=_names, line=st.integers(0, 10**6), function=_names, seconds=st.floats(0, 2)), max_size=3
).map(tuple)
_looks = st.builds(
    Look,
    samples=_count,
    steps=_count,
    stages=st.dictionaries(st.sampled_from(STAGES), _seconds),
    transforms=st.none() | st.lists(st.tuples(_names, st.floats(0, 2)), max_size=3).map(tuple),
    item_lines=_lines,
    loop_lines=_lines,
    blocked_on_lock=_maybe_share,
    lock_place=st.none() | _names,
    opens=_rate,
    read_calls=_rate,
    read_bytes=_rate,
    storage_bytes=_rate,
)
_fetches = st.builds(
    Fetches,
    samples=_count,
    item=_seconds,
    collate=_seconds,
    median=_seconds,
    slowest=_seconds,
    slowest_index=st.none() | _count,
    tail=_maybe_share,
    slow_share=_maybe_share,
    busy=_maybe_share,
    idle=_maybe_share,
    unpack=_seconds,
    pack=_seconds,
)
_pressures = st.builds(
    Pressure,
    cpu=_maybe_share,
    io=_maybe_share,
    memory=_maybe_share,
    throttled=st.none() | st.floats(0, 512),
    disk_read=_rate,
    tree_cpu=st.none() | st.floats(0, 512),
    growth=st.none() | st.floats(-1e12, 1e12),
    gpu_slowed_by=st.lists(st.tuples(_names | st.sampled_from(["power-cap", "thermal-software"]), _share)).map(tuple),
    gpu_busy=_maybe_share,
)
_epochs = st.builds(
    EpochCost,
    batches=st.none() | _count,
    start=_seconds,
    eval=_seconds,
    checkpoint=_seconds,
    logging=_seconds,
)
_copies = st.builds(
    Copies,
    pageable=st.floats(0, 2),
    blocking=st.floats(0, 2),
    pageable_bytes=st.floats(0, 1e12),
    blocking_bytes=st.floats(0, 1e12),
    place=st.none() | _names,
)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """Anything a run could produce, plausible or not."""
    gpu = st.builds(Gpu, name=_names, capability=st.none() | st.tuples(st.integers(3, 12), st.integers(0, 9)))
    cores = draw(st.floats(0.1, 512))
    machine = Machine(
        cores=cores,
        logical_cores=int(cores) + 1,
        memory_free=draw(st.none() | _count),
        gpus=tuple(draw(st.lists(gpu, max_size=2))),
        cpu_flags=tuple(draw(st.lists(st.sampled_from(["avx2", "avx512_bf16", "amx_bf16"]), max_size=3))),
    )
    made = breakdown(
        {part: draw(_seconds) for part in OTHER_PARTS},
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
        lambda sync, dispatch, **changes: replace(IDLE, idle_by_reason={"sync": sync, "dispatch": dispatch}, **changes),
        sync=_share,
        dispatch=_share,
        compute=_share,
        h2d_exposed=_share,
        h2d_pageable_bytes=st.integers(0, 1 << 40),
        h2d_pinned_bytes=st.integers(0, 1 << 40),
        tensor_core=st.none() | _share,
    )
    operator = st.builds(
        Operator,
        phase=st.sampled_from(Phase),
        name=_names,
        seconds=st.floats(0, 2),
        calls=st.floats(0, 1e6),
        device=st.sampled_from(["cpu", "cuda"]),
    )
    places = st.lists(st.tuples(_names, st.floats(0, 2)), max_size=2).map(tuple)
    return Evidence(
        machine=machine,
        breakdown=replace(made, contention=draw(st.none() | _share)),
        loader=draw(st.none() | loader),
        model=draw(st.none() | model),
        optimizers=tuple(draw(st.lists(optimizer, max_size=3))),
        device=draw(st.none() | device),
        operators=tuple(draw(st.lists(operator, max_size=3))),
        floor=draw(st.none() | st.builds(Floor, free=_seconds, ready=_seconds, baseline=_seconds)),
        spans=draw(st.fixed_dictionaries(dict.fromkeys(OTHER_PARTS, places))),
        look=draw(st.none() | _looks),
        fetches=draw(st.none() | _fetches),
        pressure=draw(st.none() | _pressures),
        epoch=draw(st.none() | _epochs),
        copies=draw(st.none() | _copies),
        debug=draw(st.none() | st.lists(st.builds(Debug, name=_names, how=_names), max_size=2).map(tuple)),
        threads=draw(st.none() | st.integers(1, 4096)),
        worker_threads=draw(st.none() | st.integers(1, 4096)),
        queued=draw(_maybe_share),
        trend=draw(st.none() | st.floats(-2, 1e6)),
        batch_tensors=draw(st.none() | st.integers(0, 10**6)),
        batch_objects=draw(st.none() | st.integers(0, 10**6)),
    )
