"""The guided part of the search: each finding's fixes, the one that may still bring most first, kept greedily."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fasttrain_doctor.tuners.arms import key
from fasttrain_doctor.tuners.fixes import Knob, Value
from fasttrain_doctor.tuners.ladder import climb, roomy
from fasttrain_doctor.tuners.ledger import Ledger
from fasttrain_doctor.tuners.space import WORTH, Candidate, Skipped

REST = 0.5  # of the time left goes to a comparison that could not tell, once everything has had its turn
AGAIN = 1.1  # a fix that lost is tried once more when the other side of the step has gained this factor since


def guided(ledger: Ledger, candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[Skipped]]:
    """Try candidates until none may bring more than `WORTH`; return those kept and those not tried, with the reason."""
    waiting, kept = list(candidates), list[Candidate]()
    lost: list[tuple[Candidate, float]] = []  # with what the other side had gained when it lost
    unsure: list[tuple[float, Candidate, Value]] = []  # what its pairs differed too much to tell, with their middle
    while waiting and not ledger.arms.over():
        candidate = max(waiting, key=lambda c: _left(ledger, c))  # the first of equals: findings before guesses
        if _left(ledger, candidate) <= WORTH:
            break
        waiting.remove(candidate)
        value = _choose(ledger, candidate)
        if value is None:
            continue
        if ledger.earnest({**ledger.best, candidate.fix.name: value}, candidate.fix, "guided"):
            kept.append(candidate)
            again = [c for c, gained in lost if _other_gain(ledger, c) >= AGAIN * gained]
            waiting, lost = [*waiting, *again], [(c, gained) for c, gained in lost if c not in again]
        else:
            lost.append((candidate, _other_gain(ledger, candidate)))
            if (middle := _unsure(ledger)) > 1.0 + WORTH:
                unsure.append((middle, candidate, value))
    for _, candidate, value in sorted(unsure, key=lambda u: -u[0]):
        if candidate in kept or ledger.arms.over():
            continue
        if ledger.earnest({**ledger.best, candidate.fix.name: value}, candidate.fix, "guided", share=REST):
            kept.append(candidate)
    return kept, [Skipped(c.fix.name, _why_not(ledger, c)) for c in waiting if c.fix.name not in _tried(ledger)]


def _unsure(ledger: Ledger) -> float:
    """Return the middle of the last comparison where it could not tell, else 0."""
    verdict = ledger.contests[-1][2].verdict
    return verdict.speedup.mid if verdict.kind == "inconclusive" and verdict.speedup is not None else 0.0


def _left(ledger: Ledger, candidate: Candidate) -> float:
    return candidate.left(ledger.side_gain[candidate.fix.side], _other_gain(ledger, candidate))


def _other_gain(ledger: Ledger, candidate: Candidate) -> float:
    return math.prod(gain for side, gain in ledger.side_gain.items() if side != candidate.fix.side)


def _tried(ledger: Ledger) -> set[str]:
    return {name for trial in ledger.trials for name in trial.settings}


def _why_not(ledger: Ledger, candidate: Candidate) -> str:
    left = _left(ledger, candidate)
    return ledger.arms.ended if left > WORTH else f"at most {left:.1%} of the step is left for it to gain"


def _choose(ledger: Ledger, candidate: Candidate) -> Value | None:
    """Return the value to compare in earnest, None where none runs or no time is left."""
    rungs = next((knob for knob in candidate.knobs if knob.log), None)
    gains: list[tuple[float, Value]] = []

    def look(value: Value) -> float | None:
        return ledger.look({**ledger.best, candidate.fix.name: value}, candidate.fix, "guided")

    inside = [value for value in candidate.values if rungs is not None and _on(rungs, value)]
    if rungs is not None and inside:
        noise = ledger.arms.noise.sd
        shape, start = inside[0], _count(inside[0], rungs.key)
        seen = climb(lambda n: look(with_knob(shape, rungs.key, n)), start or rungs.low, rungs.low, rungs.high, noise)
        best = roomy(seen, noise)
        if best is not None:
            gains.append((seen[best] or 0.0, with_knob(shape, rungs.key, best)))
    others = [value for value in candidate.values if value not in inside]
    if len(others) == 1 and not inside:
        return others[0]
    for value in others:
        gain = look(value)
        if gain is not None:
            gains.append((gain, value))
    return max(gains, key=lambda pair: (pair[0], key({"": pair[1]})))[1] if gains else None


def _on(knob: Knob, value: Value) -> bool:
    count = _count(value, knob.key)
    return count is not None and knob.low <= count <= knob.high


def _count(value: Value, name: str) -> int | None:
    """Return the count a value holds under a knob's name."""
    count = value.get(name) if isinstance(value, Mapping) else None
    return int(count) if isinstance(count, int) else None


def with_knob(value: Value, name: str, count: int) -> Value:
    """Return a value with one of its keys turned."""
    assert isinstance(value, Mapping), "only a table of settings has knobs"
    return {**value, name: count}
