"""SYNC001: the loop waits for the device, and the device then waits for the loop."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import costliest, duration, line, place

LEAST = 0.03  # a blocking read that the device is too busy to notice costs nothing; below this nobody would see it go


def _share(evidence: Evidence) -> float | None:
    """Share of the step that blocking reads cost; None where only host intervals are known of a device's step."""
    if evidence.device is not None:
        return evidence.device.idle_by_reason.get("sync")
    on_device = evidence.model is not None and evidence.model.device != "cpu"
    if on_device and evidence.breakdown.clock == "host":
        return None  # how long the host waited says nothing about what the device lost
    return evidence.share_of_part("sync")


def check(evidence: Evidence) -> Finding | None:
    """Fire where the device stands idle while the host sits in a call that waits for it."""
    share = _share(evidence)
    if share is None or share < LEAST:
        return None
    worst = costliest(evidence.spans, "sync")
    if evidence.device is None:
        said = f"each step loses {share:.0%} of its time to calls that wait for the device"
    else:
        said = f"the device is idle {share:.0%} of the step while the host waits for its results"
    where = "" if worst is None else f"{duration(worst[1])} at {place(worst[0])}"
    facts: dict[str, object] = {"share": share, "at": None if worst is None else worst[0]}
    return Finding(line(said, where, "read values every few steps"), min(share, 1.0), facts)


RULE = Rule(code="SYNC001", name="host-sync-in-loop", fixes=(), check=check)
