"""The public contract: what ``diagnosis.json`` holds, as types. Failed or unmeasured parts are null, never missing.

Seconds, bytes, shares in 0..1. The JSON Schema that ships is generated from these types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1

Status = Literal["complete", "degraded", "interrupted", "failed"]
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
class LoaderFacts:
    """The training loader as the script configured it."""

    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    batch_size: int | None
    transforms: list[Transform] | None
    hot_lines: list[dict[str, Any]] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Costs once an epoch, in seconds; batches is the loader's length."""

    batches: int | None
    start: float | None
    eval: float | None
    checkpoint: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Startup:
    """Seconds before the first step: importing torch and all else until the first batch was asked for, first batch."""

    imports: float | None
    first_batch: float | None
    workers: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Processes that trained together. Phases are those of the slowest."""

    world: int
    reported: int
    step: dict[str, float]
    straggler: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FloorFacts:
    """The step with one cached batch replayed, and how many times faster that is."""

    step: float
    ceiling: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingFacts:
    """A bottleneck: ``lost`` is the share of the step that would go if it did."""

    code: str
    rule: str
    lost: float
    message: str
    evidence: dict[str, Any]
    fixes: list[str]


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
    contention: float | None
    loader: LoaderFacts | None
    epoch: Epoch | None
    startup: Startup | None
    ranks: Ranks | None
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
