"""EVAL001: the training stands while the model is evaluated."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import duration, line

LEAST = 0.03  # inside the loop: evaluating every few steps only is a safe edit, named as soon as it is more than noise
# At the end of an epoch evaluation is what people want and pay for: on the usual splits (a tenth of the data held out, a
# forward being a third of a step) it takes 3 to 5 %. From 15 % on it is no longer a matter of course.
LEAST_OF_EPOCH = 0.15


def check(evidence: Evidence) -> Finding | None:
    """Fire where evaluation takes a share of the step, or else a large one of the epoch."""
    seconds, mean = evidence.breakdown.other.get("eval"), evidence.breakdown.mean
    if seconds is not None and mean > 0 and seconds / mean >= LEAST:
        share = min(seconds / mean, 1.0)
        said = f"evaluation inside the loop takes {share:.0%} of each step"
        message = line(said, duration(seconds), "evaluate every few hundred steps, or on fewer samples")
        return Finding(message, share, {"share": share, "seconds": seconds})
    epoch = evidence.epoch
    between = None if epoch is None else epoch.eval
    of_epoch = evidence.share_of_epoch(between)
    if epoch is None or between is None or of_epoch is None or of_epoch < LEAST_OF_EPOCH:
        return None
    said = f"evaluation takes {of_epoch:.0%} of each epoch"
    against = f"{duration(between)} after {epoch.batches} batches"
    message = line(said, against, "evaluate every few epochs, with larger batches, or on fewer samples")
    return Finding(message, of_epoch, {"share": of_epoch, "seconds": between, "batches": epoch.batches}, of="epoch")


RULE = Rule(code="EVAL001", name="eval-dominates", fixes=(), check=check)
