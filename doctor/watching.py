"""The window: how long a script is watched before it is judged."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fasttrain_doctor import gather
from fasttrain_doctor.diagnosis import Overhead
from fasttrain_doctor.gather import Watched
from fasttrain_doctor.recorded import read_probe
from fasttrain_doctor.records import Kind, Record
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


@dataclass(frozen=True, slots=True)
class Price:
    """What hooks cost where they ran, in ns: a call, a fetch with its first sample, each further sample."""

    call: float
    fetch: float
    sample: float

    def of(self, record: Record) -> float:
        """Return what one record cost."""
        if record.kind is Kind.ITEMS:
            return 0.0  # with its fetch
        if record.kind is Kind.FETCH:
            return self.fetch + max(0, record.c - 1) * self.sample
        return self.call


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
    price: Price | None = None
    ended: str | None = None
    watched: Watched | None = None
    wanted = asked or STEPS
    for _ in range(ROUNDS if asked else 1):
        try:
            price = _observe(session, wanted, timeout, math.inf if asked is not None else most)
        except SessionEnded as error:
            ended = error.reason
        recorded = read_probe(probe)
        watched = gather.understand(recorded)
        measured = watched.breakdown.measured if watched is not None else 0
        if ended is not None or asked is None or measured >= asked:
            break
        wanted = asked - measured + 1
    overhead = _overhead(watched, price) if watched is not None and price is not None else None
    return Seen(watched, recorded.degraded(), overhead, ended)


def _observe(session: Session, wanted: int, timeout: float, most: float) -> Price:
    """Let the loop run; returns what hooks cost there. ``most``: seconds after which FEWEST steps do.

    Raises:
        SessionEnded: the script ended or hung.
    """
    began = time.monotonic()
    seen, price = 0, Price(0.0, 0.0, 0.0)
    while seen < wanted:
        took = time.monotonic() - began
        enough = ENOUGH if took <= most else FEWEST
        patient = most == math.inf
        if not patient and took > WINDOW_SECONDS and seen >= enough:
            break
        steps = wanted - seen if patient or took <= WINDOW_SECONDS else max(1, min(wanted, enough) - seen)
        answer = session.ask({"do": "observe", "steps": steps, "seconds": WINDOW_SECONDS}, timeout)
        seen += int(answer["steps"])
        price = Price(*(float(answer[name]) for name in ("record_ns", "fetch_ns", "sample_ns")))
    return price


def _overhead(watched: Watched, price: Price) -> Overhead:
    """Return what watching cost: the records of the measured steps at their prices.

    What it cost the loader's workers counts as if the loop had waited for it, which it does where data is the limit.
    """
    steps = watched.window.measured
    first, last = steps[0].start, steps[-1].end
    records = chain.from_iterable(p.records for p in (watched.process, *watched.workers))
    per_step = sum(price.of(r) for r in records if first <= r.t0 < last) / 1e9 / len(steps)
    return Overhead(per_step=per_step, share=per_step / watched.breakdown.mean)
