"""Compute the training forward in bfloat16 or float16 where that keeps its results, by autocast around it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from fasttrain_doctor.evidence import Effect, Evidence, Phase
from fasttrain_doctor.tuners.fixes import Change, Fix, Options, Value
from fasttrain_doctor.tuners.fixes._scaling import LossScaling

DTYPES = ("bfloat16", "float16")
BF16_CAPABILITY = (8, 0)  # Ampere: the first tensor cores that take bfloat16; before, it is emulated
CPU_BF16 = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "sve_bf16", "bf16"})
NO_CLOSURES = ("torch.optim.lbfgs.LBFGS",)
WORTH = 0.03


def _refusal(evidence: Evidence) -> str:
    model = evidence.model
    if model is None:
        return "no model was seen to train"
    if model.autocast is not None:
        return f"the script computes under autocast already ({model.autocast})"
    if model.grad_scaler:
        return "the script scales its gradients itself"
    if model.dtype != "float32":
        return f"the model's parameters are {model.dtype}, not float32"
    shares = [evidence.breakdown.share(phase) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    known = [share for share in shares if share is not None]
    if known and sum(known) < WORTH:
        return f"forward and backward take only {sum(known):.1%} of the step"
    return ""


def options(evidence: Evidence) -> Options:
    """Offer bfloat16 where the hardware has it, float16 with loss scaling on older accelerators."""
    reason, model, machine = _refusal(evidence), evidence.model, evidence.machine
    if reason or model is None:
        return Options(reason=reason)
    if model.device.startswith("cuda"):
        capability = machine.gpus[0].capability if machine.gpus else None
        if capability is None:
            return Options(reason="what the accelerator computes in is not known: its capability was not read")
        if capability >= BF16_CAPABILITY:
            return Options(("bfloat16",))
        if not evidence.optimizers:
            return Options(reason="no torch optimizer steps here: float16 could not skip a step that overflowed")
        if any(optimizer.cls in NO_CLOSURES for optimizer in evidence.optimizers):
            return Options(reason="LBFGS takes a closure, which loss scaling does not support")
        return Options(("float16",))
    if model.device != "cpu":
        return Options(reason=f"not known to help on `{model.device}`")
    if not CPU_BF16.intersection(machine.cpu_flags):
        return Options(reason="this CPU has no bfloat16 instructions: it would be emulated")
    return Options(("bfloat16",))


def effect(_: Evidence, __: Value) -> Effect:
    """Judge: the matrix products of the forward and its backward are rounded to 8 or 11 bits."""
    return Effect.PRECISION


def expected(evidence: Evidence, _: Value) -> float | None:
    """Guess that forward and backward take half as long."""
    shares = [evidence.breakdown.share(phase) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    known = [share for share in shares if share is not None]
    return 1 / (1 - 0.5 * min(sum(known), 0.99)) if known else None


def install(value: Value) -> Change:
    """Put autocast around forward and loss; with float16, scale the loss around each backward.

    Raises:
        ValueError: the value names neither type.
    """
    if value not in DTYPES:
        raise ValueError(f'amp takes "bfloat16" or "float16", got {value!r}')

    scaling = LossScaling() if value == "float16" else None

    def forward(module: Any) -> AbstractContextManager[Any]:
        import torch

        if scaling is not None:
            scaling.watch(module)
        first = next(iter(module.parameters()), None)
        device = "cpu" if first is None else first.device.type
        return torch.autocast(device, dtype=getattr(torch, str(value)))

    if scaling is None:
        return Change(forward=forward)
    return Change(forward=forward, backward=scaling.backward, step=scaling.step)


def applied(value: Value) -> str:
    """Word the change."""
    return f"autocast to {value}" + (", loss scaled" if value == "float16" else "")


FIX = Fix(
    name="amp",
    summary="compute the training forward in bfloat16, or in float16 with loss scaling",
    effect=effect,
    options=options,
    install=install,
    applied=applied,
    expected=expected,
)
