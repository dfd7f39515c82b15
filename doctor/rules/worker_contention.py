"""DL003: more workers than cores to run them, and the step pays for the queue."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import CROWDED, Finding, Rule, own_load, waiting
from fasttrain_doctor.wording import count, line

LEAST = 0.03  # another number of workers changes nothing about the training, so it is named once larger than noise
WORTH = 0.03  # share of the step that the training thread itself queues for, from which it is worth a word


def _reads_more(evidence: Evidence) -> bool:
    """Whether the workers wait for reads more than they compute: then more of them than cores can be right."""
    breakdown = evidence.breakdown
    io, prepare = (
        (breakdown.phases.get(phase) or 0.0) + (breakdown.hidden.get(phase) or 0.0)
        for phase in (Phase.IO, Phase.PREPARE)
    )
    return io > prepare


def check(evidence: Evidence) -> Finding | None:
    """Fire where computing workers, at least as many as cores, queue for them, and the step waits or queues as well."""
    loader, contention = evidence.loader, evidence.breakdown.contention
    if loader is None or loader.num_workers == 0 or contention is None or contention < CROWDED:
        return None
    cores, workers = evidence.machine.cores, loader.num_workers
    if workers * evidence.world < cores or _reads_more(evidence) or not own_load(evidence):
        return None
    waits, queued = waiting(evidence), evidence.queued
    # Of the wait no more goes than the share that was queueing; what the training thread queues for may go altogether.
    lost = min(1.0, contention * (waits or 0.0) + (queued or 0.0))
    if lost < LEAST:
        return None
    ranks = f"{evidence.world} ranks" if evidence.world > 1 else ""
    own = f"the training thread {queued:.0%} of the step" if queued is not None and queued >= WORTH else ""
    message = line(
        f"workers wait {contention:.0%} of their time for a core",
        f"num_workers={workers}, {count(cores)} CPU cores",
        ranks,
        own,
        "try fewer",
    )
    facts: dict[str, object] = {
        "contention": contention,
        "num_workers": workers,
        "cores": cores,
        "waiting": waits,
        "queued": queued,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="DL003", name="worker-contention", fixes=("dataloader-workers",), check=check)
