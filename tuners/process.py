"""One fresh process of the script under a plan that is installed before its first step, for a confirmation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fasttrain_doctor.recorded import read_probe
from fasttrain_doctor.steps import find_steps
from fasttrain_doctor.tuners.bench import ArmFailed, SessionEnded
from fasttrain_doctor.tuners.session import Session, Setup

WINDOW = 3.0  # seconds of steady steps that one process contributes
LIMIT = 25.0  # seconds after which fewer do
HANG = 90.0
STEADY = 24  # steady steps that it contributes at least
FEWEST = 6  # of a script that ended by itself


@dataclass(frozen=True, slots=True)
class Fresh:
    """What one process showed.

    ``steps`` are the seconds of its steady steps; ``losses`` every loss from the first step on, unscaled; ``startup`` is
    from the start to the first step's border, ``first`` what the steps before the steady ones took.
    """

    steps: tuple[float, ...]
    losses: tuple[float, ...]
    startup: float


def run_fresh(setup: Setup, count: int, warm: int, timeout: float) -> Fresh:
    """Run one process for ``warm`` + ``count`` steps and stop it.

    Args:
        setup: with its plan (empty for the script as it is), loader and seed.
        count: steady steps wanted.
        warm: steps before them that do not count.
        timeout: seconds until a script that takes no step counts as hung.

    Raises:
        ArmFailed: the script failed, hung, or ended before it had taken enough steps.
    """
    with Session(setup) as session:
        if session.hello(timeout) is None:
            status = session.child.wait(2)
            raise ArmFailed(f"the script took no step ({_how(status)})")
        startup = time.monotonic() - session.started
        try:
            answer = session.ask(
                {"do": "run", "steps": count, "seconds": LIMIT, "warm": warm}, 2 * LIMIT + min(HANG, timeout)
            )
            losses = session.ask({"do": "losses"}, min(HANG, timeout))
        except SessionEnded as ended:
            status = session.child.wait(5)
            if status != 0:
                raise ArmFailed(f"the script failed ({_how(status)})") from ended
            session.child.drain()
            return _from_records(setup, warm, startup)
    steps = tuple(float(x) for x in answer["step_seconds"])
    if not steps:
        raise ArmFailed(f"no steady step within {LIMIT:.0f} s")
    return Fresh(steps, tuple(losses["losses"]), startup)


def _from_records(setup: Setup, warm: int, startup: float) -> Fresh:
    """Return what a script that ended by itself left behind."""
    trainers = read_probe(setup.probe_dir).trainers
    if not trainers:
        raise ArmFailed("the script ended and left no step")
    seconds = [s.seconds for s in find_steps(trainers[0]).steps if not s.first_of_epoch]
    steady = seconds[min(warm, len(seconds) // 2) :]
    if len(steady) < FEWEST:
        raise ArmFailed(f"the script ended after {len(seconds)} whole steps, too few to compare")
    losses: Sequence[float] = next((f["losses"] for f in trainers[0].facts_of("losses")), ())
    return Fresh(tuple(steady), tuple(losses), startup)


def _how(status: int | None) -> str:
    if status is None:
        return "it hung"
    return f"signal {-status}" if status < 0 else f"exit status {status}"
