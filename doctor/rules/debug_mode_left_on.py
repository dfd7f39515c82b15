"""DBG001: a mode meant for debugging was on while the training ran."""

from __future__ import annotations

from fasttrain_doctor.evidence import Debug, Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import line, name

LEAST = 0.03  # turning it off leaves the training as it was meant, so it is named as soon as it can be more than noise
_COMPUTE = (Phase.FORWARD, Phase.BACKWARD)
_ON_HOST = (Phase.PREPARE, *_COMPUTE, Phase.OPTIMIZER, Phase.OTHER)


def _slowed(mode: Debug, device: str) -> tuple[Phase, ...]:
    """Return the phases a mode slows: all that the training process does itself where it hooks every call."""
    if "anomaly" in mode.name:
        return (
            _COMPUTE  # a traceback kept for each operator of the forward, a search for NaN after each of the backward
        )
    if "determin" in mode.name:
        # Other algorithms only on an accelerator; on a CPU filling new memory is what is left, and it is small.
        return () if device == "cpu" else _COMPUTE
    return _ON_HOST


def check(evidence: Evidence) -> Finding | None:
    """Fire on the modes that can cost; the loss is the share of the phases they slow, as their own cost is not known."""
    breakdown = evidence.breakdown
    device = "cpu" if evidence.model is None else evidence.model.device
    slowing = [(mode, phases) for mode in evidence.debug or () if (phases := _slowed(mode, device))]
    if not slowing:
        return None
    slowed = {phase for _, phases in slowing for phase in phases}
    lost = min(sum(breakdown.share(phase) or 0.0 for phase in slowed), 1.0)
    if lost < LEAST:
        return None
    modes = " and ".join(name(mode.name) for mode, _ in slowing[:2])
    message = line(f"debugging is on: {modes}", f"slows up to {lost:.0%} of each step", "turn it off")
    facts: dict[str, object] = {
        "modes": [f"{name(mode.name)}: {name(mode.how, 80)}" for mode, _ in slowing],
        "share": lost,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="DBG001", name="debug-mode-left-on", fixes=(), check=check)
