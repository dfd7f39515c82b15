"""OP001: the update walks over its tensors in many small operations."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Optimizer, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import duration, line, name

LEAST = 0.05  # the update must still read and write every parameter, so less than this share can be won

HAVE_FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
# On a device the grouped form, its default, launches a handful of kernels for all tensors of a kind. Where these are few
# and each keeps the device busy for longer than a launch takes, fusing was reported to bring nothing.
FEW = 16
LARGE = 1 << 20  # elements


def _saturates(optimizer: Optimizer) -> bool:
    """Whether an update, not fused, is a few large kernels already. On a CPU it is not: 2 x 4 M elements ran 13x faster."""
    grouped = optimizer.device != "cpu" and optimizer.foreach is not False
    return grouped and 0 < optimizer.parameters <= FEW and optimizer.elements >= LARGE * optimizer.parameters


def check(evidence: Evidence) -> Finding | None:
    """Fire where the optimizer takes a share of the step and at least one optimizer is not fused."""
    share = evidence.breakdown.share(Phase.OPTIMIZER)
    if share is None or share < LEAST:
        return None
    slow = max(
        (o for o in evidence.optimizers if not o.fused and not _saturates(o)), key=lambda o: o.parameters, default=None
    )
    if slow is None:
        return None
    seconds = evidence.breakdown.phases[Phase.OPTIMIZER] or 0.0
    kind = slow.cls.rpartition(".")[2]
    fusible = slow.cls.startswith("torch.optim.") and kind in HAVE_FUSED
    how = "foreach=False" if slow.foreach is False else "fused=False" if fusible else "no fused form known"
    message = line(
        f"the optimizer takes {share:.0%} of each step",
        duration(seconds),
        f"`{name(kind)}` over {slow.parameters} tensors, {how}",
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
