"""The loss check: does a plan's training behave as its effect promised? Pure; losses are the roots of backward, per step.

The envelope is built from baseline runs alone, which differ in their seed, and so in initial weights, order of batches
and augmentation. Three things must stay inside it, each allowed `_FALSE_ALARM` of false alarms:

- *level*: the mean of log-spaced stretches of steps, candidate minus baseline, against the spread of that stretch
  between baseline runs and the noise from step to step, whichever is larger. Runs of a pair share their seed, so the
  true spread of the difference is smaller: the envelope is on the generous side;
- *progress*: how much the loss fell from the first to the last fifth, likewise;
- *roughness*: the size of the jumps from step to step (batches of one class, or of a narrower range, are smoother or
  rougher than shuffled ones), against the spread of its logarithm between baseline runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fasttrain_doctor.evidence import Effect
from fasttrain_doctor.student import critical

Floats = NDArray[np.float64]
Runs = Sequence[Sequence[float]]

LEAST = 8  # losses per run below which nothing is compared
_FALSE_ALARM = 0.01


@dataclass(frozen=True, slots=True)
class LossCheck:
    """What comparing the losses gave; ``detail`` is a sentence for the reader."""

    kind: Literal["identical", "within-envelope", "outside", "not-compared"]
    detail: str

    @property
    def kept(self) -> bool:
        """Whether the training is the one that was promised."""
        return self.kind in ("identical", "within-envelope")


def compare_losses(effect: Effect, baseline: Runs, candidate: Runs) -> LossCheck:
    """Compare candidate runs with baseline runs; run i of both started from the same seed.

    Runs may differ in length: their common beginning counts. EXACT asks for the same bits; RESEEDED, ROUNDING and
    PRECISION to stay inside the envelope; TRAINING likewise, and is named as another training whatever comes out.
    """
    length = min((len(run) for run in (*baseline, *candidate)), default=0)
    if not len(baseline) or not len(candidate) or length < LEAST:
        return LossCheck("not-compared", f"{length} losses a run are too few to compare, it takes {LEAST}")
    base, cand = (np.array([run[:length] for run in runs], dtype=np.float64) for runs in (baseline, candidate))
    if not np.isfinite(base).all():
        return LossCheck("not-compared", "the script's own loss is not finite")
    if not np.isfinite(cand).all():
        step = int(np.argmin(np.isfinite(cand).all(axis=0)))
        return LossCheck("outside", f"the loss is not finite from step {step} on, the script's own is")
    pairs = min(len(base), len(cand))
    if np.array_equal(base[:pairs], cand[:pairs]):
        return _named(effect, LossCheck("identical", f"{pairs * length} losses are the same to the last bit"))
    if effect is Effect.EXACT:
        step = int(np.argmax((base[:pairs] != cand[:pairs]).any(axis=0)))
        return LossCheck("outside", f"the loss differs from step {step} on, where identical losses were promised")
    return _named(effect, _envelope(base, cand))


def _named(effect: Effect, check: LossCheck) -> LossCheck:
    if effect is not Effect.TRAINING:
        return check
    return LossCheck(check.kind, f"this is another training by intent; over these few steps: {check.detail}")


def _stretches(length: int) -> list[slice]:
    """Return log-spaced stretches, [0, 1), [1, 3), [3, 7) ..., the last two merged where the rest is short."""
    edges = [0]
    while edges[-1] < length:
        edges.append(2 * edges[-1] + 1)
    edges = [edge for edge in edges if edge < length]
    if len(edges) > 2 and length - edges[-1] < edges[-1] - edges[-2]:
        edges.pop()
    return [slice(a, b) for a, b in zip(edges, [*edges[1:], length], strict=True)]


def _step_noise(runs: Floats) -> Floats:
    """Return each run's noise from step to step, by successive differences: a falling loss does not count."""
    jumps = np.diff(runs, axis=1)
    return np.asarray(np.sqrt(np.mean((jumps - np.median(jumps, axis=1, keepdims=True)) ** 2, axis=1) / 2.0))


def _envelope(base: Floats, cand: Floats) -> LossCheck:
    length, scale = base.shape[1], max(float(np.abs(base).mean()), 1e-12)
    noise = float(np.sqrt(np.mean(_step_noise(base) ** 2)))
    parts = _stretches(length)
    fifth = max(1, length // 5)

    def features(runs: Floats) -> Floats:
        levels = [runs[:, part].mean(axis=1) for part in parts]
        fall = runs[:, -fifth:].mean(axis=1) - runs[:, :fifth].mean(axis=1)
        return np.stack([*levels, fall], axis=1)

    lengths = np.array([part.stop - part.start for part in parts] + [fifth / 2.0])
    own, other = features(base), features(cand)
    by_steps = noise / np.sqrt(lengths)
    spread = np.sqrt(own.var(axis=0, ddof=1)) if len(base) > 1 else np.zeros(own.shape[1])
    # a spread of few runs is itself a guess: neighbouring stretches vote with it, and the step noise is its floor
    spread = np.maximum(np.maximum(spread, np.median(spread / by_steps) * by_steps if noise > 0 else spread), by_steps)
    spread = np.maximum(spread, 1e-6 * scale)  # single precision
    freedom = max(2, (len(base) - 1) * len(parts) // 2)
    reach = critical(_FALSE_ALARM / 2 / own.shape[1], freedom) * spread * math.sqrt(1 / len(base) + 1 / len(cand))
    off = (other.mean(axis=0) - own.mean(axis=0)) / reach
    worst = int(np.argmax(np.abs(off)))
    if abs(off[worst]) > 1.0:
        return LossCheck("outside", _said(off[worst], reach[worst], parts, worst))
    rough = _rougher(base, cand)
    if rough is not None:
        return LossCheck("outside", rough)
    return LossCheck(
        "within-envelope",
        f"over {length} steps the mean loss keeps within {abs(off[worst]):.0%} of the envelope of {len(base)} "
        f"baseline runs, which allows {reach[worst] / scale:.1%}",
    )


def _said(off: float, reach: float, parts: list[slice], worst: int) -> str:
    way = "higher" if off > 0 else "lower"
    if worst == len(parts):
        return f"the loss ends {abs(off) * reach:.3g} {way} than its beginning promised; {reach:.3g} is allowed"
    part = parts[worst]
    return (
        f"the mean loss of steps {part.start} to {part.stop - 1} is {abs(off) * reach:.3g} {way}; "
        f"the baseline runs allow {reach:.3g}"
    )


def _rougher(base: Floats, cand: Floats) -> str | None:
    ours, theirs = _step_noise(base), _step_noise(cand)
    if ours.min() <= 0 or theirs.min() <= 0:
        return None
    length = base.shape[1]
    spread = math.sqrt(1.5 / length)  # of the log of a root mean square of that many successive differences, Gaussian
    if len(base) > 1:
        spread = max(spread, float(np.log(ours).std(ddof=1)))
    freedom = max(2, 2 * (len(base) - 1))
    reach = critical(_FALSE_ALARM / 2, freedom) * spread * math.sqrt(1 / len(base) + 1 / len(cand))
    apart = float(np.log(theirs).mean() - np.log(ours).mean())
    if abs(apart) <= reach:
        return None
    return f"the loss jumps {math.exp(apart):.2f}x as far from step to step; the baseline runs allow {math.exp(reach):.2f}x"
