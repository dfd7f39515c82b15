"""From what a planted script left to its blocks: what was planted in each, and what the product says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fasttrain_doctor import machine
from fasttrain_doctor.breakdown import break_down, window
from fasttrain_doctor.case import Case
from fasttrain_doctor.fetches import fetches_of
from fasttrain_doctor.gather import Watched, _spans, understand
from fasttrain_doctor.judging import judge
from fasttrain_doctor.look import look_of, waits_of, with_locks
from fasttrain_doctor.steps import Steps
from tests.truth import notes
from tests.truth.naming import Said
from tests.truth.notes import Took
from tests.truth.running import DROPPED, Doses, Ran, Script, Window

BATCH = 8
EARLY = 1e-4  # seconds by which the script may note a step's begin before it asks for the batch


@dataclass(frozen=True)
class Block:
    """A run of steps with the same doses. Seconds per step; ``parts`` are the script's own stopwatch."""

    script: Script
    doses: Doses
    planted: Mapping[str, Took]
    parts: Mapping[str, float]
    blocked: float  # share, in 0..1, of all fetching that was blocked on reads, by the script's notes
    locked: float  # share of it that was spent behind the lock
    stray: float | None  # what the training thread queued outside of what was planted
    said: Said


def blocks(ran: Ran) -> list[Block]:
    """Return the blocks of a script in the order in which they ran."""
    whole = understand(ran.recorded)
    assert whole is not None, f"{ran.script.name}: no steps were found"
    return [_block(ran, whole, w) for w in ran.windows]


def _block(ran: Ran, whole: Watched, at: Window) -> Block:
    watched = _watched(whole, at)
    measured = watched.window.measured
    first, last, count = measured[0].start / 1e9 - EARLY, measured[-1].end / 1e9 - EARLY, len(measured)
    mine = notes.between(ran.main, first, last)
    noted = [*mine, *notes.between(ran.others, first, last)]
    planted = notes.planted(noted, count)
    fetched = notes.fetched(noted, count) or 1.0
    waits = sum(planted[place].blocked for place in ("read", "sample", "spread") if place in planted)
    look = None
    if at.looked:
        look = look_of(at.looked, at.look_steps, BATCH)
        watched = replace(watched, breakdown=with_locks(watched.breakdown, waits_of(at.looked, at.look_steps)))
    case = Case(ran.script.name, [], "", machine.machine(), watched=watched, look=look)
    judge(case, ran.command)
    return Block(
        script=ran.script,
        doses=at.doses,
        planted=planted,
        parts=notes.parts(mine, count),
        blocked=waits / fetched,
        locked=(planted["lock"].blocked if "lock" in planted else 0.0) / fetched,
        stray=notes.stray(mine),
        said=Said(
            watched.breakdown,
            watched.fetches,
            look,
            {rule.name: finding.lost for rule, finding in case.findings if finding.of == "step"},
        ),
    )


def _watched(whole: Watched, at: Window) -> Watched:
    """Return what a diagnosis whose window were these steps would have understood."""
    inside = [s for s in whole.steps.steps if s.start >= at.began and s.end <= at.ended]
    steps: Steps = replace(whole.steps, steps=tuple(inside[DROPPED - 1 :]))
    breakdown = break_down(whole.process, whole.workers, steps, BATCH)
    assert breakdown is not None, f"no steps with {dict(at.doses)}"
    chosen = window(steps)
    return replace(
        whole,
        steps=steps,
        window=chosen,
        breakdown=breakdown,
        spans=_spans(whole.process, chosen),
        fetches=fetches_of(whole.process, whole.workers, steps, chosen.measured),
    )
