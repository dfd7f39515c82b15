"""Verdicts: what a comparison, a loss check or a failure amounts to. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fasttrain_doctor.diagnosis import Interval, VerdictKind
from fasttrain_doctor.stats import Comparison, Noise
from fasttrain_doctor.student import critical
from fasttrain_doctor.tuners.losses import LossCheck

_NARROW = 1.1  # an interval that reaches further does not say "no difference"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A plan judged. ``speedup`` is None where no pair of blocks was finished or one pair alone."""

    kind: VerdictKind
    speedup: Interval | None
    reason: str
    loss: LossCheck | None = None


def interval(comparison: Comparison) -> Interval:
    """Return a comparison's interval as the report has it."""
    return Interval(mid=comparison.mid, low=comparison.low, high=comparison.high)


def failed(reason: str) -> Verdict:
    """Return the verdict on a plan that crashed, hung or ran out of memory."""
    return Verdict("failed", None, reason)


def judge(
    comparison: Comparison, noise: Noise, *, loss: LossCheck | None = None, complete: bool = False, cut: str = ""
) -> Verdict:
    """Judge a comparison.

    ``faster`` needs the low end above 1 + max(1 %, half-width of as many A/A pairs); ``slower`` the middle below the
    mirror image of that and all of the interval below 1. A high end below that margin leaves nothing worth having:
    ``no-difference``. In between it is ``inconclusive``, unless the comparison is ``complete`` (all declared pairs ran)
    and not wide: then no gain could be shown is the answer.
    ``cut`` says why it stopped early, where it did. A loss outside its envelope is ``changed-training`` before all.
    """
    margin = noise.margin(comparison.pairs)
    speedup, pairs = interval(comparison), f"{comparison.pairs} pairs"
    aside = f", {len(comparison.set_aside)} with a stall set aside" if comparison.set_aside else ""
    if loss is not None and loss.kind == "outside":
        return Verdict("changed-training", speedup, loss.detail, loss)
    if comparison.low > 1.0 + margin:
        return Verdict("faster", speedup, f"{pairs}{aside}", loss)
    below = 1.0 / (1.0 + margin)
    if comparison.high < below or (comparison.mid < below and comparison.high < 1.0):
        return Verdict("slower", speedup, f"{pairs}{aside}", loss)
    if comparison.high < 1.0 + margin:
        return Verdict(
            "no-difference", speedup, f"{pairs}{aside}: at most {max(0.0, comparison.high - 1):.1%} to gain", loss
        )
    if complete and comparison.high >= _NARROW:
        return Verdict("inconclusive", speedup, f"{pairs}{aside}: they differ too much to tell", loss)
    if complete:
        return Verdict("no-difference", speedup, f"{pairs}{aside}: no gain beyond ±{margin:.1%} could be shown", loss)
    return Verdict("inconclusive", speedup, f"{pairs}{aside}: {cut or 'too few to tell'}", loss)


def hopeless(comparison: Comparison, noise: Noise, worth: float) -> Comparison | None:
    """Return the comparison with a sharper interval when that shows less than ``worth`` to gain, else None.

    The noise of the A/A blocks counts as further observations of the pairs' noise (degrees of freedom add up). That
    is a guess about the candidate's noise, good enough to stop spending time on it; `judge` never calls a plan
    faster by it, and an end for want of hope cannot raise the rate of false wins.
    """
    sd = max(comparison.error * math.sqrt(comparison.pairs), noise.sd)
    freedom = comparison.freedom + noise.pairs
    half = critical(0.025, freedom) * sd / math.sqrt(comparison.pairs)
    if comparison.mid * math.exp(half) >= 1.0 + worth:
        return None
    return Comparison(
        mid=comparison.mid,
        low=comparison.mid * math.exp(-half),
        high=comparison.mid * math.exp(half),
        pairs=comparison.pairs,
        ratios=comparison.ratios,
        set_aside=comparison.set_aside,
        error=sd / math.sqrt(comparison.pairs),
        freedom=freedom,
    )
