"""What training costs apart from its steps: before the first one, and between two epochs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from fasttrain_doctor.diagnosis import Epoch, Startup
from fasttrain_doctor.evidence import EpochCost
from fasttrain_doctor.gather import Watched
from fasttrain_doctor.partition import gaps_between
from fasttrain_doctor.records import Call, Kind, Record, Span


def startup_of(watched: Watched, started: float) -> Startup:
    """Return the costs before the first step.

    Args:
        watched: the understood run.
        started: when the command was started, in seconds of the records' clock.
    """
    process, thread = watched.process, watched.steps.thread
    asked = [r for r in process.of(Kind.NEXT) if r.a in watched.steps.loaders]
    made = [r for r in process.of(Kind.ITERATOR) if r.a in watched.steps.loaders]
    computed = [r for r in process.of(Kind.FORWARD, Kind.BACKWARD) if r.thread == thread]
    begin = min((r.t0 for r in (*made[:1], *asked[:1])), default=computed[0].t0 if computed else None)
    imported = next((int(f["clock"]) for f in process.facts_of("process") if "clock" in f), None)
    return Startup(
        imports=None if imported is None else max(0.0, imported / 1e9 - started),
        setup=None if begin is None or imported is None else max(0.0, (begin - imported) / 1e9),
        workers=_seconds(made[0]) if made and made[0].b else None,
        first_batch=_seconds(asked[0]) if asked else None,
        first_step=_first_step(watched, computed),
    )


def _first_step(watched: Watched, computed: Sequence[Record]) -> float | None:
    """Return what computing the first step took beyond a usual step's computing: lazy initialisation, compiling."""
    updates = watched.process.of(Kind.OPTIMIZER) or watched.process.of(Kind.BACKWARD)
    ends = [r.t1 for r in updates if r.thread == watched.steps.thread and computed and r.t1 > computed[0].t0]
    if not ends:
        return None
    first, last = computed[0].t0, min(ends)
    breakdown = watched.breakdown
    usual = breakdown.mean - (breakdown.data or 0.0)
    # Batches that are accumulated are asked for in between.
    waited = [r for r in watched.process.of(Kind.NEXT) if r.thread == watched.steps.thread and first <= r.t0 < last]
    return max(0.0, (last - first) / 1e9 - sum(_seconds(r) for r in waited) - usual)


def epoch_cost(watched: Watched) -> EpochCost:
    """Return what an epoch costs besides its steps: means over the ends of epochs inside the window."""
    steps = watched.steps
    mine = [r for r in watched.process.records if r.thread == steps.thread]
    gaps = gaps_between(watched.window.every)
    inside = [[r for r in mine if a <= r.t0 < b] for a, b in gaps]
    spent = [_Gap(records, steps.loaders) for records in inside]
    start = epoch_start(watched)

    def mean(values: Sequence[float]) -> float | None:
        """Return the mean over all ends of epochs; None where none of them had any."""
        return statistics.fmean(values) if any(values) else None

    rest = [max(0.0, (b - a) / 1e9 - gap.known) for (a, b), gap in zip(gaps, spent, strict=True)]
    return EpochCost(
        batches=_batches(watched),
        start=start,
        eval=mean([gap.eval for gap in spent]),
        checkpoint=mean([gap.checkpoint for gap in spent]),
        logging=mean([gap.logging for gap in spent]),
        other=mean(rest),
    )


def _batches(watched: Watched) -> int | None:
    """Return the batches of an epoch: the loader's length, unless whole epochs were seen to take others.

    A script may leave an epoch early, and an iterable data set has no length.
    """
    length = watched.loader.length if watched.loader is not None else None
    every = watched.window.every
    ends = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(every)) if b.start > a.end)]
    seen = [sum(step.batches for step in every[a:b]) for a, b in pairwise(ends)]
    if not seen:
        return length
    usual = round(statistics.median(seen))
    # The batches of an update that the epoch's end left undone belong to no step.
    return length if length is not None and 0 <= length - usual < 2 * watched.breakdown.batches_per_step else usual


def epoch_of(watched: Watched) -> Epoch:
    """Return the epoch as it is made public: its costs, and what a whole one takes by the mean step and its length."""
    cost, breakdown = epoch_cost(watched), watched.breakdown
    parts = {
        "start": cost.start, "eval": cost.eval, "checkpoint": cost.checkpoint, "logging": cost.logging,
        "other": cost.other,
    }  # fmt: skip
    steps = whole = shares = None
    if cost.batches and breakdown.batches_per_step > 0:
        steps = cost.batches / breakdown.batches_per_step * breakdown.mean
        whole = steps + sum(seconds or 0.0 for seconds in parts.values())
        known = {"steps": steps, **parts}
        shares = {name: seconds / whole for name, seconds in known.items() if seconds is not None}
    return Epoch(batches=cost.batches, **parts, steps=steps, whole=whole, shares=shares)


class _Gap:
    """What one end of an epoch consisted of, in seconds."""

    def __init__(self, records: Sequence[Record], training: Sequence[int]) -> None:
        self.checkpoint = sum(_seconds(r) for r in records if _spans(r, Span.CHECKPOINT))
        self.logging = sum(_seconds(r) for r in records if _spans(r, Span.LOGGING))
        paused = sum(_seconds(r) for r in records if r.kind is Kind.MARK)
        made = sum(_seconds(r) for r in records if r.kind is Kind.ITERATOR and r.a in training)
        ended = sum(_seconds(r) for r in records if r.kind is Kind.NEXT and r.a in training)
        looks = [r for r in records if _looks(r, training)]
        self.eval = 0.0
        if looks:
            first, last = min(r.t0 for r in looks), max(r.t1 for r in looks)
            apart = [r for r in records if first <= r.t0 and r.t1 <= last and r.kind in (Kind.SPAN, Kind.MARK)]
            kept = (Span.CHECKPOINT, Span.LOGGING)
            out = sum(_seconds(r) for r in apart if r.kind is Kind.MARK or any(_spans(r, span) for span in kept))
            self.eval = max(0.0, (last - first) / 1e9 - out)
        self.known = self.checkpoint + self.logging + paused + made + ended + self.eval


def _looks(r: Record, training: Sequence[int]) -> bool:
    """Whether this is a sign of an evaluation: another loader's batch, or a forward without gradients."""
    if r.kind is Kind.FORWARD:
        return not r.flag & Call.GRAD
    return r.kind in (Kind.NEXT, Kind.ITERATOR) and r.a not in training


def _spans(r: Record, span: Span) -> bool:
    return r.kind is Kind.SPAN and r.flag == span


def _seconds(r: Record) -> float:
    return (r.t1 - r.t0) / 1e9


def epoch_start(watched: Watched) -> float | None:
    """Return what making the iterator and waiting for its first batch takes beyond a usual wait.

    The first epoch's start pays for what is lazy as well. It stands for the others only where they were not seen and
    workers are started anew for each.
    """
    process, steps, loader = watched.process, watched.steps, watched.loader
    asked = [r for r in process.of(Kind.NEXT) if r.a in steps.loaders and r.flag == 0]
    made = [r for r in process.of(Kind.ITERATOR) if r.a in steps.loaders]
    if not made or not asked:
        return None
    restarts = loader is not None and loader.num_workers > 0 and not loader.persistent_workers
    usual = statistics.median(_seconds(r) for r in asked)
    costs = []
    for m in made[1:] or (made if restarts else []):
        first = next((r for r in asked if r.obj == m.obj and r.t0 >= m.t1), None)
        if first is not None:
            costs.append(_seconds(m) + max(0.0, _seconds(first) - usual))
    return statistics.fmean(costs) if costs else None
