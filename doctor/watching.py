"""The window: how long a script is watched before it is judged."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from fasttrain_doctor import gather
from fasttrain_doctor.diagnosis import Overhead
from fasttrain_doctor.gather import Watched
from fasttrain_doctor.recorded import read_probe
from fasttrain_doctor.tuners.bench import SessionEnded
from fasttrain_doctor.tuners.session import Session

STEPS = 60  # of the window, unless asked for otherwise
WINDOW_SECONDS = 8.0  # after which fewer steps do, but no fewer than ENOUGH
ENOUGH = 8
MOST_SECONDS = 60.0  # after which FEWEST do, however slow the steps are
SHARE = 0.3  # of the budget, if that is less
FEWEST = 4  # three to measure and one to warm up
ROUNDS = 3  # times that a window asked for is made longer because its beginning was warm-up


@dataclass(frozen=True, slots=True)
class Seen:
    """What the window showed. ``watched`` is None where no whole step was found; ``ended`` says why it was cut short."""

    watched: Watched | None
    degraded: list[str]
    overhead: Overhead | None
    ended: str | None


def watch(session: Session, probe: Path, asked: int | None, timeout: float, budget: float) -> Seen:
    """Watch a window and understand it.

    Args:
        session: paused at its first border.
        probe: where its processes write.
        asked: steps to measure past the warm-up; None: what a window of ``STEPS`` holds.
        timeout: seconds without an answer after which the loop counts as hung.
        budget: seconds that the whole diagnosis may take.
    """
    most = min(MOST_SECONDS, SHARE * budget)
    cost: float | None = None
    ended: str | None = None
    watched: Watched | None = None
    wanted = asked or STEPS
    for _ in range(ROUNDS if asked else 1):
        try:
            cost = _observe(session, wanted, timeout, math.inf if asked is not None else most)
        except SessionEnded as error:
            ended = error.reason
        recorded = read_probe(probe)
        watched = gather.understand(recorded)
        measured = watched.breakdown.measured if watched is not None else 0
        if ended is not None or asked is None or measured >= asked:
            break
        wanted = asked - measured + 1
    overhead = _overhead(watched, cost) if watched is not None and cost is not None else None
    return Seen(watched, recorded.degraded(), overhead, ended)


def _observe(session: Session, wanted: int, timeout: float, most: float) -> float:
    """Let the loop run; returns the cost of a record in ns. ``most``: seconds after which FEWEST steps do.

    Raises:
        SessionEnded: the script ended or hung.
    """
    began = time.monotonic()
    seen, cost = 0, 0.0
    while seen < wanted:
        took = time.monotonic() - began
        enough = ENOUGH if took <= most else FEWEST
        patient = most == math.inf
        if not patient and took > WINDOW_SECONDS and seen >= enough:
            break
        steps = wanted - seen if patient or took <= WINDOW_SECONDS else max(1, min(wanted, enough) - seen)
        answer = session.ask({"do": "observe", "steps": steps, "seconds": WINDOW_SECONDS}, timeout)
        seen += int(answer["steps"])
        cost = float(answer["record_ns"])
    return cost


def _overhead(watched: Watched, cost_ns: float) -> Overhead:
    """Return what watching cost: the records of the measured steps at the price of one, timed in that process."""
    steps = watched.window.measured
    first, last = steps[0].start, steps[-1].end
    count = sum(first <= r.t0 < last for r in watched.process.records)
    per_step = count * cost_ns / 1e9 / len(steps)
    return Overhead(per_step=per_step, share=per_step / watched.breakdown.mean)
