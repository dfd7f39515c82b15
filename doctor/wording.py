"""How numbers and places are said in one-line messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath

OUT_OF_TIME = "the time for trials was used up"  # begins the reason why there were no more; reports look for it
LONGEST = 140  # characters a message may have: one line of a terminal beside its code


def duration(seconds: float) -> str:
    """Say a time with two figures and a fitting unit, e.g. ``58 ms``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale or unit == "µs":
            value = seconds / scale
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    raise AssertionError(seconds)


def lasting(seconds: float) -> str:
    """Say how long something may go on: ``40 s``, ``55 min``, ``3.2 h``."""
    for unit, scale in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * scale:
            value = seconds / scale
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(value: float) -> str:
    """Say bytes with two figures and a fitting unit, e.g. ``38 MiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" or value >= 9.95 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count(value: float) -> str:
    """Say a number of cores: whole where it is whole, e.g. ``16`` or ``1.5``."""
    return f"{value:g}" if value < 100 else f"{value:.0f}"


def costliest(spans: Mapping[str, tuple[tuple[str, float], ...]], part: str) -> tuple[str, float] | None:
    """Return the place (``file:line``) in a part of `other` that takes most, and its seconds per step."""
    return max(spans.get(part, ()), key=lambda span: span[1], default=None)


def line(text: str, *details: str) -> str:
    """Put as many ``details`` in brackets after ``text`` as fit one line, in order of worth."""
    kept: list[str] = []
    for detail in details:
        if detail and len(f"{text} ({', '.join([*kept, detail])})") <= LONGEST:
            kept.append(detail)
    return f"{text} ({', '.join(kept)})" if kept else text


def out_of_time(reserve: float, budget: float) -> str:
    """Say why there were no more trials: ``reserve`` seconds of ``budget`` are not theirs. Ends in an option."""
    kept = f"{reserve:.0f} s of {budget:.0f} s are kept to confirm a gain"
    return f"{OUT_OF_TIME}: {kept}; for more: --budget {math.ceil(2 * budget / 60)}m"


def name(text: str, longest: int = 40) -> str:
    """Make a name from the user's code fit one line of a terminal, whatever it holds."""
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"


def place(where: str) -> str:
    """Shorten ``folder/sub/train.py:41`` to ``train.py:41``."""
    return name(PurePath(where).name or where, 60)
