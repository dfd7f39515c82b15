"""Student's t distribution: the two functions the comparisons need, without SciPy.

The distribution function is the regularised incomplete beta function, by its continued fraction (Press et al.,
*Numerical Recipes*, section 6.4, evaluated with the modified Lentz method); quantiles come from bisection.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300


def _continued_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    result = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + numerator / c
            c = c if abs(c) > _TINY else _TINY
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return result


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _continued_fraction(a, b, x) / a
    return 1.0 - front * _continued_fraction(b, a, 1.0 - x) / b


def upper_tail(t: float, freedom: float) -> float:
    """Return P(T > t) for Student's t with ``freedom`` degrees of freedom (> 0)."""
    tail = 0.5 * _incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
    return tail if t >= 0 else 1.0 - tail


@lru_cache(maxsize=4096)
def critical(tail: float, freedom: float) -> float:
    """Return the t that is exceeded with probability ``tail`` (0 < tail < 0.5)."""
    low, high = 0.0, 2.0
    while upper_tail(high, freedom) > tail:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if upper_tail(middle, freedom) > tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
