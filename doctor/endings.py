"""What is said of a script that ended, failed or hung before enough was measured."""

from __future__ import annotations

import signal
from pathlib import Path

from fasttrain_doctor.errors import DoctorError, NothingMeasured, ScriptFailed
from fasttrain_doctor.gather import Watched
from fasttrain_doctor.loop_source import not_followed
from fasttrain_doctor.recorded import Recorded, read_probe
from fasttrain_doctor.tuners.session import Session


def unmeasured(session: Session, probe: Path, name: str, timeout: float, watched: Watched | None = None) -> DoctorError:
    """Return the error that explains it.

    Args:
        session: the script's, which has ended or hangs.
        probe: where its processes wrote.
        name: the target as the user named it.
        timeout: seconds that were waited for a step.
        watched: what little was understood, if anything.
    """
    status = session.child.wait(2)
    if status is None:
        how_else = not_followed(session.script) if watched is None else None
        why = f"; it trains {how_else}" if how_else else ""
        said = f"{name} has not taken a training step in {timeout:.0f} s{why}; to wait longer: --timeout"
        return NothingMeasured("timeout", said)
    session.child.drain()
    if status != 0:
        said = f"{name} failed before enough was measured ({how(status)})"
        if (python := session.lacks_a_module()) is not None:
            said += f"; {python} lacks what it imports: --python chooses another"
        return ScriptFailed("script-failed", said)
    return NothingMeasured(*_nothing(name, read_probe(probe), watched, not_followed(session.script)))


def how(status: int) -> str:
    """Return how a process ended, from its exit status (negative: the signal that ended it)."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-status}"


def _nothing(name: str, recorded: Recorded, watched: Watched | None, how_else: str | None) -> tuple[str, str]:
    if not any(p.facts_of("process") for p in recorded.processes):
        return "no-torch", f"{name} ended without importing torch: there is no training to measure"
    if not recorded.trainers and how_else is not None:
        return "no-training-loop", f"{name} trains {how_else}: such a loop is not followed"
    if not recorded.trainers:
        return "no-training-loop", f"{name} ended without a backward or an optimizer step: there is nothing to measure"
    took = watched.breakdown.measured if watched is not None else 0
    return "too-few-steps", f"{name} ended after {took} whole steps past its warm-up; at least 3 are needed"
