"""BATCH001: so little work is in each operator that the step is what calling them costs."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import duration, line

# From single-threaded MLPs, CNNs and transformers at batches of 1 to 1024: as long as a larger batch was nearly free, an
# operator of the deep pass took 0.6 to 2.6 µs of its own; once time grew with the batch, 4 µs and more. Step time over
# calls of operators, at a batch of 1, was 2.1 to 4.3 µs: what a call costs, Python and autograd included.
TINY = 3e-6  # seconds an operator takes by itself when there is next to nothing to compute
CALL = 2e-6  # seconds that calling one costs at least
LEAST = 0.3  # share of the step: below it overhead is not what the step is made of, and a larger batch brings little
# On a device: its idle time while the host calls operators slower than it runs them. Others call 15 % critical.
LEAST_ON_DEVICE = 0.15


def check(evidence: Evidence) -> Finding | None:
    """Fire where calling operators, not computing, makes up the step, and the batch is known."""
    breakdown = evidence.breakdown
    samples, batches = breakdown.samples_per_step, breakdown.batches_per_step
    if not samples or batches <= 0 or breakdown.mean <= 0:
        return None
    batch = samples / batches
    remedy = "a larger batch" if evidence.model is None or evidence.model.compiled else "a larger batch, torch.compile"
    if evidence.device is not None:
        lost = min(evidence.device.idle_by_reason.get("dispatch", 0.0), 1.0)
        if lost < LEAST_ON_DEVICE:
            return None
        said = (
            f"the device is idle {lost:.0%} of the step, done with batches of {batch:.0f} before the host calls again"
        )
        return Finding(line(said, f"try {remedy}"), lost, {"share": lost, "batch": batch})
    seen = evidence.operator_calls()
    if seen is None:
        return None
    calls, each = seen
    compute = sum(breakdown.share(phase) or 0.0 for phase in (Phase.FORWARD, Phase.BACKWARD))
    lost = min(compute, calls * CALL / breakdown.mean, 1.0)
    if each > TINY or lost < LEAST:
        return None
    said = f"batches of {batch:.0f} are little work: calling {calls:.0f} operators of {duration(each)} takes {lost:.0%} of each step"
    facts: dict[str, object] = {"share": lost, "batch": batch, "calls": calls, "operator_seconds": each}
    return Finding(line(said, f"try {remedy}"), lost, facts)


RULE = Rule(code="BATCH001", name="small-batch", fixes=(), check=check)
