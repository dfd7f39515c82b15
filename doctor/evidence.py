"""What rules and fixes may look at: plain values, no file, no clock. Imported in the user's process.

Seconds, bytes, shares in 0..1. ``None`` means not measured, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Phase(StrEnum):
    """The parts a step is split into; they sum to the step."""

    IO = "io"
    PREPARE = "prepare"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


OTHER_PARTS = ("sync", "checkpoint", "logging", "collective", "eval", "lock", "gc", "python")


class Effect(IntEnum):
    """What a fix may change about the training; a higher one asks for more consent."""

    EXACT = 0  # bit-identical batches, losses and weights, sooner
    RESEEDED = 1  # same distribution, other random numbers
    ROUNDING = 2  # same mathematics, other order of float operations
    PRECISION = 3  # lower precision somewhere
    TRAINING = 4  # another training


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator as NVML and torch describe it. ``capability`` is (major, minor), memory in bytes."""

    name: str
    memory: int | None = None
    capability: tuple[int, int] | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the script ran. ``cores`` is what it may really use: affinity and cgroup quota, a fraction is possible."""

    cores: float
    logical_cores: int
    memory: int | None = None  # bytes the process may use (cgroup limit or RAM)
    memory_free: int | None = None
    shm_free: int | None = None
    gpus: tuple[Gpu, ...] = ()
    platform: str = ""
    python: str = ""
    torch: str | None = None
    torch_cuda: str | None = None
    cpu_flags: tuple[str, ...] = ()  # of those that matter: avx2, avx512f, avx512_bf16, amx_bf16, ...
    interop_threads: int | None = None
    intraop_threads: int | None = None


@dataclass(frozen=True, slots=True)
class Loader:
    """The training loader, as it was when its first iterator was made."""

    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    batch_size: int | None
    length: int | None  # batches per epoch; None: unknown
    dataset: str  # qualified class name
    dataset_length: int | None
    iterable: bool  # an IterableDataset
    sampler: str | None
    file: str | None  # where it was made, in the user's code
    line: int | None
    kind: str = "torch"  # "torch" or the class of a foreign loader
    start_method: str | None = None
    rng_untouched: bool | None = None  # fetching left torch's, numpy's and random's state as they were
    worker_init_fn: bool = False
    picklable: bool | None = None
    batch_bytes: int | None = None
    batch_dtype: str | None = None  # of the largest tensor, e.g. "uint8"
    batch_shape: tuple[int, ...] | None = None
    shards: int | None = None
    transforms: tuple[str, ...] | None = None  # qualified classes in the dataset's `transform`, in order
    collate: str | None = None  # qualified name of the collate function
    moved: bool | None = None  # the largest tensor of a batch was copied to the device as it came


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One optimizer that stepped during the window."""

    cls: str  # qualified class name, e.g. "torch.optim.adamw.AdamW"
    parameters: int  # number of tensors
    elements: int
    foreach: bool | None
    fused: bool | None
    capturable: bool | None = None
    differentiable: bool | None = None
    device: str = "cpu"
    dtypes: tuple[str, ...] = ("float32",)


@dataclass(frozen=True, slots=True)
class Model:
    """The root module of the training forward."""

    cls: str
    parameters: int
    elements: int
    dtype: str
    device: str  # "cpu", "cuda", ...
    autocast: str | None = None  # dtype the script's own autocast uses, None: none seen
    grad_scaler: bool = False
    compiled: bool = False
    tf32: bool | None = None  # None: no CUDA
    modules: int = 0
    conv_elements: int = 0
    batch_norms: int = 0


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where a step's time goes. Means in seconds over the measured steps; ``phases`` sum to ``mean``."""

    mean: float
    median: float
    p10: float
    p90: float
    measured: int
    warmup: int
    found_by: str  # "loader", "optimizer", "backward" or "update"
    batches_per_step: float
    samples_per_step: float | None
    clock: str  # "host" or "device"
    phases: Mapping[Phase, float | None]
    data: float | None  # io + prepare, also where they cannot be told apart
    other: Mapping[str, float | None]  # keys: OTHER_PARTS
    hidden: Mapping[str, float | None]  # worker-seconds a step behind compute: io, prepare, h2d
    contention: float | None  # share of the loader threads' wall time spent runnable but waiting for a CPU
    inferred: tuple[str, ...] = ()

    def share(self, phase: Phase) -> float | None:
        """Return a phase's share of the mean step, or None when it was not measured."""
        seconds = self.phases.get(phase)
        return None if seconds is None or self.mean <= 0 else seconds / self.mean


@dataclass(frozen=True, slots=True)
class Floor:
    """Replay floors in seconds per step: one cached batch from the main process, and from two workers."""

    free: float | None  # if data cost nothing
    ready: float | None  # if data were ready in workers
    baseline: float | None  # the step measured in the same blocks

    @property
    def ceiling(self) -> float | None:
        """At most this many times faster from the data side."""
        best = min((x for x in (self.free, self.ready) if x is not None), default=None)
        return None if best is None or self.baseline is None or best <= 0 else self.baseline / best

    @property
    def bound(self) -> float | None:
        """The share of the step, in 0..1, that would go if data cost nothing."""
        ceiling = self.ceiling
        return None if ceiling is None else 1 - 1 / max(ceiling, 1.0)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the deep pass: seconds of its own (children excluded) per step, calls per step."""

    phase: Phase
    name: str
    seconds: float
    calls: float
    device: str  # "cpu" or "cuda"


@dataclass(frozen=True, slots=True)
class Device:
    """What the deep pass says of the accelerator, shares of its steady window (TRACE definitions in doctor/trace.py)."""

    busy: float
    compute: float
    comm_exposed: float
    copy_exposed: float
    idle: float
    idle_by_reason: Mapping[str, float]
    h2d_exposed: float
    h2d_pageable_bytes: int
    h2d_pinned_bytes: int
    tensor_core: float | None = None
    small_kernels: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything a rule or a fix may judge by."""

    machine: Machine
    breakdown: Breakdown
    loader: Loader | None = None
    optimizers: tuple[Optimizer, ...] = ()
    model: Model | None = None
    floor: Floor | None = None
    operators: tuple[Operator, ...] = ()
    device: Device | None = None
    packages: frozenset[str] = frozenset()  # importable in the user's interpreter, of those some fix needs
    framework: str | None = None  # "lightning", "transformers", "accelerate", ... when it drives the loop
    world: int = 1
    spans: Mapping[str, tuple[tuple[str, float], ...]] = field(
        default_factory=dict
    )  # part of other -> (file:line, s/step)
