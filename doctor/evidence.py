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
class HotLine:
    """A line of the user's own code and the wall time spent in it, callees outside the user's code included."""

    file: str
    line: int
    function: str
    seconds: float  # per sample in the loader, per step in the loop

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


# What the time of one sample goes to, in order: the sampler's draw, opening and reading (blocked in the kernel), decoding
# (in an imaging, audio or compression library), the transforms, the rest of __getitem__, collation, sending the batch
# from worker to main process (pickling and unpickling), copying it into pinned memory.
STAGES = ("sampler", "read", "decode", "transform", "item", "collate", "transfer", "pin")


@dataclass(frozen=True, slots=True)
class Look:
    """What a short look inside showed: stacks sampled in every process, transforms timed one by one.

    ``stages`` hold seconds per training sample, None where a stage could not be seen; ``transforms`` likewise, in order
    of their first call. ``blocked_on_lock`` is the share, in 0..1, of the time in which fetches were blocked that went
    into waiting for a lock. ``opens``, ``read_calls`` and ``read_bytes`` are per training sample.
    """

    samples: int  # training samples fetched meanwhile, in all processes
    steps: int
    stages: Mapping[str, float | None] = field(default_factory=dict)
    transforms: tuple[tuple[str, float], ...] | None = None
    item_lines: tuple[HotLine, ...] = ()
    loop_lines: tuple[HotLine, ...] = ()
    blocked_on_lock: float | None = None
    lock_place: str | None = None  # file:line of the user's that waited for the lock most
    opens: float | None = None
    read_calls: float | None = None
    read_bytes: float | None = None
    storage_bytes: float | None = None  # per sample, of read_bytes: what came from a device, not from the page cache


@dataclass(frozen=True, slots=True)
class Fetches:
    """What the always-on records say of the training loader's fetches in the window.

    Seconds per training sample unless said otherwise; ``tail`` is the share, in 0..1, of all item time that is more than
    ``TAIL`` times the median sample: what would go if no sample were slow.
    """

    samples: int
    item: float | None  # __getitem__
    collate: float | None
    median: float | None  # of one sample
    slowest: float | None  # sample, in seconds
    slowest_index: int | None  # its index in the data set
    tail: float | None
    slow_share: float | None  # of samples that are slow, in 0..1; None: not known
    busy: float | None = None  # share of the workers' time spent fetching; None: no workers
    idle: float | None = None  # share of it spent waiting for work, because the queue was full
    unpack: float | None = None  # CPU seconds per step the training thread spends taking batches out of the queue
    pack: float | None = None  # CPU seconds per step of all workers that pickling and sending takes


TAIL = 3.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """The machine during the window, from the parent's samples. Shares in 0..1, rates per second."""

    cpu: float | None = (
        None  # share of the time in which some task waited for a CPU (PSI; of the control group, if any)
    )
    io: float | None = None  # likewise for storage
    memory: float | None = None
    throttled: float | None = None  # seconds per second that the control group's quota held it back
    disk_read: float | None = None  # bytes per second from devices
    tree_cpu: float | None = None  # cores kept busy by the script's processes
    growth: float | None = None  # bytes of resident memory per second, of the script's processes; None: no clear trend
    gpu_slowed_by: tuple[tuple[str, float], ...] = ()  # reason -> share of the samples; idle and user settings left out
    gpu_busy: float | None = None


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What an epoch costs besides its training steps, in seconds; None: not seen in the window."""

    batches: int | None  # as seen in whole epochs, else the loader's length
    start: float | None = None  # making the iterator and its workers, and the first batch beyond a usual wait
    eval: float | None = None
    checkpoint: float | None = None
    logging: float | None = None
    other: float | None = None  # all else between two epochs


@dataclass(frozen=True, slots=True)
class Copies:
    """Host-to-device copies the script issued per step; seconds are the host's."""

    pageable: float  # seconds in copies from pageable memory
    blocking: float  # seconds in copies from pinned memory without non_blocking
    pageable_bytes: float
    blocking_bytes: float
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Debug:
    """A mode meant for debugging that was on in the training process, e.g. "anomaly detection"; how it was seen."""

    name: str
    how: str


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
    look: Look | None = None
    fetches: Fetches | None = None
    pressure: Pressure | None = None
    epoch: EpochCost | None = None
    copies: Copies | None = None
    debug: tuple[Debug, ...] | None = None  # None: not asked
    threads: int | None = None  # intra-op threads of the training process at the end of the window
    worker_threads: int | None = None  # of a worker, torch's or OpenCV's; torch sets its own to 1, a script may not
    queued: float | None = None  # share of the step that the training thread was runnable but waited for a CPU
    trend: float | None = None  # growth of the step over the window, as a share of the mean; None: no clear trend
    batch_tensors: int | None = None  # tensors in one batch
    batch_objects: int | None = None  # Python objects in one batch that are no tensors (numbers, strings)

    def share_of_part(self, part: str) -> float | None:
        """Return the share of the mean step, in 0..1, that a part of other takes; None: not measured.

        On the device's clock no more than the device stood in other: a pause of the host that it works through is free.
        """
        step, seconds = self.breakdown, self.breakdown.other.get(part)
        if seconds is None or step.mean <= 0:
            return None
        if step.clock == "device":
            seconds = min(seconds, step.phases.get(Phase.OTHER) or 0.0)
        return min(1.0, max(0.0, seconds / step.mean))

    def operator_calls(self) -> tuple[float, float] | None:
        """Return how many CPU operators forward and backward call per step, and the seconds of its own that each takes.

        None where the deep pass did not run, or saw a device.
        """
        mine = [o for o in self.operators if o.phase in (Phase.FORWARD, Phase.BACKWARD) and o.device == "cpu"]
        calls = sum(o.calls for o in mine)
        return (calls, sum(o.seconds for o in mine) / calls) if calls > 0 else None

    def share_of_epoch(self, seconds: float | None) -> float | None:
        """Return which share of an epoch ``seconds`` beside its steps are; None where either is not known."""
        epoch, step = self.epoch, self.breakdown
        if seconds is None or epoch is None or epoch.batches is None or step.batches_per_step <= 0:
            return None
        steps = epoch.batches / step.batches_per_step * step.mean
        whole = steps + sum(x or 0.0 for x in (epoch.start, epoch.eval, epoch.checkpoint, epoch.logging, epoch.other))
        return min(1.0, seconds / whole) if whole > 0 else None
