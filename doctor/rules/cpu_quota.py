"""CPU002: the control group's quota stops the script while the machine shows more cores than it gives."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule, waiting
from fasttrain_doctor.wording import count, line

LEAST = 0.03  # of the step; bursts that a quota cuts short now and then cost less and are how quotas work


def _bound(evidence: Evidence) -> float:
    """Return the share of the step that CPU time can shorten: not what waits for reads, nor what a device computes."""
    if evidence.breakdown.clock == "device":
        idle = evidence.device.idle if evidence.device is not None else None
        return (waiting(evidence) or 0.0) if idle is None else idle
    return max(0.0, 1.0 - (evidence.breakdown.share(Phase.IO) or 0.0))


def check(evidence: Evidence) -> Finding | None:
    """Fire where the quota held back a share of the CPU time asked for, and the step is made of such time."""
    pressure, machine = evidence.pressure, evidence.machine
    if pressure is None or not pressure.throttled or machine.cores >= machine.logical_cores:
        return None
    used = machine.cores if pressure.tree_cpu is None else pressure.tree_cpu
    held = pressure.throttled / (pressure.throttled + used)  # each second held back is one a CPU had work for
    lost = held * min(1.0, _bound(evidence))
    if lost < LEAST:
        return None
    workers = 0 if evidence.loader is None else evidence.loader.num_workers
    asked = [f"num_workers={workers}"] if workers * evidence.world >= machine.cores else []
    if evidence.threads is not None and evidence.threads * evidence.world > machine.cores:
        asked.append(f"{evidence.threads} compute threads")
    hint = "set them by the quota" if asked else "raise the quota, or do less per sample"
    message = line(
        f"a quota of {count(machine.cores)} CPU cores held back {held:.0%} of the CPU time asked for",
        f"{machine.logical_cores} visible",
        *asked,
        hint,
    )
    facts: dict[str, object] = {
        "quota_cores": machine.cores,
        "logical_cores": machine.logical_cores,
        "throttled": pressure.throttled,
        "used_cores": used,
        "held_back": held,
        "num_workers": workers,
        "threads": evidence.threads,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="CPU002", name="cpu-quota", fixes=("dataloader-workers",), check=check)
