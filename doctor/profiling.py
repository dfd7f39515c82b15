"""The deep pass, from the parent's side: a few steps under torch.profiler, and what their trace says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fasttrain_doctor import endings
from fasttrain_doctor.case import Case
from fasttrain_doctor.errors import DoctorError
from fasttrain_doctor.tuners.bench import SessionEnded
from fasttrain_doctor.tuners.session import Session

if TYPE_CHECKING:
    from fasttrain_doctor.diagnosing import Diagnosing

PROFILED = 4


def profile(work: Diagnosing, session: Session) -> None:
    """Profile a few steps; what could not be read is noted."""
    watched = work.case.watched
    assert watched is not None
    expected = watched.breakdown.mean * PROFILED
    if expected > 0.25 * max(work.left(), 1.0):
        work.case.missing("operators", f"{PROFILED} profiled steps would take {expected:.0f} s")
        return
    path = work.writer.run.trace()
    work.progress.say(f"profiling {PROFILED} steps")
    try:
        answer = session.ask(
            {"do": "profile", "steps": PROFILED, "path": str(path)}, work.patience() + 20 + 20 * expected
        )
    except SessionEnded as ended:
        work.case.missing("operators", ended.reason)
        if status := session.child.wait(2):
            work.note_failure(endings.how(status))
        return
    if "failed" in answer:
        work.case.missing("operators", str(answer["failed"]))
        return
    read_trace(work.case, path)


def read_trace(case: Case, path: Path) -> None:
    """Read the deep pass's trace."""
    from fasttrain_doctor.trace import operators
    from fasttrain_doctor.trace_device import device_metrics
    from fasttrain_doctor.trace_read import read

    try:
        trace = read(path)
        case.trace = path.name
        case.operators = operators(trace)
        case.device = device_metrics(trace)
    except DoctorError as error:
        case.missing("operators", str(error))
