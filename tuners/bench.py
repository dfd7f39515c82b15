"""What the search drives: something that trains a block of steps under a plan and says how long it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fasttrain_doctor.tuners.fixes import Plan


class ArmFailed(Exception):
    """A plan crashed, hung or ran out of memory: a verdict on that plan, never the end of the search."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SessionEnded(Exception):
    """The script ended, or can be driven no further: no more blocks will come."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Block:
    """A run of consecutive steps under one plan, its warm part already dropped.

    ``seconds`` is the wall time of the counted ``steps`` together and ``step_seconds`` the single ones; ``samples``
    is how many training samples they held (None: unknown). ``start`` is the time that making the arm ready took,
    workers and first batch, 0 when it was ready; it is no part of ``seconds``.
    """

    steps: int
    seconds: float
    samples: float | None
    step_seconds: tuple[float, ...] = ()
    start: float = 0.0


class Bench(Protocol):
    """Runs blocks. Arms stay ready between visits, so that coming back to a plan is cheap."""

    def block(self, plan: Plan, steps: int) -> Block:
        """Train ``steps`` steps under ``plan``.

        Raises:
            ArmFailed: this plan cannot be run here.
            SessionEnded: nothing can be run any more.
        """
        ...


class Deadline(Protocol):
    """How long the search may go on."""

    def left(self) -> float:
        """Return the seconds left; 0 or less: stop."""
        ...
