"""DL002: the training thread waits for data, and reads and preprocessing cannot be told apart."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule, waiting
from fasttrain_doctor.wording import count, line

LEAST = 0.03  # as for input-wait-io


def check(evidence: Evidence) -> Finding | None:
    """Fire on the wait for data where neither its reads nor its preprocessing was measured alone."""
    breakdown = evidence.breakdown
    if breakdown.data is None or breakdown.mean <= 0:
        return None
    if breakdown.phases.get(Phase.IO) is not None or breakdown.phases.get(Phase.PREPARE) is not None:
        return None  # input-wait-io and input-wait-cpu say it better
    share, lost = min(breakdown.data / breakdown.mean, 1.0), waiting(evidence)
    if lost is None or lost < LEAST:
        return None
    loader, cores = evidence.loader, evidence.machine.cores
    setting = "no DataLoader" if loader is None else f"num_workers={loader.num_workers}, {count(cores)} CPU cores"
    message = line(
        f"each step waits {share:.0%} of its time for data",
        setting,
        "reads and preprocessing cannot be told apart here",
    )
    facts: dict[str, object] = {"seconds": breakdown.data, "share": share, "cores": cores}
    if loader is not None:
        facts["num_workers"] = loader.num_workers
    return Finding(message, lost, facts)


RULE = Rule(code="DL002", name="input-wait", fixes=("dataloader-workers", "device-normalize"), check=check)
