"""From the records of a window to what its fetches consisted of: samples, collation, the workers' time. Pure.

A fetch keeps the sum, the median and the slowest of its samples and what exceeds ``TAIL`` times its own median. Over the
window the typical sample is the median of those medians; a fetch whose median is itself slow is put right by what is
known of it: exactly so for one sample or two, and wherever samples are either typical or slow alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from fasttrain_doctor.evidence import TAIL, Fetches
from fasttrain_doctor.partition import gaps_between
from fasttrain_doctor.recorded import Process
from fasttrain_doctor.records import Kind, Record
from fasttrain_doctor.steps import Step, Steps

_MOST_SLOW = 255  # what an ITEMS record can count to


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One fetch of the training loader and its samples, None where the data set's code was not reached."""

    fetch: Record
    items: Record | None

    @property
    def samples(self) -> int:
        return self.fetch.c

    @property
    def span(self) -> int:
        return self.items.t1 - self.items.t0 if self.items is not None else 0


@dataclass(frozen=True, slots=True)
class _Tail:
    """What exceeds the limit among samples: their number, and the ns beyond it."""

    slow: int
    excess: float


def fetches_of(
    process: Process, workers: Sequence[Process], steps: Steps, window_steps: Sequence[Step]
) -> Fetches | None:
    """Return what the training loader's fetches during these steps were made of; None where none was seen.

    Args:
        process: the training process.
        workers: its loader workers.
        steps: all of its steps, with the training loaders.
        window_steps: those to look at, in order.
    """
    if not window_steps:
        return None
    first, last = window_steps[0].start, window_steps[-1].end
    found = [f for p in (process, *workers) for f in _fetches(p, process, steps) if first < f.fetch.t1 <= last]
    whole = [f for f in found if f.items is not None and f.samples]
    samples = sum(f.samples for f in whole)
    if not samples:
        return None
    timed = [f for f in whole if f.items is not None and f.items.a >= 0]
    typical = _typical(timed)
    tails = [_tail(f, typical) for f in timed] if typical is not None else []
    slowest = max((f.items for f in timed if f.items is not None), key=lambda r: r.a, default=None)
    spent = sum(f.span for f in timed)
    shares = _shares(workers, steps, window_steps)
    return Fetches(
        samples=samples,
        item=sum(f.span for f in whole) / 1e9 / samples,
        collate=sum(f.fetch.t1 - f.fetch.t0 - f.span for f in whole) / 1e9 / samples,
        median=None if typical is None else typical / 1e9,
        slowest=None if slowest is None else slowest.a / 1e9,
        slowest_index=slowest.obj - 1 if slowest is not None and slowest.obj else None,
        tail=sum(t.excess for t in tails) / spent if spent else None,
        slow_share=sum(t.slow for t in tails) / sum(f.samples for f in timed) if timed else None,
        busy=None if shares is None else shares[0],
        idle=None if shares is None else shares[1],
        unpack=_unpack(process, steps, window_steps),
        pack=_pack(workers, steps, window_steps),
    )


def _fetches(process: Process, trainer: Process, steps: Steps) -> list[_Fetch]:
    """Return the training loader's fetches of one process: those a worker was started for, or asked for by its next."""
    items = {(r.thread, r.t0): r for r in process.of(Kind.ITEMS)}
    if process is trainer:
        mine = _within(process.of(Kind.FETCH), [r for r in process.of(Kind.NEXT) if r.a in steps.loaders])
    else:
        mine = [r for r in process.of(Kind.FETCH) if _trains(r, steps)]
    return [_Fetch(r, items.get((r.thread, r.t0))) for r in mine]


def _trains(r: Record, steps: Steps) -> bool:
    return not r.obj or r.obj in steps.loaders


def _within(inner: Sequence[Record], outer: Sequence[Record]) -> list[Record]:
    """Return those of ``inner`` that lie in one of ``outer`` on the same thread; both are ordered by start."""
    out = []
    open_: dict[int, Record] = {}
    for r in sorted(chain(outer, inner), key=lambda r: (r.t0, -r.t1)):
        if r.kind is Kind.NEXT:
            open_[r.thread] = r
        elif r.thread in open_ and r.t1 <= open_[r.thread].t1:
            out.append(r)
    return out


def _typical(timed: Iterable[_Fetch]) -> float | None:
    """Return the median of the fetches' medians, each counted once per sample."""
    medians = sorted((f.items.c, f.samples) for f in timed if f.items is not None)
    half = sum(n for _, n in medians) / 2
    for median, n in medians:
        half -= n
        if half <= 0:
            return float(median)
    return None


def _tail(fetch: _Fetch, typical: float) -> _Tail:
    """Return what exceeds the limit in one fetch, from the sum, the slowest, the median and its own tail."""
    r, n = fetch.items, fetch.samples
    assert r is not None
    limit = TAIL * typical
    if r.c > limit:
        return _mostly_slow(fetch.span, n, r.a, r.c, typical)
    own = int(TAIL * r.c)
    if not r.flag:  # none exceeds a limit of its own: the slowest may exceed the window's
        return _Tail(int(r.a > limit), max(0.0, r.a - limit))
    slow = r.flag
    if slow == _MOST_SLOW:
        slow = max(slow, round(r.b / (r.a - own)))  # at the least: as if all were as slow as the slowest
    return _Tail(slow, max(0.0, r.b + slow * (own - limit)))


def _mostly_slow(span: int, n: int, slowest: int, median: int, typical: float) -> _Tail:
    """Return the tail of a fetch whose median is slow, and with it all above; of those below the sum tells.

    Above they are taken to lie midway to the slowest; below, to be typical or as slow as the median.
    """
    below = (n - 1) // 2
    between = max(0, n - below - 2)
    left = span - median - (slowest if n > 1 else 0) - between * (median + slowest) / 2
    slow_below = min(below, max(0, round((left - below * typical) / (median - typical))))
    slow = n - below + slow_below
    return _Tail(slow, max(0.0, span - (below - slow_below) * typical - slow * TAIL * typical))


def _overlap(r: Record, window_steps: Sequence[Step]) -> int:
    """Return the ns of a record that fall into the steps; what lies between epochs belongs to none."""
    first, last = window_steps[0].start, window_steps[-1].end
    aside = sum(max(0, min(r.t1, b) - max(r.t0, a)) for a, b in gaps_between(window_steps))
    return max(0, min(r.t1, last) - max(r.t0, first) - aside)


def _shares(workers: Sequence[Process], steps: Steps, window_steps: Sequence[Step]) -> tuple[float, float] | None:
    """Return the shares of the workers' time in fetches, and blocked between two: waiting for the next one's order."""
    fetching = between = blocked = 0.0
    for r in chain.from_iterable(p.of(Kind.FETCH, Kind.BETWEEN) for p in workers):
        if not _trains(r, steps):
            continue
        inside = _overlap(r, window_steps)
        if r.kind is Kind.FETCH:
            fetching += inside
        elif inside:
            between += inside
            idle = max(0, r.t1 - r.t0 - (r.cpu1 - r.cpu0) - max(0, r.a))
            blocked += idle * inside / (r.t1 - r.t0)
    total = fetching + between
    return (fetching / total, blocked / total) if between else None


def _unpack(process: Process, steps: Steps, window_steps: Sequence[Step]) -> float | None:
    """Return the training thread's CPU per step in ``next`` of training loaders with workers."""
    served = {r.obj for r in process.of(Kind.ITERATOR) if r.b}
    first, last = window_steps[0].start, window_steps[-1].end
    taken = [
        r.cpu1 - r.cpu0
        for r in process.of(Kind.NEXT)
        if r.a in steps.loaders and r.obj in served and r.thread == steps.thread and first <= r.t0 < last
    ]
    return sum(taken) / 1e9 / len(window_steps) if taken else None


def _pack(workers: Sequence[Process], steps: Steps, window_steps: Sequence[Step]) -> float | None:
    """Return the CPU per step of the workers' sending threads."""
    first, last = window_steps[0].start, window_steps[-1].end
    sent = [r.b for p in workers for r in p.of(Kind.BETWEEN) if _trains(r, steps) and first < r.t1 <= last]
    return sum(sent) / 1e9 / len(window_steps) if sent else None
