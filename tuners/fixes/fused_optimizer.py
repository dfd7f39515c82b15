"""Let torch update all parameters in one pass: the optimizer's own ``fused`` implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fasttrain_doctor.evidence import Effect, Evidence, Optimizer, Phase
from fasttrain_doctor.tuners.fixes import Change, Fix, Options, Value

# Exactly these classes: a subclass may override step, and then the flag means nothing.
FUSED = {
    "torch.optim.adam.Adam": ("cpu", "cuda"),
    "torch.optim.adamw.AdamW": ("cpu", "cuda"),
    "torch.optim.sgd.SGD": ("cpu", "cuda"),
    "torch.optim.adagrad.Adagrad": ("cpu",),
}
FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})
WORTH = 0.02


def _refusal(optimizer: Optimizer) -> str:
    if optimizer.cls not in FUSED:
        return f"`{optimizer.cls}` has no fused implementation"
    if optimizer.fused:
        return f"`{optimizer.cls}` is fused already"
    if optimizer.differentiable:
        return f"`{optimizer.cls}` is differentiable, which fused does not support"
    if optimizer.device.split(":")[0] not in FUSED[optimizer.cls]:
        return f"`{optimizer.cls}` has no fused implementation on {optimizer.device}"
    if not FLOATS.issuperset(optimizer.dtypes):
        return f"`{optimizer.cls}` updates parameters that are not floating-point: {', '.join(optimizer.dtypes)}"
    return ""


def options(evidence: Evidence) -> Options:
    """Offer it where at least one optimizer can be fused and its step is worth a trial."""
    if not evidence.optimizers:
        return Options(reason="no torch optimizer stepped")
    reasons = [_refusal(optimizer) for optimizer in evidence.optimizers]
    if all(reasons):
        return Options(reason=reasons[0])
    share = evidence.breakdown.share(Phase.OPTIMIZER)
    if share is not None and share < WORTH:
        return Options(reason=f"the optimizer takes only {share:.1%} of the step")
    return Options((True,))


def effect(_: Evidence, __: Value) -> Effect:
    """Judge: the same update, with its operations in another order."""
    return Effect.ROUNDING


def expected(evidence: Evidence, _: Value) -> float | None:
    """Guess that half of the optimizer's time goes."""
    share = evidence.breakdown.share(Phase.OPTIMIZER)
    return None if share is None else 1 / (1 - 0.5 * min(max(share, 0.0), 0.99))


def _qualified(optimizer: Any) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _suits(optimizer: Any) -> bool:
    devices = FUSED.get(_qualified(optimizer))
    if devices is None:
        return False
    for group in optimizer.param_groups:
        if group.get("fused") or group.get("differentiable"):
            return False
        for parameter in group["params"]:
            sparse = parameter.grad is not None and parameter.grad.is_sparse
            if sparse or not parameter.is_floating_point() or parameter.device.type not in devices:
                return False
    return True


def fuse(optimizer: Any) -> Callable[[], None] | None:
    """Switch ``optimizer`` to its fused implementation; returns the undo, None where it cannot be."""
    import torch

    if not _suits(optimizer):
        return None
    before = [(group, group.get("fused"), group.get("foreach")) for group in optimizer.param_groups]
    defaults = {key: optimizer.defaults.get(key) for key in ("fused", "foreach")}
    steps = {p: state["step"] for p, state in optimizer.state.items() if torch.is_tensor(state.get("step"))}
    places = {(step.device, step.dtype) for step in steps.values()}

    def move_steps(home: tuple[Any, Any] | None) -> None:
        # The fused kernels read the step count beside the parameter and as float32; the others keep it on the host.
        for parameter, state in optimizer.state.items():
            if torch.is_tensor(state.get("step")):
                device, dtype = home or (parameter.device, torch.float32)
                state["step"] = state["step"].to(device, dtype)

    def switch(group: dict[str, Any], fused: Any, foreach: Any) -> None:
        group["fused"], group["foreach"] = fused, foreach

    move_steps(None)
    for group, _, _ in before:
        switch(group, True, False)
    optimizer.defaults.update(fused=True, foreach=False)

    def undo() -> None:
        # A step count made while fused goes where this optimizer would have made it.
        capturable = any(group.get("capturable") for group in optimizer.param_groups)
        if not capturable:
            move_steps(next(iter(places), (torch.device("cpu"), torch.get_default_dtype())))
        known = {id(group): (fused, foreach) for group, fused, foreach in before}
        for group in optimizer.param_groups:
            switch(group, *known.get(id(group), (defaults["fused"], defaults["foreach"])))
        optimizer.defaults.update(defaults)

    return undo


def install(value: Value) -> Change:
    """Fuse each training optimizer that can be.

    Raises:
        ValueError: the value is not ``true``.
    """
    if value is not True:
        raise ValueError(f"fused-optimizer takes true, got {value!r}")
    return Change(optimizer=fuse)


def applied(_: Value) -> str:
    """Word the change."""
    return "fused=True"


FIX = Fix(
    name="fused-optimizer",
    summary="update all parameters in one pass with the optimizer's fused implementation",
    effect=effect,
    options=options,
    install=install,
    applied=applied,
    expected=expected,
)
