"""What a report shows, as types: every number already worded, every chart's data already chosen.

Made by ``view.py``; console and HTML only arrange it. ``how`` says how a number was obtained (its tooltip).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fasttrain_doctor.diagnosis import Interval
from fasttrain_doctor.reports.sentence import Tone


@dataclass(frozen=True, slots=True)
class Fact:
    """One labelled value."""

    label: str
    text: str
    how: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something the reader must know before trusting or keeping what follows; the gravest come first."""

    grave: bool
    title: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a bar. ``key`` names its colour; ``width`` is its share of the bar."""

    key: str
    label: str
    seconds: float
    width: float
    text: str
    share: str
    how: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A step drawn to scale: ``length`` is its share of the longest bar's time."""

    label: str
    text: str
    length: float
    segments: tuple[Segment, ...]
    how: str


@dataclass(frozen=True, slots=True)
class Strip:
    """A trial's pairs on a scale shared by the report; every position is a share of the strip's width (log scale)."""

    dots: tuple[float, ...]
    low: float
    mid: float
    high: float
    same: float  # where 1x lies
    noise: tuple[float, float] | None  # the A/A interval around it
    ends: tuple[str, str]
    said: str  # in words, for those who cannot see it


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial, worded."""

    what: str
    fixes: tuple[str, ...]
    stage: str
    verdict: str
    key: str  # the verdict's kind, for colour
    speedup: str
    interval: Interval | None
    ratios: tuple[float, ...]
    effect: str
    effect_meaning: str
    expected: str
    expected_ratio: float | None
    pairs: str
    seconds: str
    cost: float
    total: float | None  # speedup over the script as it is
    note: str
    strip: Strip | None


@dataclass(frozen=True, slots=True)
class Action:
    """One finding and what was tried against it."""

    code: str
    rule: str
    lost: str  # "up to 49% of the step", or that it costs no time
    lost_share: float
    message: str
    evidence: tuple[Fact, ...]
    tried: tuple[Tried, ...]
    untried: tuple[Fact, ...]  # with the reason
    command: str
    gain: float  # the best verified speedup, 0 when there is none


@dataclass(frozen=True, slots=True)
class Plan:
    """The tuned plan, or the candidate that was not confirmed."""

    confirmed: bool
    lines: tuple[str, ...]
    speedup: str
    facts: tuple[Fact, ...]
    effect: str
    effect_meaning: str
    note: str
    command: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps in order. ``kinds`` holds ``warm-up``, ``steady`` or ``outlier`` for each."""

    seconds: tuple[float, ...]
    kinds: tuple[str, ...]
    mean: float
    caption: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table; ``bars`` holds for each row a share to draw, or nothing."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a hardware chart: seconds since the first reading, and readings (None: a gap)."""

    name: str
    times: tuple[float, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves of one unit, drawn together."""

    key: str
    title: str
    unit: str
    curves: tuple[Curve, ...]
    how: str


@dataclass(frozen=True, slots=True)
class ReportView:
    """A whole report."""

    script: str
    tone: Tone
    kicker: str
    verdict: str
    started: str
    command: str
    headline: str  # one line of what was measured, for the console
    place: str  # loop and loader, file:line
    phase_line: tuple[str, ...]
    floor_line: str
    inside_lines: tuple[str, ...]  # of the loader, for the console
    outside_lines: tuple[str, ...]  # start-up and epochs, ranks
    alerts: tuple[Alert, ...]
    facts: tuple[Fact, ...]
    bars: tuple[Bar, ...]
    phases: Table | None
    plan: Plan | None
    actions: tuple[Action, ...]
    rest: tuple[Fact, ...]  # where there is nothing to do: what speaks for that
    trials: tuple[Tried, ...]
    noise: float | None
    noise_text: str
    timeline: Timeline | None
    loop_lines: Table | None
    loader: tuple[Fact, ...]
    sample: Bar | None  # by stages
    tail: str  # what slow samples cost
    stages: Table | None
    transforms: Table | None
    hot_lines: Table | None
    outside: tuple[Bar, ...]  # start-up and an epoch
    outside_facts: tuple[Fact, ...]
    operators: tuple[Table, ...]
    device: tuple[Fact, ...]
    hardware: tuple[Chart, ...]
    pressure: tuple[Fact, ...]
    not_measured: tuple[Fact, ...]
    absent: dict[str, str] = field(default_factory=dict)  # section -> why it holds nothing
    environment: tuple[Fact, ...] = ()
    files: tuple[str, ...] = ()
    reproduce: tuple[Fact, ...] = ()
    next_command: str | None = None
