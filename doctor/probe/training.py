"""Hooks on the training itself: outermost forward, outermost backward, optimizer steps, ``zero_grad``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from types import MethodType
from typing import Any

from fasttrain_doctor.probe import describe, state, unseen
from fasttrain_doctor.probe.accounting import accounting
from fasttrain_doctor.probe.imports import on_import
from fasttrain_doctor.probe.recorder import clock, thread_clock
from fasttrain_doctor.records import Call, Kind

_UPDATES_TO_LEARN = 3  # how long every module call is looked at before only the roots' classes are
_MOST_NESTED = 32  # calls an update inside other modules, each of which a hook on their class costs half a microsecond
# An Enum's members are slow to reach, and their arithmetic slower still.
_FORWARD, _BACKWARD, _OPTIMIZER = int(Kind.FORWARD), int(Kind.BACKWARD), int(Kind.OPTIMIZER)
_GRAD, _EVAL, _TRAINS, _LOSS = int(Call.GRAD), int(Call.EVAL), int(Call.TRAINS), int(Call.LOSS)

_roots: dict[type, Any] = {}  # class -> its own __call__ in its __dict__, or None
_nested: Counter[type] = Counter()  # calls inside other modules while every call was looked at
_class_wide: Any = None  # torch's own call, while every module's is looked at
_looks_at_all: Any = None  # what stands in its place


def _call(original: Any, heir: Any = None) -> Any:
    """Hook a call. ``heir``: a class without one of its own, whose bases are asked each time: others patch them too."""

    @unseen.wraps(original, compiled=True)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if _compiling():  # before all else: what is looked at while compiling is guarded
                return original(self, *args, **kwargs)
            call = MethodType(original, self) if heir is None else super(heir, self).__call__
            inside = state.inside
            loop = state.loop
            if inside.depth or loop.off:
                return call(*args, **kwargs)
            try:
                grad = _grad_enabled()
                serial, trains = _known(self, grad)
                flag = (_GRAD if grad else 0) | (0 if self.training else _EVAL) | (_TRAINS if trains else 0)
                loop.before_forward(self, flag)
                t0, cpu0 = clock(), thread_clock()
                waited, others = accounting(t0, cpu0) if loop.unasked else (0, 0)
            except Exception as error:
                state.degraded("forward", error)
                return call(*args, **kwargs)
            inside.depth += 1
            gave = None
            try:
                gave = call(*args, **kwargs)
                return gave
            finally:
                inside.depth -= 1
                # CPU first: the kernel prefers to put a thread off the CPU as it returns from a call, and reading the thread's
                # CPU time is one. What is then waited for belongs to the phase, as to whoever times it from outside.
                cpu1, t1 = thread_clock(), clock()
                if grad and loop.unasked and _gives_loss(gave):
                    flag |= _LOSS
                state.recorder.write(_FORWARD, flag, serial, t0, t1, cpu0, cpu1, waited, others, _nodes())
        except BaseException as error:
            unseen.strip(error)
            raise

    return __call__


def _gives_loss(gave: Any) -> bool:
    """Whether a number that a gradient can be taken of is among what a module gave; tensor subclasses are not asked."""
    if isinstance(gave, dict):
        gave = gave.values()
    elif not isinstance(gave, (list, tuple)):
        gave = (gave,)
    return any(type(x) is _tensor and x.requires_grad and x.dim() == 0 for x in islice(gave, 8))


def _learning(original: Any) -> Any:
    """Hook every module's call, and count those inside others."""
    outermost = _call(original)

    @unseen.wraps(original, compiled=True)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if not _compiling() and state.inside.depth:
                _nested[type(self)] += 1
                return original(self, *args, **kwargs)
            if _class_wide is None:  # another wrapper holds this one: it could not be taken away
                return original(self, *args, **kwargs)
            return outermost(self, *args, **kwargs)
        except BaseException as error:
            unseen.strip(error)
            raise

    return __call__


def _known(module: Any, grad: bool) -> tuple[int, bool]:
    """Return the number of a module that was seen to train, else 0, and whether any parameter of it can be trained."""
    found = _seen.get(id(module))
    if found is None or found.cls is not type(module):
        if len(_seen) > 4096:
            _seen.clear()
        parameters = list(module.parameters())
        found = _seen[id(module)] = _Module(type(module), any(p.requires_grad for p in parameters), 0)
        if parameters and _class_wide is not None:  # a frozen teacher's call is a forward as well
            _roots.setdefault(type(module), None)
    if grad and found.trains and not found.serial:
        found.serial, new = state.modules.get(module)
        if new:
            try:
                state.recorder.fact("model", id=found.serial, **describe.model(module))
            except Exception as error:
                state.degraded("model", error)
    return found.serial, found.trains


class _Module:
    __slots__ = ("cls", "serial", "trains")

    def __init__(self, cls: type, trains: bool, serial: int) -> None:
        self.cls, self.trains, self.serial = cls, trains, serial


_seen: dict[int, _Module] = {}  # by id: a module that takes a dead one's place is told apart by its class at most
_grad_enabled: Any = None
_compiling: Any = None
_tensor: Any = None
_nodes: Any = int  # how many autograd nodes this thread has made so far; 0 where torch does not say


def _learn(loop: Any) -> None:
    if _class_wide is not None and loop.updates >= _UPDATES_TO_LEARN:
        learn_done()


def learn_done() -> None:
    """Leave only the root classes' calls hooked: a call of any other module costs nothing from here on."""
    global _class_wide
    if _class_wide is None:
        return
    import torch

    hooked = []
    try:
        for cls in _worth_it():
            own = cls.__dict__.get("__call__")
            setattr(cls, "__call__", _call(own or _class_wide, None if own else cls))  # noqa: B010  mypy: a method
            hooked.append((cls, own))
    except Exception:  # a class that lets nobody change it: every call is looked at to the end
        for cls, own in hooked:
            setattr(cls, "__call__", own) if own else delattr(cls, "__call__")
        return
    _roots.update(hooked)
    if torch.nn.Module.__call__ is _looks_at_all:  # else the script has wrapped it meanwhile
        torch.nn.Module.__call__ = _class_wide  # type: ignore[method-assign]
    _class_wide = None


def _worth_it() -> list[type]:
    """Return the roots' classes without those called far more often inside others, unless there are no more."""
    most = _MOST_NESTED * max(1, state.loop.updates)
    return [cls for cls in _roots if _nested[cls] <= most] or list(_roots)


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
                nodes = _nodes()
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
                    _learn(loop)
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
        _learn(state.loop)
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


def _wrap_zero_grad(original: Any, kind: int) -> Any:
    @unseen.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if state.inside.depth or state.loop.off:
                return original(self, *args, **kwargs)
            t0, cpu0 = clock(), thread_clock()
            try:
                return original(self, *args, **kwargs)
            finally:
                cpu1, t1 = thread_clock(), clock()
                state.recorder.write(kind, 0, 0, t0, t1, cpu0, cpu1)
        except BaseException as error:
            unseen.strip(error)
            raise

    return zero_grad


def _on_compile(*_: Any) -> None:
    """Take the class-wide hook off before dynamo looks at ``Module.__call__``: no guard and no graph break is ours."""
    try:
        learn_done()
        unseen.skip_when_compiling()
    except Exception as error:
        state.degraded("compile", error)


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

    Optimizer.zero_grad = _wrap_zero_grad(Optimizer.zero_grad, int(Kind.ZERO_GRAD))  # type: ignore[method-assign]


def _install_scaler() -> None:
    try:
        from torch.amp.grad_scaler import GradScaler
    except ImportError:  # torch 2.0 to 2.2
        from torch.cuda.amp.grad_scaler import GradScaler  # type: ignore[assignment]

    for name in ("unscale_", "step", "update"):
        setattr(GradScaler, name, _wrap_scaler(getattr(GradScaler, name)))


def _install_backward() -> None:
    import torch

    global _nodes
    _nodes = getattr(torch.autograd, "_get_sequence_nr", _nodes)
    wrapped = _wrap_backward(torch.autograd.backward), _wrap_backward(torch.autograd.grad)
    torch.autograd.backward, torch.autograd.grad = wrapped


def _install_forward() -> None:
    import torch

    global _class_wide, _looks_at_all, _grad_enabled, _compiling, _tensor
    _tensor = torch.Tensor
    _grad_enabled = torch.is_grad_enabled
    # torch 2.1 and 2.2 have it elsewhere, and dynamo knows it there.
    _compiling = getattr(torch.compiler, "is_compiling", None) or getattr(torch._utils, "is_compiling", bool)
    _class_wide = torch.nn.Module.__call__
    _looks_at_all = _learning(_class_wide)
    torch.nn.Module.__call__ = _looks_at_all  # type: ignore[method-assign]
    on_import("torch._dynamo.callback", lambda module: module.on_compile_start(_on_compile))


# Each by itself: what one torch release lacks must not take the others with it.
PARTS: dict[str, Callable[[], None]] = {
    "optimizer": _install_optimizer,
    "forward": _install_forward,
    "backward": _install_backward,
    "zero_grad": _install_zero_grad,
    "scaler": _install_scaler,
}


def install() -> None:
    """Hook forward, backward, optimizer steps, zero_grad and gradient scalers (torch 2.1 to 2.14)."""
    for part in PARTS.values():
        part()
