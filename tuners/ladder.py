"""Climb one count by factors of two while that pays, then look between the rungs. Pure: the measuring is passed in.

Throughput over the number of workers rises, flattens and then falls; where it flattens differs by a hundredfold
between scripts, so rungs are a factor apart and each one is tried only when the one before it paid.
"""

from __future__ import annotations

import math
from collections.abc import Callable

PAYS = math.log(1.05)  # twice the workers must bring this much, in log time
MANY = 16  # from here on rungs are a factor of 1.5 apart: a process each, started and kept for the comparison
CHEAP = math.log(1.02)  # a smaller count is preferred within this, and half of the noise

Measure = Callable[[int], float | None]


def climb(measure: Measure, start: int, low: int, high: int, noise: float = 0.0) -> dict[int, float | None]:
    """Return the log gain of every count tried, None where it failed.

    ``measure`` gives the log of the speedup over one common reference. ``noise`` is the standard deviation of one
    such value: a rung pays only beyond it. What cannot be (see `_plausible`) is measured a second time, and that
    counts: a stall of the machine during one block would otherwise end the climb.
    """
    seen: dict[int, float | None] = {}
    pays = PAYS + noise

    def gain(count: int) -> float:
        if count not in seen:
            value = measure(count)
            seen[count] = value if value is None or _plausible(seen, count, value, noise) else measure(count)
        value = seen[count]
        return -math.inf if value is None else value

    best = min(max(start, low), high)
    gain(best)
    climbed = False
    while best < high and gain(rung := min(_up(best), high)) > gain(best) + pays:
        best, climbed = rung, True
    while not climbed and best > low and gain(rung := max(best // 2, low)) > gain(best) - CHEAP:
        best = rung
    for _ in range(2):  # between the rungs; a second time only where the first brought something
        best = cheapest(seen, noise) or best
        before = gain(best)
        for count in [_between(best, count) for count in _neighbours(seen, best)]:
            if count is not None:
                gain(count)
        if max(gain(count) for count in seen) <= before + pays:
            break
    return seen


def cheapest(seen: dict[int, float | None], noise: float = 0.0) -> int | None:
    """Return the smallest count whose gain is within noise of the best one; None when all failed."""
    gains = {count: value for count, value in seen.items() if value is not None}
    if not gains:
        return None
    enough = max(gains.values()) - CHEAP - noise / 2.0
    return min(count for count, value in gains.items() if value >= enough)


def _up(count: int) -> int:
    return 2 * count if count < MANY else count + count // 2


def _plausible(seen: dict[int, float | None], count: int, value: float, noise: float) -> bool:
    """Return whether a gain fits the nearest count tried: f times the workers bring at most f times the speed.

    And hardly ever cost a fifth of it. A quarter, and the noise, are allowed on top.
    """
    others = [n for n, gain in seen.items() if gain is not None]
    if not others:
        return True
    nearest = min(others, key=lambda n: abs(math.log(n / count)))
    factor, slack = math.log(count / nearest), math.log(1.25) + 3.0 * noise
    change = value - (seen[nearest] or 0.0)
    return min(0.0, factor) - slack <= change <= max(0.0, factor) + slack


def roomy(seen: dict[int, float | None], noise: float = 0.0) -> int | None:
    """Return the largest count, at most twice the cheapest, that is not worse than the best by what a rung must pay.

    Room to spare while other changes are tried: what they gain must not end at the loader. `cheapest` is for the end.
    """
    least = cheapest(seen, noise)
    if least is None:
        return None
    gains = {count: value for count, value in seen.items() if value is not None and count <= 2 * least}
    enough = max(gains.values()) - PAYS - noise
    return max(count for count, value in gains.items() if value >= enough)


def _neighbours(seen: dict[int, float | None], best: int) -> list[int]:
    below, above = [n for n in seen if n < best], [n for n in seen if n > best]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


def _between(a: int, b: int) -> int | None:
    """Return the whole number halfway by factors, None where the two are within a fifth of each other."""
    middle = round(math.sqrt(a * b))
    return None if max(a, b) <= 1.2 * min(a, b) or middle in (a, b) else middle
