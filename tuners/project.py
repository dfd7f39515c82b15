"""What a speedup of the step amounts to over the planned run: start-up and epoch starts count as well. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fasttrain_doctor.diagnosis import Projected


@dataclass(frozen=True, slots=True)
class RunCost:
    """What one way of running costs, in seconds: once, at the start of each epoch, and each step."""

    startup: float
    epoch_start: float
    step: float

    def total(self, epochs: float, length: float) -> float:
        """Return the seconds of a run of ``epochs`` epochs of ``length`` steps."""
        return self.startup + epochs * (self.epoch_start + length * self.step)


def projected(baseline: RunCost, tuned: RunCost, *, epochs: float | None, length: float | None) -> Projected:
    """Project a speedup over the planned run; ``epochs`` and ``length`` (steps an epoch) are None where not known.

    Without both, ``speedup`` is None. ``break_even_steps`` is how many steps it takes until the tuned run is ahead: 0
    when it is from the start, None when it never is. Where the length of an epoch is not known, the whole run counts
    as one epoch.
    """
    known = epochs is not None and length is not None and epochs > 0 and length > 0
    speedup = baseline.total(epochs, length) / tuned.total(epochs, length) if known and epochs and length else None
    return Projected(speedup=speedup, epochs=epochs, break_even_steps=_break_even(baseline, tuned, length))


def _break_even(baseline: RunCost, tuned: RunCost, length: float | None) -> float | None:
    """Return the first whole step after which the tuned run has taken no more time, walking epoch by epoch."""
    starts, saved = tuned.epoch_start - baseline.epoch_start, baseline.step - tuned.step
    behind = tuned.startup - baseline.startup + starts
    if behind <= 0 and saved >= 0:
        return 0.0
    if saved <= 0:
        return None
    if length is None or length <= 0 or length * saved >= behind:
        return float(math.ceil(behind / saved - 1e-9))
    per_epoch = length * saved - starts
    if per_epoch <= 0:
        return None
    # epochs to pass before the one within which it gets ahead
    epoch = math.ceil((behind - length * saved) / per_epoch - 1e-9)
    left = behind - epoch * per_epoch
    return float(epoch * length + max(1, math.ceil(left / saved - 1e-9)))
