"""The look inside, from the parent's side: after the observed window and the profiled steps, never in a comparison."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from fasttrain_doctor import endings
from fasttrain_doctor.case import Case
from fasttrain_doctor.gather import Watched
from fasttrain_doctor.look import look_of, looked, pending, waits_of, why_not_timed, with_locks
from fasttrain_doctor.recorded import Recorded, read_probe
from fasttrain_doctor.tuners.bench import SessionEnded
from fasttrain_doctor.tuners.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from fasttrain_doctor.diagnosing import Diagnosing

SECONDS = 2.0  # that a look takes at least, and twice that at most
STEPS = 30  # that are enough
FEWEST = 5  # of a script that ended meanwhile, below which they tell nothing
SHARE = 0.08  # of what is left of the budget: more is not spent on it
_WRITING = 3.0  # seconds that workers may take to write what they saw


def look(work: Diagnosing, session: Session) -> None:
    """Look inside; what could not be seen is noted."""
    case = work.case
    watched = case.watched
    assert watched is not None
    most = min(2 * SECONDS, SHARE * work.left())
    step = watched.breakdown.mean
    if 2 * step > most:
        case.missing("look", f"two steps take {2 * step:.1f} s, and the look had {max(0.0, most):.1f} s")
        return
    work.progress.say("looking inside for a moment")
    try:
        command = {"do": "look", "steps": STEPS, "seconds": most / 2}
        answer = session.ask(command, work.patience() + 2 * most + 20 * step)
    except SessionEnded as ended:
        _as_far_as_it_got(work, watched, ended.reason)
        if status := session.child.wait(2):
            work.note_failure(endings.how(status))
        return
    if "failed" in answer:
        case.missing("look", str(answer["failed"]))
        return
    understand(case, watched, _read(work.writer.run.probe), int(answer["steps"]))


def _as_far_as_it_got(work: Diagnosing, watched: Watched, reason: str) -> None:
    """Make what can be made of a look in which the script has ended: it writes what it saw as it ends."""
    recorded = _read(work.writer.run.probe)
    facts = looked(recorded, watched)
    steps = int(facts[0]["steps"]) if facts else 0
    if steps < FEWEST:
        work.case.missing("look", reason)
    else:
        understand(work.case, watched, recorded, steps)


def _read(probe: Path) -> Recorded:
    """Read what the processes wrote, once the workers have."""
    until = time.monotonic() + _WRITING
    recorded = read_probe(probe)
    while pending(recorded) and time.monotonic() < until:
        time.sleep(0.05)
        recorded = read_probe(probe)
    return recorded


def understand(case: Case, watched: Watched, recorded: Recorded, steps: int) -> None:
    """Put into the case what the look showed, and into its breakdown the waits for locks."""
    facts = looked(recorded, watched)
    if not facts:
        case.missing("look", "the process that trains wrote nothing of it")
        return
    if int(facts[0]["pid"]) != watched.process.pid:
        case.missing("look", "only one rank can be looked into, and it is not the slowest")
        return
    case.look = look_of(facts, steps, watched.breakdown.samples_per_step)
    case.watched = replace(watched, breakdown=with_locks(watched.breakdown, waits_of(facts, steps)))
    if case.look.transforms is None and (why := why_not_timed(facts)):
        case.missing("transforms", why)
