"""The public contract: what ``diagnosis.json`` holds, as types. Failed or unmeasured parts are null, never missing.

Seconds, bytes, shares in 0..1. The JSON Schema that ships is generated from these types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1

Status = Literal["complete", "degraded", "interrupted", "failed"]
LOOKED_AT = ("transforms", "hot_lines", "stages", "reads", "lock", "loop.hot_lines")  # what the look inside shows
VerdictKind = Literal["faster", "no-difference", "slower", "changed-training", "failed", "inconclusive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NotMeasured:
    """Something the reader may look for that is not here, and why."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderRole:
    """A loader that was iterated and what its batches were used for."""

    role: Literal["train", "eval", "other"]
    file: str | None
    line: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """What was taken for the training loop."""

    file: str | None
    lines: tuple[int, int] | None
    loaders: list[LoaderRole]
    hot_lines: list[HotLine] | None = None  # null: not looked at


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """How steps were found and how many stand behind the means."""

    measured: int
    warmup: int
    found_by: Literal["loader", "optimizer", "backward", "update"]
    batches_per_step: float
    samples_per_step: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds per step over the measured steps."""

    mean: float
    median: float
    p10: float
    p90: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Transform:
    """Seconds per sample in one transform."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HotLine:
    """A line of the user's own code and the seconds spent in it and what it calls; ``code`` is its text."""

    file: str
    line: int
    function: str
    seconds: float  # per sample in the loader, per step in the loop
    code: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetching:
    """What fetches consisted of over the window, in seconds per training sample unless said otherwise.

    ``median`` and ``slowest`` are of single samples; ``tail`` is the share of all item time that slow samples take
    beyond three times the median, ``slow_share`` how many of the samples they are. ``busy`` and ``idle`` are shares of the
    workers' time; ``pack`` and ``unpack`` CPU seconds per step of sending batches and of taking them.
    """

    samples: int
    item: float | None
    collate: float | None
    median: float | None
    slowest: float | None
    slowest_index: int | None
    tail: float | None
    slow_share: float | None
    busy: float | None
    idle: float | None
    pack: float | None
    unpack: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reads:
    """Files read per training sample; ``storage`` is the part of ``bytes`` that came from a device, not from memory."""

    opens: float | None
    calls: float | None
    bytes: float | None
    storage: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """The share of the time in which fetches were blocked that went into waiting for a lock, and where most of it did."""

    share: float
    place: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderFacts:
    """The training loader as the script configured it, and what its fetches consist of.

    ``stages`` holds seconds per training sample: sampler, read, decode, transform, item (the rest of ``__getitem__``),
    collate, transfer, pin.
    """

    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    batch_size: int | None
    transforms: list[Transform] | None
    hot_lines: list[HotLine] | None
    stages: dict[str, float | None] | None
    fetches: Fetching | None
    reads: Reads | None
    lock: Lock | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pressure:
    """The machine during the window: shares of the time in which tasks waited, rates per second.

    ``throttled`` is in seconds per second, ``disk_read`` in bytes, ``tree_cpu`` in cores of the script's processes,
    ``growth`` in bytes of their memory per second (null: no clear trend). ``gpu_slowed_by`` names what lowered a GPU's
    clock, with the share of the window in which it did.
    """

    cpu: float | None
    io: float | None
    memory: float | None
    throttled: float | None
    disk_read: float | None
    tree_cpu: float | None
    growth: float | None
    gpu_busy: float | None
    gpu_slowed_by: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugMode:
    """A mode meant for debugging that was on in the training process, and how it was seen."""

    name: str
    how: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Costs once an epoch, in seconds; ``batches`` are those seen in whole epochs, else the loader's length.

    ``steps`` is what its training steps take, projected from their mean and its length, ``whole`` all of it together;
    ``shares`` are those of the parts in the whole.
    """

    batches: int | None
    start: float | None
    eval: float | None
    checkpoint: float | None
    logging: float | None
    other: float | None
    steps: float | None
    whole: float | None
    shares: dict[str, float] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Startup:
    """Seconds before training is under way, in order.

    From the command's start until torch was imported; from there until the first batch was asked for; making the
    workers; waiting for the first batch; computing the first step beyond what a step usually takes.
    """

    imports: float | None
    setup: float | None
    workers: float | None
    first_batch: float | None
    first_step: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Processes that trained together. Phases are those of the slowest.

    ``step`` is the mean step of each, ``work`` the part of it in which it did not wait for the others; ``straggler`` is
    the rank that the others wait for.
    """

    world: int
    reported: int
    step: dict[str, float]
    work: dict[str, float]
    straggler: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FloorFacts:
    """The step with one cached batch replayed, how many times faster that is, and than which step measured in turn."""

    step: float
    ceiling: float
    baseline: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingFacts:
    """A bottleneck: ``lost`` is the share that would go if it did, ``of`` the step or of an epoch; 0 is a warning."""

    code: str
    rule: str
    lost: float
    message: str
    evidence: dict[str, Any]
    fixes: list[str]
    of: Literal["step", "epoch"] = "step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A ratio of times per sample, baseline over candidate, with a 95 % interval."""

    mid: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialFacts:
    """One plan that was tried. ``pair_ratios`` are the single pairs' speedups, in order.

    ``speedup`` and ``pair_ratios`` are over the plan ``over``: empty for the script as it is, else the best plan at
    that time, which holds all of ``settings`` but what is being tried.
    """

    settings: dict[str, Any]
    effect: str
    verdict: VerdictKind
    speedup: Interval | None
    expected: float | None
    pairs: int
    reason: str
    stage: Literal["guided", "search", "confirm"] = "guided"
    pair_ratios: list[float] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0  # wall time this trial took
    over: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Projected:
    """Speedup over the planned run, start-up and epoch starts included. Unknown length: the break-even in steps."""

    speedup: float | None
    epochs: float | None
    break_even_steps: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """A plan that a fresh comparison confirmed and whose training is the one it promised."""

    settings: dict[str, Any]
    effect: str
    speedup: Interval
    projected: Projected | None
    loss: Literal["identical", "within-envelope"]
    confirmed: bool
    step: float | None = None  # seconds per step with it


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """The best plan that was not confirmed, and why."""

    settings: dict[str, Any]
    effect: str
    speedup: Interval | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorFacts:
    """One operator of the deep pass, its own seconds per step."""

    phase: str
    name: str
    seconds: float
    calls: float
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """What watching cost, in seconds per step and as a share of the step."""

    per_step: float
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A file of the user's that the run changed and that could not be put back."""

    path: str
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """One diagnosis, whole."""

    schema: int = SCHEMA
    tool: str
    status: Status
    degraded: list[str]
    not_measured: list[NotMeasured]
    command: list[str]
    script: str
    started: str  # ISO 8601, local time with offset
    seconds: float | None  # wall time of the whole diagnosis
    machine: dict[str, Any]
    clock: Literal["host", "device"] | None
    loop: Loop | None
    steps: Steps | None
    step: StepTime | None
    phases: dict[str, float | None] | None
    data: float | None
    inferred: list[str]
    other: dict[str, float | None] | None
    hidden: dict[str, float | None] | None
    contention: float | None  # share of the loader threads' time spent ready to run but waiting for a CPU
    queued: float | None  # likewise of the training thread's
    trend: float | None  # growth of the step over the window, as a share of its mean; null: no clear trend
    loader: LoaderFacts | None
    epoch: Epoch | None
    startup: Startup | None
    ranks: Ranks | None
    pressure: Pressure | None
    debug: list[DebugMode] | None
    floor: FloorFacts | None
    findings: list[FindingFacts]
    trials: list[TrialFacts]
    noise: float | None  # half-width of the A/A interval, as a share
    tuned: Tuned | None
    candidate: Candidate | None
    verdict: str  # one sentence: what to make of it
    operators: list[OperatorFacts] | None
    device: dict[str, Any] | None
    trace: str | None
    overhead: Overhead | None
    unprotected: list[Change]  # files of the user's that were changed and not put back
    moved: list[str]  # files the run made, moved into the run directory
    step_seconds: list[float]  # every step of the window, warm-up first
    executions: int  # how often the script was started
