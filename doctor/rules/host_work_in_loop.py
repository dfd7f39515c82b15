"""PY001: Python between the phases: metrics, clipping by hand, bookkeeping."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import duration, line, place

# Some Python is between the phases of any loop: `zero_grad`, a progress bar, a scheduler, unpacking the batch. In steps
# of a millisecond these alone come near a tenth.
LEAST = 0.1
NAMED = 0.1  # share of the work that a line must have to be named
SAMPLED = 1.25  # times the work that the samples of its lines may exceed it by: they are of another window
MOST = 2


def _hottest(evidence: Evidence, seconds: float) -> list[tuple[str, float]]:
    """Return the places that make up the work and what each takes. One that takes longer than all of it is a phase's.

    Where the loop makes its batches itself, their lines cannot be told from these: then none is named.
    """
    if evidence.look is None or {Phase.IO, Phase.PREPARE} & set(evidence.breakdown.inferred):
        return []
    sums: dict[str, float] = {}  # a comprehension is a function of its own on the same line
    for hot in evidence.look.loop_lines:
        sums[hot.place] = sums.get(hot.place, 0.0) + hot.seconds
    hottest = sorted(sums.items(), key=lambda one: -one[1])
    return [(at, took) for at, took in hottest if NAMED * seconds <= took <= SAMPLED * seconds][:MOST]


def check(evidence: Evidence) -> Finding | None:
    """Fire where the loop's own Python takes a share of the step; name lines only where they were seen."""
    seconds, share = evidence.breakdown.other.get("python"), evidence.share_of_part("python")
    if seconds is None or share is None or share < LEAST:
        return None
    hottest = _hottest(evidence, seconds)
    said = f"the loop's own Python, between the phases, takes {share:.0%} of each step"
    lines = [f"{duration(took)} at {place(at)}" for at, took in hottest]
    message = line(said, *(lines or [duration(seconds)]), "do it less often, or on many tensors at once")
    facts: dict[str, object] = {
        "share": share,
        "seconds": seconds,
        "lines": [f"{at} {duration(took)}" for at, took in hottest],
    }
    return Finding(message, share, facts)


RULE = Rule(code="PY001", name="host-work-in-loop", fixes=(), check=check)
