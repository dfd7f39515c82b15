"""LOCK001: the step waits for a lock that another thread or process holds."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import costliest, duration, line, place

LEAST = 0.03  # as for any wait: named as soon as it is larger than a machine's noise


def check(evidence: Evidence) -> Finding | None:
    """Fire where waiting for locks takes a share of the step; name the line that waits, where it was seen."""
    seconds, mean = evidence.breakdown.other.get("lock"), evidence.breakdown.mean
    if seconds is None or mean <= 0 or seconds / mean < LEAST:
        return None
    share = min(seconds / mean, 1.0)
    worst = costliest(evidence.spans, "lock")
    where = evidence.look.lock_place if evidence.look is not None else None
    where = where or (worst[0] if worst is not None else None)
    took = duration(seconds) if where is None else f"{duration(seconds)}, at {place(where)}"
    message = line(f"waiting for a lock takes {share:.0%} of each step", took, "hold it for less, or have one each")
    return Finding(message, share, {"share": share, "seconds": seconds, "at": where})


RULE = Rule(code="LOCK001", name="lock-wait", fixes=(), check=check)
