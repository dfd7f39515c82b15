"""DL007: the loop makes its batches itself, between two steps, where a DataLoader could make them ahead."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, HotLine, Phase
from fasttrain_doctor.rules import Finding, Rule, waiting
from fasttrain_doctor.wording import duration, line, place

LEAST = 0.05  # it takes an edit of the script, and what is inferred here is no better known than that
NAMED = 0.1  # share of the making that a line must have to be named
# Times the making: what takes longer is a phase's line. A line that fits into the Python elsewhere in the loop may be its.
ABOVE = 1.2  # sampling its stacks makes a step longer
MOST = 2


def _hottest(evidence: Evidence, seconds: float) -> list[HotLine]:
    """Return the lines that can only be the batch's."""
    lines = () if evidence.look is None else evidence.look.loop_lines
    least = max(NAMED * seconds, ABOVE * (evidence.breakdown.other.get("python") or 0.0))
    inside = [hot for hot in lines if least <= hot.seconds <= ABOVE * seconds]
    return sorted(inside, key=lambda hot: -hot.seconds)[:MOST]


def check(evidence: Evidence) -> Finding | None:
    """Fire where no loader is asked and making the batch, between update and forward, takes a share of the step."""
    breakdown = evidence.breakdown
    made = {Phase.IO, Phase.PREPARE} & set(breakdown.inferred)
    if evidence.loader is not None or not made or breakdown.data is None:
        return None
    share = waiting(evidence)
    if share is None or share < LEAST:
        return None
    hottest = _hottest(evidence, breakdown.data)
    lines = [f"{duration(hot.seconds)} at {place(hot.place)}" for hot in hottest]
    message = line(
        f"the loop makes its batches itself in {share:.0%} of each step",
        *(lines or [duration(breakdown.data)])[:1],
        "make them ahead in a DataLoader",
        *lines[1:],
    )
    facts: dict[str, object] = {
        "share": share,
        "seconds": breakdown.data,
        "io_seconds": breakdown.phases.get(Phase.IO),
        "lines": [f"{hot.place} {hot.function} {duration(hot.seconds)}" for hot in hottest],
    }
    return Finding(message, share, facts)


RULE = Rule(code="DL007", name="data-outside-loader", fixes=(), check=check)
