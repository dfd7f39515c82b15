"""DL001: the training thread waits for preprocessing."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import CROWDED, Finding, Rule
from fasttrain_doctor.wording import count, line

LEAST = 0.03  # as for reads


def check(evidence: Evidence) -> Finding | None:
    """Fire where a share of the step goes to decoding, transforms and collation that nothing hides."""
    share = evidence.breakdown.share(Phase.PREPARE)
    if share is None:
        return None
    bound = None if evidence.floor is None else evidence.floor.bound
    lost = min(share, 1.0) if bound is None else min(share, bound)
    if lost < LEAST:
        return None
    loader, cores, contention = evidence.loader, evidence.machine.cores, evidence.breakdown.contention
    said = f"each step waits {share:.0%} of its time for preprocessing"
    facts: dict[str, object] = {
        "seconds": evidence.breakdown.phases[Phase.PREPARE],
        "share": share,
        "cores": cores,
        "contention": contention,
    }
    if bound is not None:
        facts["replay_bound"] = bound
    crowded = f"{contention:.0%} of it queued for a core" if contention is not None and contention >= CROWDED else ""
    if loader is None:
        return Finding(line(said, "the loop prepares batches itself, without a DataLoader", crowded), lost, facts)
    workers = loader.num_workers
    full = "the cores are taken: do less per sample" if workers >= cores else ""
    message = line(said, f"num_workers={workers}, {count(cores)} CPU cores", crowded, full)
    return Finding(message, lost, {**facts, "num_workers": workers, "prefetch_factor": loader.prefetch_factor})


RULE = Rule(code="DL001", name="input-wait-cpu", fixes=("dataloader-workers", "device-normalize"), check=check)
