"""How numbers and names are worded: times, shares, speedups, settings, effects. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fasttrain_doctor.diagnosis import Interval

PHASES = ("io", "prepare", "h2d", "forward", "backward", "optimizer", "other")
PHASE_MEANING: Mapping[str, str] = {
    "io": "waiting for reads of samples",
    "prepare": "decoding, transforming and collating samples on the CPU",
    "data": "fetching batches: reads and preparation together, which could not be told apart",
    "h2d": "copying the batch to the device while nothing else runs there",
    "forward": "the model's forward pass and the loss",
    "backward": "gradients",
    "optimizer": "the optimizer's step",
    "other": "all else in the loop: logging, synchronising, checkpoints, Python",
}
EFFECT_MEANING: Mapping[str, str] = {
    "exact": "bit-identical batches, losses and weights, only sooner",
    "reseeded": "the same distribution, with other random numbers",
    "rounding": "the same mathematics, with float operations in another order",
    "precision": "lower precision in places",
    "training": "another training: results may differ by design",
}
VERDICT_WORDS: Mapping[str, str] = {
    "faster": "faster",
    "no-difference": "no difference",
    "slower": "slower",
    "changed-training": "changes the training",
    "failed": "failed",
    "inconclusive": "inconclusive",
}
LOSS_WORDS: Mapping[str, str] = {"identical": "loss identical", "within-envelope": "loss within envelope"}


def seconds(value: float) -> str:
    """Word a time with three significant digits and the unit that suits it: ``118 ms``, ``3.42 s``, ``2 min 5 s``."""
    if value >= 119.5:
        minutes, rest = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 0.9995:
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value * 1e6)} µs" if value > 0 else "0 ms"


def milliseconds(value: float, scale: float) -> str:
    """Word ``value`` (seconds) in ms without its unit, with the decimals that suit a step of ``scale`` seconds."""
    decimals = 0 if scale >= 0.1 else 1 if scale >= 0.01 else 2
    return f"{value * 1e3:.{decimals}f}"


def digits(value: float) -> str:
    """Word a number with three significant digits, without an exponent."""
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{decimals}f}"


def share(value: float) -> str:
    """Word a share of 0..1 as a percentage: ``49%``, ``2.4%``, ``<0.1%``."""
    percent = value * 100
    if 0 < abs(percent) < 0.05:
        return "<0.1%"
    return f"{percent:.0f}%" if abs(percent) >= 9.95 else f"{percent:.1f}".removesuffix(".0") + "%"


def shares(parts: Sequence[float]) -> list[str]:
    """Word the shares of ``parts`` in their sum as whole percentages that sum to 100 (largest remainders)."""
    total = sum(parts)
    if total <= 0:
        return ["0%"] * len(parts)
    exact = [100 * part / total for part in parts]
    floors = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: exact[i] - floors[i], reverse=True)
    for i in by_remainder[: 100 - sum(floors)]:
        floors[i] += 1
    return [f"{floor}%" if floor or value == 0 else "<1%" for floor, value in zip(floors, exact, strict=True)]


def size(value: float) -> str:
    """Word bytes: ``139 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{digits(value)} {unit}"
        value /= 1024
    return f"{digits(value)} TiB"


def times(value: float) -> str:
    """Word a ratio: ``2.41x``."""
    return f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x"


def interval(value: Interval) -> str:
    """Word a speedup with its interval: ``2.41x (2.33 to 2.49)``."""
    return f"{times(value.mid)} ({times(value.low)[:-1]} to {times(value.high)[:-1]})"


def fix_settings(name: str, value: Any) -> str:
    """Word one fix and its value: ``dataloader-workers: num_workers=8, prefetch_factor=4``."""
    if isinstance(value, Mapping):
        return f"{name}: {', '.join(f'{key}={item}' for key, item in value.items())}"
    return name if value is True else f"{name}: {value}"


def settings(plan: Mapping[str, Any]) -> str:
    """Word a plan; the empty one is the script as it is."""
    return "; ".join(fix_settings(name, value) for name, value in plan.items()) or "the script as it is"


def count(number: int, noun: str) -> str:
    """Word a number of things: ``1 step``, ``60 steps``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def series(items: Iterable[str]) -> str:
    """Join words with commas and a final ``and``."""
    words = list(items)
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def plain(value: object) -> str:
    """Word a value of unknown kind, as evidence and machine facts hold them."""
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value) or "none"
    return str(value)


def evidence(key: str, value: object) -> str:
    """Word a finding's evidence, telling times and shares by the name of their key."""
    if isinstance(value, float):
        if key in PHASES or key in {"step", "mean", "median", "data", "floor", "seconds"} or key.endswith("_seconds"):
            return seconds(value)
        if key.endswith("share") or key in {"lost", "busy", "idle", "contention"}:
            return share(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and key.endswith("bytes"):
        return size(value)
    return plain(value)
