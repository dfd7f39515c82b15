"""GC001: the step stands while Python looks for garbage."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import costliest, duration, line, place

LEAST = 0.03  # both remedies leave the training bit-identical, so it is named as soon as it is more than noise
ASKED = 0.5  # share of the pauses that the script asked for itself, from which the call is the thing to change


def check(evidence: Evidence) -> Finding | None:
    """Fire where collections take a share of the step; tell those the script asks for from automatic ones."""
    seconds, share = evidence.breakdown.other.get("gc"), evidence.share_of_part("gc")
    if seconds is None or share is None or share < LEAST:
        return None
    asked = sum(span[1] for span in evidence.spans.get("gc", ()))  # only calls of gc.collect() have a place
    worst = costliest(evidence.spans, "gc")
    if worst is not None and asked >= ASKED * seconds:
        details = [f"gc.collect() at {place(worst[0])}", "call it once an epoch, if at all"]
    else:  # never gc.disable(): cycles then pile up until memory is out
        details = ["automatic", "make fewer objects a step, gc.freeze() after setup"]
    facts: dict[str, object] = {
        "share": share,
        "seconds": seconds,
        "asked_seconds": asked,
        "at": None if worst is None else worst[0],
    }
    return Finding(
        line(f"garbage collection takes {share:.0%} of each step", duration(seconds), *details), share, facts
    )


RULE = Rule(code="GC001", name="gc-pauses", fixes=(), check=check)
