"""Whether a series grows or falls steadily: a robust slope, told only where it is clear. Pure.

Theil's slope (Indag. Math. 12, 1950) with Sen's interval (J. Amer. Statist. Assoc. 63, 1968): the median of the slopes
of all pairs, which three outliers in ten do not move. A shift of level has a slope as well; a trend is told from it by
the medians of the series' quarters, which must all go the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FEWEST = 12  # points: three in each quarter
LEAST_GROWTH = 0.1  # of the mean, over the whole series
_MOST = 256  # points; a longer series is thinned to the medians of as many groups
_Z = 2.576  # of the 99 % interval: neighbouring steps are not independent
_PART = 0.08  # of the whole change that lies at least between two quarters


def steady_slope(times: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the change of ``values`` per unit of ``times``, or None where no steady one is clear of zero."""
    if len(values) < FEWEST or len(values) != len(times):
        return None
    x, y = _thinned(np.asarray(times, dtype=np.float64)), _thinned(np.asarray(values, dtype=np.float64))
    low, slope, high = _interval(x, y)
    if low <= 0 <= high or not _steady(y):
        return None
    return slope


def growth(seconds: Sequence[float]) -> float | None:
    """Return how much steps grew over the series, as a share of their mean; negative where they fell, None: unclear."""
    mean = math.fsum(seconds) / len(seconds) if seconds else 0.0
    slope = steady_slope(range(len(seconds)), seconds)
    if slope is None or mean <= 0:
        return None
    share = slope * (len(seconds) - 1) / mean
    return share if abs(share) >= LEAST_GROWTH else None


def _thinned(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(values) <= _MOST:
        return values
    return np.array([np.median(part) for part in np.array_split(values, _MOST)])


def _interval(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the slope between the ends of its interval; x rises."""
    n = len(x)
    first, second = np.triu_indices(n, 1)
    apart = x[second] - x[first]
    slopes = np.sort((y[second] - y[first])[apart > 0] / apart[apart > 0])
    if not len(slopes):
        return 0.0, 0.0, 0.0
    reach = _Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)  # of Kendall's statistic
    lower = max(0, int((len(slopes) - reach) / 2))
    upper = min(len(slopes) - 1, math.ceil((len(slopes) + reach) / 2))
    return float(slopes[lower]), float(np.median(slopes)), float(slopes[upper])


def _steady(y: NDArray[np.float64]) -> bool:
    quarters = [float(np.median(part)) for part in np.array_split(y, 4)]
    whole = quarters[-1] - quarters[0]
    return all((b - a) / whole >= _PART for a, b in pairwise(quarters)) if whole else False
