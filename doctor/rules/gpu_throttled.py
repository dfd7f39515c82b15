"""GPU001: the accelerator ran below its clock: hot, or at its power limit."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import line

# reason as NVML gives it -> what it means, what to look at, share of the samples from which it counts. Heat and hardware
# slowdowns should not be at all; a few of a short window's samples may be the load coming up. Power is capped in every
# dense computation on the largest GPUs, as they are built: only where it is the rule is a lowered limit worth a look.
REASONS = {
    "thermal-software": ("too hot", "look at its cooling and its neighbours", 0.05),
    "thermal-hardware": ("too hot", "look at its cooling and its neighbours", 0.05),
    "hardware-slowdown": ("slowed by its hardware", "look at its cooling and its power supply", 0.05),
    "power-brake": ("slowed by its power supply", "the machine's supply asks for it", 0.05),
    "power-cap": ("at its power limit", "compare power.limit and power.default_limit in nvidia-smi", 0.5),
}
LEAST = 0.03


def check(evidence: Evidence) -> Finding | None:
    """Fire on what held the GPU back, the power limit last, idleness and the user's own settings never."""
    slowed = () if evidence.pressure is None else evidence.pressure.gpu_slowed_by
    counted = [(reason, share) for reason, share in slowed if reason in REASONS and share >= REASONS[reason][2]]
    if not counted:
        return None
    reason, share = max(counted, key=lambda one: (one[0] != "power-cap", one[1]))
    shares = [evidence.breakdown.share(p) for p in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)]
    device = evidence.device
    compute = device.compute if device is not None else min(sum(x or 0.0 for x in shares), 1.0)
    lost = min(share, 1.0) * compute  # at most: by how much it was slowed is not known
    if lost < LEAST:
        return None
    state, look, _ = REASONS[reason]
    facts: dict[str, object] = {"reasons": dict(slowed), "compute_share": compute, "sample_share": share}
    return Finding(line(f"the GPU was {state} in {share:.0%} of the samples", look), lost, facts)


RULE = Rule(code="GPU001", name="gpu-throttled", fixes=(), check=check)
