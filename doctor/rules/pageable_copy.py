"""H2D001: batches are copied to the device from pageable memory, and the step waits for it."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import duration, line

LEAST = 0.03  # pinning changes nothing about the training, so it is worth a trial wherever any trial is


def check(evidence: Evidence) -> Finding | None:
    """Fire where exposed copies to the device take a share of the step and their source is not pinned."""
    if evidence.model is None or evidence.model.device == "cpu":
        return None
    device, loader, copies = evidence.device, evidence.loader, evidence.copies
    share = evidence.breakdown.share(Phase.H2D)
    if share is None and device is not None:
        share = device.h2d_exposed
    if share is None or share < LEAST:
        return None
    pinned = None if loader is None else loader.pin_memory
    facts: dict[str, object] = {"share": share, "pin_memory": pinned}
    if device is not None and device.h2d_pageable_bytes + device.h2d_pinned_bytes > 0:
        facts |= {"pageable_bytes": device.h2d_pageable_bytes, "pinned_bytes": device.h2d_pinned_bytes}
        if device.h2d_pageable_bytes < device.h2d_pinned_bytes:
            return None
    elif copies is not None:
        facts |= {"pageable_bytes": copies.pageable_bytes, "blocking_bytes": copies.blocking_bytes}
        if copies.pageable_bytes <= copies.blocking_bytes:
            return None  # the script pins by itself
    elif pinned is not False:
        return None  # nothing says that the source was pageable
    hint = "pin_memory=True does not reach these tensors" if pinned else "pin_memory=False" if pinned is False else ""
    seconds = evidence.breakdown.phases.get(Phase.H2D)
    took = "" if seconds is None else duration(seconds)
    message = line(f"each step waits {share:.0%} of its time for copies from pageable memory to the device", took, hint)
    return Finding(message, min(share, 1.0), facts)


RULE = Rule(code="H2D001", name="pageable-copy", fixes=("pin-memory", "stream-prefetch"), check=check)
