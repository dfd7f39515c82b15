"""Hooks on the training itself: outermost backward, optimizer steps, clearing and clipping, and the forwards' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fasttrain_doctor.probe import describe, forwards, state, unseen
from fasttrain_doctor.probe.accounting import accounting
from fasttrain_doctor.probe.forwards import learn
from fasttrain_doctor.probe.imports import on_import
from fasttrain_doctor.probe.recorder import clock, thread_clock
from fasttrain_doctor.records import Kind

# An Enum's members are slow to reach.
_BACKWARD, _OPTIMIZER, _GRADIENTS = int(Kind.BACKWARD), int(Kind.OPTIMIZER), int(Kind.GRADIENTS)


def _wrap_backward(original: Any) -> Any:
    @unseen.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        try:
            inside = state.inside
            loop = state.loop
            if inside.backward or loop.off:
                return original(*args, **kwargs)
            outer = inside.depth
            try:
                call = loop.before_backward(original, args, kwargs)
                nodes = forwards.nodes()
                t0, cpu0 = clock(), thread_clock()
                waited, others = accounting(t0, cpu0) if loop.unasked else (0, 0)
            except Exception as error:
                state.degraded("backward", error)
                return original(*args, **kwargs)
            inside.backward += 1
            inside.depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                inside.backward -= 1
                inside.depth -= 1
                cpu1, t1 = thread_clock(), clock()
                state.recorder.write(_BACKWARD, int(bool(outer)), 0, t0, t1, cpu0, cpu1, waited, others, nodes)
                try:
                    loop.after_backward()
                    learn(loop)
                except Exception as error:
                    state.degraded("backward", error)
        except BaseException as error:
            unseen.strip(error)
            raise

    return backward


_open_steps: dict[int, tuple[int, int, int]] = {}


def _closure(original: Any) -> Any:
    """Note when an optimizer calls its closure: what runs in it is a training step, not the optimizer's work."""

    @unseen.wraps(original)
    def closure(*args: Any, **kwargs: Any) -> Any:
        try:
            t0, cpu0 = clock(), thread_clock()
            try:
                return original(*args, **kwargs)
            finally:
                cpu1, t1 = thread_clock(), clock()
                state.recorder.write(Kind.CLOSURE, 0, 0, t0, t1, cpu0, cpu1)
        except BaseException as error:
            unseen.strip(error)
            raise

    return closure


def _number(optimizer: Any) -> int:
    """Return the optimizer's number; its facts are written the first time."""
    serial, new = state.optimizers.get(optimizer)
    if new:
        state.recorder.fact("optimizer", id=serial, framework=describe.framework(), **describe.optimizer(optimizer))
    return serial


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    """Note the step's begin; returns other arguments for it where there is a closure to be seen (torch's own way)."""
    try:
        if state.loop.off:
            return None
        serial = _number(optimizer)
        state.loop.before_step(optimizer)
        state.inside.optimizer += 1
        changed = None
        if callable(kwargs.get("closure")):
            changed = args, {**kwargs, "closure": _closure(kwargs["closure"])}
        elif len(args) > 1 and callable(args[1]):
            changed = (args[0], _closure(args[1]), *args[2:]), kwargs
        _open_steps[id(optimizer)] = (serial, clock(), thread_clock())
        return changed
    except Exception as error:
        state.degraded("optimizer", error)
        return None


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    try:
        opened = _open_steps.pop(id(optimizer), None)
        if opened is None or state.loop.off:
            return
        state.inside.optimizer = 0
        serial, t0, cpu0 = opened
        cpu1, t1 = thread_clock(), clock()
        waited, others = accounting(t1, cpu1) if state.loop.unasked else (0, 0)
        state.recorder.write(_OPTIMIZER, 0, serial, t0, t1, cpu0, cpu1, waited, others)
        state.loop.after_step(serial)
        learn(state.loop)
    except Exception as error:
        state.degraded("optimizer", error)


def _wrap_scaler(original: Any) -> Any:
    """Follow a gradient scaler: an update that it skips ends a step as one that it takes does."""

    @unseen.wraps(original)
    def scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            loop = state.loop
            if state.inside.depth or loop.off:
                return original(self, *args, **kwargs)
            steps = loop.optimizer_steps
            t0, cpu0 = clock(), thread_clock()
            gave = original(self, *args, **kwargs)
            try:
                cpu1, t1 = thread_clock(), clock()
                state.recorder.write(Kind.UPDATE, 0, 0, t0, t1, cpu0, cpu1)
                if original.__name__ == "step" and loop.optimizer_steps == steps:
                    waited, others = accounting(t1, cpu1) if loop.unasked else (0, 0)
                    serial = _number(args[0] if args else kwargs["optimizer"])
                    state.recorder.write(_OPTIMIZER, 1, serial, t0, t1, cpu0, cpu1, waited, others)
                    loop.after_step(serial)
            except Exception as error:
                state.degraded("scaler", error)
            return gave
        except BaseException as error:
            unseen.strip(error)
            raise

    return scaled


def _wrap_foreign(original: Any) -> Any:
    """Follow the step of an optimizer that is no torch optimizer, unless a torch optimizer steps in it."""

    @unseen.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            loop = state.loop
            if state.inside.depth or loop.off:
                return original(self, *args, **kwargs)
            steps = loop.optimizer_steps
            t0, cpu0 = clock(), thread_clock()
            gave = original(self, *args, **kwargs)
            try:
                if loop.optimizer_steps == steps:
                    cpu1, t1 = thread_clock(), clock()
                    waited, others = accounting(t1, cpu1) if loop.unasked else (0, 0)
                    state.recorder.write(Kind.OPTIMIZER, 0, _number(self), t0, t1, cpu0, cpu1, waited, others)
                    loop.after_step(_number(self))
            except Exception as error:
                state.degraded("optimizer", error)
            return gave
        except BaseException as error:
            unseen.strip(error)
            raise

    return step


def _hook_fastai(module: Any) -> None:
    module.Optimizer.step = _wrap_foreign(module.Optimizer.step)


def _wrap_gradients(original: Any) -> Any:
    """Note when gradients are cleared or clipped: the optimizer's work, though not in its step."""
    compiling = unseen.is_compiling()

    @unseen.wraps(original)
    def on_gradients(*args: Any, **kwargs: Any) -> Any:
        try:
            if compiling() or state.inside.depth or state.loop.off:
                return original(*args, **kwargs)
            t0, cpu0 = clock(), thread_clock()
            try:
                return original(*args, **kwargs)
            finally:
                cpu1, t1 = thread_clock(), clock()
                state.recorder.write(_GRADIENTS, 0, 0, t0, t1, cpu0, cpu1)
        except BaseException as error:
            unseen.strip(error)
            raise

    return on_gradients


def install_steps() -> None:
    """Hook optimizer steps alone, through torch's own global hooks (torch 2.0 to 2.14)."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _install_optimizer() -> None:
    install_steps()
    on_import("fastai.optimizer", _hook_fastai)


def _install_zero_grad() -> None:
    from torch.optim.optimizer import Optimizer

    Optimizer.zero_grad = _wrap_gradients(Optimizer.zero_grad)  # type: ignore[method-assign]


def _install_clipping() -> None:
    """Hook clipping where it was made and where scripts take it from."""
    import torch
    from torch.nn.utils import clip_grad

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        hooked = _wrap_gradients(getattr(clip_grad, name))
        setattr(clip_grad, name, hooked)
        setattr(torch.nn.utils, name, hooked)


def _install_scaler() -> None:
    try:
        from torch.amp.grad_scaler import GradScaler
    except ImportError:  # torch 2.0 to 2.2
        from torch.cuda.amp.grad_scaler import GradScaler  # type: ignore[assignment]

    for name in ("unscale_", "step", "update"):
        setattr(GradScaler, name, _wrap_scaler(getattr(GradScaler, name)))


def _install_backward() -> None:
    import torch

    forwards.count_nodes()
    wrapped = _wrap_backward(torch.autograd.backward), _wrap_backward(torch.autograd.grad)
    torch.autograd.backward, torch.autograd.grad = wrapped


# Each by itself: what one torch release lacks must not take the others with it.
PARTS: dict[str, Callable[[], None]] = {
    "optimizer": _install_optimizer,
    "forward": forwards.install,
    "backward": _install_backward,
    "zero_grad": _install_zero_grad,
    "clipping": _install_clipping,
    "scaler": _install_scaler,
}


def install() -> None:
    """Hook forward, backward, optimizer steps, zero_grad, clipping and gradient scalers (torch 2.1 to 2.14)."""
    for part in PARTS.values():
        part()
