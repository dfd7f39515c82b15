"""DL008: workers are started anew for each epoch, and that is a noticeable part of it."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import duration, line

LEAST = 0.03  # of an epoch; keeping the workers is a safe edit, named as soon as it is larger than noise


def check(evidence: Evidence) -> Finding | None:
    """Fire where workers are not kept between epochs and the start of an epoch takes a share of it."""
    loader, epoch = evidence.loader, evidence.epoch
    if loader is None or loader.num_workers == 0 or loader.persistent_workers or epoch is None:
        return None
    share = evidence.share_of_epoch(epoch.start)
    if share is None or epoch.start is None or share < LEAST:
        return None
    spawned = f"by {loader.start_method}" if loader.start_method not in (None, "fork") else ""
    message = line(
        f"starting the workers anew takes {share:.0%} of each epoch",
        f"{duration(epoch.start)} for {epoch.batches} batches",
        f"num_workers={loader.num_workers}",
        spawned,
        "persistent_workers=True keeps them",
    )
    facts: dict[str, object] = {
        "share_of_epoch": share,
        "seconds": epoch.start,
        "batches": epoch.batches,
        "num_workers": loader.num_workers,
        "start_method": loader.start_method,
    }
    return Finding(message, share, facts, of="epoch")


RULE = Rule(code="DL008", name="epoch-restart", fixes=("dataloader-workers",), check=check)
