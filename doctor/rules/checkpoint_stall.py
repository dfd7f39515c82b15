"""CKPT001: the training waits while it is being saved."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import costliest, duration, line, place

LEAST = 0.03  # saving less often is a safe edit, so it is named as soon as it is larger than a machine's noise


def check(evidence: Evidence) -> Finding | None:
    """Fire where saving takes a share of the step, or else of the epoch."""
    seconds, share = evidence.breakdown.other.get("checkpoint"), evidence.share_of_part("checkpoint")
    worst = costliest(evidence.spans, "checkpoint")
    at = None if worst is None else worst[0]
    where = "" if at is None else f" at {place(at)}"
    if seconds is not None and share is not None and share >= LEAST:
        said = f"saving takes {share:.0%} of each step"
        facts: dict[str, object] = {"share": share, "seconds": seconds, "at": at}
        return Finding(line(said, f"{duration(seconds)}{where}", "save less often, or from a thread"), share, facts)
    saving = None if evidence.epoch is None else evidence.epoch.checkpoint
    of_epoch = evidence.share_of_epoch(saving)
    if saving is None or of_epoch is None or of_epoch < LEAST:
        return None
    said = f"saving takes {of_epoch:.0%} of each epoch, between its steps"
    message = line(said, f"{duration(saving)}{where}", "save every few epochs, or from a thread")
    return Finding(message, of_epoch, {"share": of_epoch, "seconds": saving, "at": at}, of="epoch")


RULE = Rule(code="CKPT001", name="checkpoint-stall", fixes=(), check=check)
