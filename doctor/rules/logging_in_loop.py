"""LOG001: the step waits while a log line, a metric or an image is written."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import costliest, duration, line, place

LEAST = 0.03  # writing less often is a safe edit, so it is named as soon as it is larger than a machine's noise


def check(evidence: Evidence) -> Finding | None:
    """Fire where writing logs takes a share of the step."""
    seconds, share = evidence.breakdown.other.get("logging"), evidence.share_of_part("logging")
    if seconds is None or share is None or share < LEAST:
        return None
    worst = costliest(evidence.spans, "logging")
    where = "" if worst is None else f"{duration(worst[1])} at {place(worst[0])}"
    message = line(f"logging takes {share:.0%} of each step", where or duration(seconds), "log every few steps")
    facts: dict[str, object] = {"share": share, "seconds": seconds, "at": None if worst is None else worst[0]}
    return Finding(message, share, facts)


RULE = Rule(code="LOG001", name="logging-in-loop", fixes=(), check=check)
