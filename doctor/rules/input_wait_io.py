"""IO001: the training thread waits for reads."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import CROWDED, Finding, Rule
from fasttrain_doctor.wording import count, line

LEAST = 0.03  # trying more workers is safe, so a wait is named as soon as it is larger than a machine's noise


def check(evidence: Evidence) -> Finding | None:
    """Fire where a share of the step is spent waiting for reads that nothing hides."""
    share = evidence.breakdown.share(Phase.IO)
    if share is None:
        return None
    bound = None if evidence.floor is None else evidence.floor.bound
    lost = min(share, 1.0) if bound is None else min(share, bound)
    if lost < LEAST:
        return None
    loader, cores = evidence.loader, evidence.machine.cores
    said = f"each step waits {share:.0%} of its time for reads"
    facts: dict[str, object] = {"seconds": evidence.breakdown.phases[Phase.IO], "share": share, "cores": cores}
    if bound is not None:
        facts["replay_bound"] = bound
    if loader is None:
        return Finding(line(said, "the loop reads without a DataLoader"), lost, facts)
    workers = loader.num_workers
    free = (evidence.breakdown.contention or 0.0) < CROWDED
    hint = "waiting takes no core: more workers than cores can help" if workers >= cores and free else ""
    message = line(said, f"num_workers={workers}, {count(cores)} CPU cores", hint)
    return Finding(message, lost, {**facts, "num_workers": workers, "prefetch_factor": loader.prefetch_factor})


RULE = Rule(code="IO001", name="input-wait-io", fixes=("dataloader-workers",), check=check)
