"""Interval sets behave like sets of points."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.trace_intervals import Intervals, union

SIZE = 60
pairs = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=12)


def made(spans: list[tuple[int, int]]) -> Intervals:
    return union(np.array([a for a, _ in spans], dtype=float), np.array([b for _, b in spans], dtype=float))


def points(intervals: Intervals) -> set[int]:
    return {p for a, b in zip(intervals.start, intervals.end, strict=True) for p in range(int(a), int(b))}


def spanned(spans: list[tuple[int, int]]) -> set[int]:
    return {p for a, b in spans for p in range(a, b)}


@given(pairs)
def test_a_union_covers_its_parts_once_and_in_order(one: list[tuple[int, int]]) -> None:
    found = made(one)
    assert points(found) == spanned(one)
    assert found.length == len(spanned(one))
    assert (found.start < found.end).all()
    assert (found.end[:-1] < found.start[1:]).all()


@given(pairs, pairs)
def test_difference_and_intersection_are_those_of_the_points(
    one: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    a, b = made(one), made(two)
    assert points(a.minus(b)) == spanned(one) - spanned(two)
    assert points(a.both(b)) == spanned(one) & spanned(two)


@given(pairs, st.integers(0, SIZE), st.integers(0, SIZE))
def test_clip_and_gaps_share_the_window_between_them(one: list[tuple[int, int]], x: int, y: int) -> None:
    low, high = min(x, y), max(x, y)
    window, intervals = set(range(low, high)), made(one)
    assert points(intervals.clip(low, high)) == spanned(one) & window
    assert points(intervals.gaps(low, high)) == window - spanned(one)


@given(pairs)
def test_contains_is_half_open(one: list[tuple[int, int]]) -> None:
    times = np.arange(-1, SIZE + 2, dtype=float)
    assert set(times[made(one).contains(times)].astype(int).tolist()) == spanned(one)
