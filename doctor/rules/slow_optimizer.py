"""OP001: the update walks over its tensors in many small operations."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import duration, line, name

LEAST = 0.05  # the update must still read and write every parameter, so less than this share can be won


def check(evidence: Evidence) -> Finding | None:
    """Fire where the optimizer takes a share of the step and at least one optimizer is not fused."""
    share = evidence.breakdown.share(Phase.OPTIMIZER)
    if share is None or share < LEAST:
        return None
    slow = max((o for o in evidence.optimizers if not o.fused), key=lambda o: o.parameters, default=None)
    if slow is None:
        return None
    seconds = evidence.breakdown.phases[Phase.OPTIMIZER] or 0.0
    how = "foreach=False" if slow.foreach is False else "fused=False"
    message = line(
        f"the optimizer takes {share:.0%} of each step",
        duration(seconds),
        f"`{name(slow.cls.rpartition('.')[2])}` over {slow.parameters} tensors, {how}",
    )
    facts: dict[str, object] = {
        "share": share,
        "seconds": seconds,
        "optimizer": slow.cls,
        "tensors": slow.parameters,
        "elements": slow.elements,
        "foreach": slow.foreach,
        "fused": slow.fused,
    }
    return Finding(message, min(share, 1.0), facts)


RULE = Rule(code="OP001", name="slow-optimizer", fixes=("fused-optimizer",), check=check)
