"""AMP001: float32 arithmetic where the hardware has faster units for lower precision."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Model, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.wording import line

LEAST = 0.3  # share of the step in forward and backward; below it even halving them brings little, and casts cost
TINY = 3e-6  # seconds a CPU operator takes by itself when there is next to nothing in it to speed up (see small-batch)
SEEN = 0.5  # share of matrix time on tensor cores from which the arithmetic is not full precision any more

# How many times faster the unit multiplies than float32 at its best. V100: 125 / 15.7 TFLOP/s (later ones: more against
# plain float32). TF32: half the rate of bf16 on every unit that has it. AMX: 1024 against 64 multiply-adds a cycle;
# AVX512_BF16: two products a lane.
TENSOR_CORES = 8.0
OVER_TF32 = 2.0
AMX = 16.0
AVX512_BF16 = 2.0


def _gain(evidence: Evidence, model: Model) -> tuple[float, str] | None:
    """Return the peak ratio of lower precision to float32 on the unit there is and what it is called."""
    if model.device == "cpu":
        flags, operators = evidence.machine.cpu_flags, evidence.operator_calls()
        if operators is not None and operators[1] <= TINY:
            return None
        if "amx_bf16" in flags:
            return AMX, "the CPU has amx_bf16"
        return (AVX512_BF16, "the CPU has avx512_bf16") if "avx512_bf16" in flags else None
    gpu = evidence.machine.gpus[0] if evidence.machine.gpus else None
    if gpu is None or gpu.capability is None or gpu.capability < (7, 0):
        return None
    seen = None if evidence.device is None else evidence.device.tensor_core
    if model.tf32:
        return OVER_TF32, "TF32 is on, bf16 runs at twice its rate"
    if seen is not None and seen >= SEEN:
        return None
    return TENSOR_CORES, "tensor cores not known to be used" if seen is None else f"tensor cores seen in {seen:.0%}"


def check(evidence: Evidence) -> Finding | None:
    """Fire where a float32 model without autocast spends the step computing on hardware made for less precision."""
    model = evidence.model
    if model is None or model.dtype != "float32" or model.autocast is not None or model.grad_scaler:
        return None
    known = [x for phase in (Phase.FORWARD, Phase.BACKWARD) if (x := evidence.breakdown.share(phase)) is not None]
    # Both hold the device's idle time, where the host launches slower than it computes: there the casts only cost.
    shares = [*([sum(known)] if known else []), *([evidence.device.compute] if evidence.device is not None else [])]
    if not shares:
        return None
    compute = min(1.0, *shares)
    gain = _gain(evidence, model)
    if gain is None or compute < LEAST:
        return None
    ratio, unit = gain
    lost = compute * (1 - 1 / ratio)
    message = line(f"forward and backward take {compute:.0%} of each step in float32", unit, "no autocast seen")
    facts: dict[str, object] = {"share": compute, "peak_ratio": ratio, "tf32": model.tf32}
    if evidence.device is not None:
        facts["tensor_core"] = evidence.device.tensor_core
    return Finding(message, lost, facts)


RULE = Rule(code="AMP001", name="full-precision-compute", fixes=("amp",), check=check)
