"""Paired comparison of block times (pure): which of two plans trains a sample in less time, and how sure that is.

The unit is a *pair of blocks* that ran next to each other, one of the baseline and one of the candidate; the quantity
is the log ratio of their times per training sample (whole block times: a median of steps hides what a loader's queue
pays back later). Pairs run in the order `block_order` gives, so that a drift of the machine cancels.

The interval is Tukey and McLaughlin's for a trimmed mean (Sankhya A 25, 1963; Yuen, Biometrika 61, 1974): one pair in
eight is trimmed from each end and the standard error comes from the Winsorised variance, with n - 2g - 1 degrees of
freedom. Trimming is symmetric and decided by the number of pairs alone, so that a stall of the machine is dealt with
without anybody choosing what to leave out. Where somebody looks more than once, the number of looks is declared
beforehand and each look gets its share of alpha (Bonferroni: right whatever the looks' dependence); over arms, `holm`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fasttrain_doctor.student import critical, upper_tail

Floats = NDArray[np.float64]

MARGIN = 0.01  # a difference below this is of no use to anybody, whatever its significance
LOOKS = (3, 5, 8, 13, 20)  # pairs after which a growing comparison is looked at; declared here, once for all
_TRIM = 8  # one pair in this many is trimmed from each end


class Timed(Protocol):
    """A block of steps, see tuners/bench.py."""

    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def samples(self) -> float | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Comparison:
    """Baseline time over candidate time, per sample: above 1 the candidate is faster.

    ``ratios`` are the single pairs', in the order they ran; ``set_aside`` are the indices of those that were trimmed
    and stand out from the rest by more than 4 of its standard deviations. ``error`` is the standard error of the
    log ratio, with ``freedom`` degrees of freedom.
    """

    mid: float
    low: float
    high: float
    pairs: int
    ratios: tuple[float, ...]
    set_aside: tuple[int, ...]
    error: float
    freedom: int

    def p_above(self, ratio: float, looks: int = 1) -> float:
        """Return the one-sided p value of "the speedup is at most ``ratio``", allowing for ``looks``."""
        distance = math.log(self.mid / ratio)
        if self.error == 0.0:
            return 0.0 if distance > 0 else 1.0
        return min(1.0, looks * upper_tail(distance / self.error, self.freedom))


@dataclass(frozen=True, slots=True)
class Noise:
    """What A/A blocks showed: ``sd`` is the standard deviation of the log ratio of two adjacent equal blocks."""

    sd: float
    pairs: int

    def half_width(self, pairs: int | None = None, alpha: float = 0.05) -> float:
        """Return the half-width of an A/A interval of ``pairs`` pairs (default: as many as were run), as a share."""
        n = max(2, self.pairs if pairs is None else pairs)
        return math.exp(critical(alpha / 2, max(2, self.pairs)) * self.sd / math.sqrt(n)) - 1.0

    def margin(self, pairs: int | None = None) -> float:
        """Return what the low end of an interval of ``pairs`` pairs must exceed 1 by for "faster"."""
        return max(MARGIN, self.half_width(pairs))


def costs(blocks: Sequence[Timed], *, per_sample: bool) -> Floats:
    """Return seconds per sample (or per step) of each block.

    Raises:
        ValueError: a block holds no time, no step, or no samples where they were asked for.
    """
    units = [block.samples if per_sample else float(block.steps) for block in blocks]
    if any(unit is None or unit <= 0 or block.seconds <= 0 for unit, block in zip(units, blocks, strict=True)):
        raise ValueError("a block without time or content cannot be compared")
    return np.array([block.seconds / (unit or 1.0) for unit, block in zip(units, blocks, strict=True)])


def log_ratios(baseline: Sequence[Timed], candidate: Sequence[Timed]) -> Floats:
    """Return each pair's log of baseline over candidate time per sample; per step where samples are not known."""
    if len(baseline) != len(candidate):
        raise ValueError(f"pairs need both sides: {len(baseline)} baseline and {len(candidate)} candidate blocks")
    per_sample = all(block.samples for block in (*baseline, *candidate))
    result: Floats = np.log(costs(baseline, per_sample=per_sample)) - np.log(costs(candidate, per_sample=per_sample))
    return result


def trimmed(values: Floats) -> tuple[Any, Any, int]:
    """Return mean, standard deviation and degrees of freedom of the trimmed mean over the last axis (length >= 2).

    The deviation is scaled so that ``sd / sqrt(n)`` is the standard error of the trimmed mean.
    """
    n = values.shape[-1]
    g = n // _TRIM
    ordered = np.sort(values, axis=-1)
    winsorised = ordered.copy()
    if g:
        winsorised[..., :g] = ordered[..., g : g + 1]
        winsorised[..., n - g :] = ordered[..., n - g - 1 : n - g]
    mean = ordered[..., g : n - g].mean(axis=-1)
    sd = winsorised.std(axis=-1, ddof=1) / (1.0 - 2.0 * g / n)
    return mean, sd, n - 2 * g - 1


def half_width(sd: Any, freedom: int, pairs: int, looks: int = 1, alpha: float = 0.05) -> Any:
    """Return the half-width, in log ratio, of the interval at one of ``looks`` declared looks."""
    return critical(alpha / looks / 2, freedom) * sd / math.sqrt(pairs)


def compare(
    baseline: Sequence[Timed],
    candidate: Sequence[Timed],
    looks: int = 1,
    alpha: float = 0.05,
    floor: float = 0.0,
) -> Comparison:
    """Compare blocks pair by pair, in the order they ran.

    ``looks`` is how many times at most this comparison is looked at while it grows, declared beforehand; ``floor`` is
    a standard deviation of the pairs' log ratio (from A/A blocks) that a lucky few pairs may not undercut.

    Raises:
        ValueError: fewer than two pairs, sides of different length, or blocks without content.
    """
    logs = log_ratios(baseline, candidate)
    return compare_ratios(logs, looks=looks, alpha=alpha, floor=floor)


def compare_ratios(logs: Floats, looks: int = 1, alpha: float = 0.05, floor: float = 0.0) -> Comparison:
    """Compare by the pairs' log ratios, see `compare`."""
    n = int(logs.shape[0])
    if n < 2:
        raise ValueError(f"an interval needs two pairs, there is {n}")
    mean, sd, freedom = trimmed(logs)
    centre, spread = float(mean), max(float(sd), floor)
    half = half_width(spread, freedom, n, looks, alpha)
    ends = np.argsort(logs, kind="stable")
    g = n // _TRIM
    outer = [*ends[:g], *ends[n - g :]] if g else []
    aside = sorted(int(i) for i in outer if abs(logs[i] - centre) > 4.0 * max(spread, 1e-12))
    return Comparison(
        mid=math.exp(centre),
        low=math.exp(centre - half),
        high=math.exp(centre + half),
        pairs=n,
        ratios=tuple(math.exp(x) for x in logs),
        set_aside=tuple(aside),
        error=spread / math.sqrt(n),
        freedom=freedom,
    )


def block_order(pairs: int) -> list[tuple[int, bool]]:
    """Return (pair, is candidate) for each block: ABBA BAAB, again and again.

    A steady drift cancels after two pairs, a bending one after four. Neighbouring pairs that turn round share the
    noise of a candidate or a baseline that ran back to back, those that do not share it with the opposite sign: as
    many do as do not, so that autocorrelated noise leaves the standard error about right.
    """
    first = [pair % 4 in (1, 2) for pair in range(pairs)]
    return [(pair, candidate) for pair in range(pairs) for candidate in (first[pair], not first[pair])]


def noise(blocks: Sequence[Timed]) -> Noise:
    """Return the noise of equal blocks that ran one after the other (three or more).

    Adjacent differences, about zero: a slow drift does not count, since pairs do not see it either. Their root mean
    square is limited to one and a half times what their median says, so that one stall does not stand for all blocks.
    """
    if len(blocks) < 3:
        raise ValueError(f"the noise needs three blocks, there are {len(blocks)}")
    logs = np.log(costs(blocks, per_sample=all(block.samples for block in blocks)))
    steps = np.abs(np.diff(logs))
    rms = float(np.sqrt(np.mean(steps**2)))
    typical = 1.4826 * float(np.median(steps))
    return Noise(sd=min(rms, 1.5 * typical) if typical > 0 else rms, pairs=len(steps))


def pairs_needed(sd: float, effect: float, looks: int = 1, alpha: float = 0.05, power: float = 0.9) -> int:
    """Return how many pairs show a speedup of ``1 + effect`` to exceed ``1 + MARGIN``, with probability ``power``.

    Normal approximation, raised until Student's t with that many pairs agrees; 10,000 stands for "never".
    """
    distance = math.log1p(effect) - math.log1p(MARGIN)
    if distance <= 0:
        return 10_000
    n = 2
    while n < 10_000:
        freedom = n - 2 * (n // _TRIM) - 1
        reach = critical(alpha / looks / 2, freedom) + (critical(1 - power, freedom) if power > 0.5 else 0.0)
        if reach * sd / math.sqrt(n) <= distance:
            return n
        n += 1
    return n


def holm(p_values: Sequence[float], alpha: float = 0.05) -> list[bool]:
    """Return which hypotheses fall, with the family-wise error at most ``alpha`` (Holm, Scand. J. Statist. 6, 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > alpha / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected


_EVERY = 300  # first places of a shift that are all looked at


def warmup(step_seconds: Sequence[float]) -> int:
    """Return how many steps at the beginning belong to the warm-up: slower, or faster, than what follows.

    A shift of level is fitted by least absolute deviations (Bai, Econometric Theory 11, 1995), which a spike does not
    move, and accepted when it improves Schwarz's criterion for Laplace errors (Yao, Statist. Probab. Lett. 6, 1988)
    and the levels differ by more than 3 %. What is left is looked at again, so that a warm-up in several stages is
    found whole. Never more than half of the steps; 0 for a constant series.
    """
    logs = np.log(np.maximum(np.asarray(step_seconds, dtype=np.float64), 1e-9))
    limit, cut = len(logs) // 2, 0
    while (shift := _shift(logs[cut:], limit - cut)) > 0:
        cut += shift
    return cut


def _shift(logs: Floats, longest: int) -> int:
    n = len(logs)
    if longest < 1 or n < 4:
        return 0

    def deviation(part: Floats) -> float:
        return float(np.abs(part - np.median(part)).sum())

    resolution = 1e-3 * n  # differences of a thousandth are the clock's
    whole = deviation(logs) + resolution

    def split(k: int) -> float:
        return deviation(logs[:k]) + deviation(logs[k:]) + resolution

    # Every place among the first; of those far in some, then those about the best: each costs a look at every step.
    places = sorted({*range(1, min(longest, _EVERY) + 1), *map(int, np.geomspace(1, longest, _EVERY)), longest})
    at = min(range(len(places)), key=lambda i: split(places[i]))
    best = min(range(places[max(at - 1, 0)], places[min(at + 1, len(places) - 1)] + 1), key=split)
    penalty = 3.0 * math.log(n)  # place and level of the shift, and one more for having searched for it
    apart = abs(float(np.median(logs[:best]) - np.median(logs[best:])))
    return best if n * math.log(whole / split(best)) > penalty and apart > 0.03 else 0
