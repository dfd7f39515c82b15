"""H2D002: batches lie in pinned memory, and their copies to the device still hold the host."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import line, place

LEAST = 0.03  # the flag changes nothing about the training, so it is worth a trial wherever any trial is


def check(evidence: Evidence) -> Finding | None:
    """Fire where exposed copies take a share of the step and most of their bytes came blocking from pinned memory."""
    model, copies, device = evidence.model, evidence.copies, evidence.device
    if model is None or model.device == "cpu" or copies is None:
        return None
    if copies.blocking_bytes <= copies.pageable_bytes:
        return None  # pageable-copy's: from there the flag does nothing
    # How long the host sat in the copies proves nothing about the device: only the device's clock counts.
    share = evidence.breakdown.share(Phase.H2D) if evidence.breakdown.clock == "device" else None
    if share is None and device is not None:
        share = device.h2d_exposed
    if share is None:
        return None
    lost = min(share * copies.blocking_bytes / (copies.blocking_bytes + copies.pageable_bytes), 1.0)
    if lost < LEAST:
        return None
    message = line(
        f"each step waits {lost:.0%} of its time for copies that block the host though their source is pinned",
        "" if copies.place is None else f"at {place(copies.place)}",
        "non_blocking=True",
    )
    facts: dict[str, object] = {
        "share": share,
        "host_seconds": copies.blocking,
        "blocking_bytes": copies.blocking_bytes,
        "pageable_bytes": copies.pageable_bytes,
        "at": copies.place,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="H2D002", name="blocking-copy", fixes=("pin-memory", "stream-prefetch"), check=check)
