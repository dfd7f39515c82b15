"""Whether there is an accelerator that the training uses, for the fixes that do nothing without one."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase


def missing(evidence: Evidence) -> str:
    """Return why a fix for accelerators does not apply, or nothing."""
    if not evidence.machine.gpus:
        return "there is no accelerator on this machine"
    if evidence.model is None:
        return "no model was seen to train"
    if not evidence.model.device.startswith("cuda"):
        return f"the model trains on `{evidence.model.device}`, not on the accelerator"
    return ""


def copy_share(evidence: Evidence) -> float | None:
    """Return the share of the step that copies to the device take, None where it was not measured."""
    if evidence.device is not None:
        return evidence.device.h2d_exposed
    return evidence.breakdown.share(Phase.H2D)
