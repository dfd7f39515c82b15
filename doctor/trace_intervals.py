"""Sets of half-open time intervals as two sorted arrays: union, difference, intersection, length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint intervals in order: ``start[i] < end[i] < start[i + 1]``. Times in the unit they came in."""

    start: Floats
    end: Floats

    @property
    def length(self) -> float:
        """The time covered."""
        return float((self.end - self.start).sum())

    def clip(self, low: float, high: float) -> Intervals:
        """Keep what lies inside ``[low, high)``."""
        return _keep(np.clip(self.start, low, high), np.clip(self.end, low, high))

    def gaps(self, low: float, high: float) -> Intervals:
        """Return what of ``[low, high)`` is not covered."""
        inside = self.clip(low, high)
        return _keep(np.concatenate([[low], inside.end]), np.concatenate([inside.start, [high]]))

    def minus(self, other: Intervals) -> Intervals:
        """Return what of this is not in ``other``."""
        return _sweep(self, other, wanted=1)

    def both(self, other: Intervals) -> Intervals:
        """Return what lies in this and in ``other``."""
        return _sweep(self, other, wanted=3)

    def contains(self, times: Floats) -> NDArray[np.bool_]:
        """Say of each time whether it lies in one of the intervals."""
        if not len(self.start):
            return np.zeros(len(times), dtype=np.bool_)
        at = np.searchsorted(self.start, times, side="right") - 1
        return (at >= 0) & (times < self.end[np.maximum(at, 0)])


def union(start: Floats, end: Floats) -> Intervals:
    """Merge intervals in any order, overlapping or touching; empty ones are left out."""
    real = end > start
    start, end = start[real], end[real]
    if not len(start):
        return Intervals(start, end)
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > end[:-1]])
    return Intervals(start[first], end[np.concatenate([first[1:], [True]])])


def _keep(start: Floats, end: Floats) -> Intervals:
    real = end > start
    return Intervals(start[real], end[real])


def _sweep(one: Intervals, two: Intervals, wanted: int) -> Intervals:
    """Return the parts covered by ``one`` (worth 1) and ``two`` (worth 2) whose worth is ``wanted``."""
    times = np.concatenate([one.start, one.end, two.start, two.end])
    n, m = len(one.start), len(two.start)
    worth = np.repeat(np.array([1, -1, 2, -2]), [n, n, m, m])
    order = np.argsort(times, kind="stable")
    times, inside = times[order], np.cumsum(worth[order])[:-1] == wanted
    return _keep(times[:-1][inside], times[1:][inside])
