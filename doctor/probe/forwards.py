"""Hooks on forwards: the outermost module call, of every class until the loop is known, then of its roots' alone."""

from __future__ import annotations

from collections import Counter
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
_FORWARD = int(Kind.FORWARD)
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
                state.recorder.write(_FORWARD, flag, serial, t0, t1, cpu0, cpu1, waited, others, nodes())
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
nodes: Any = int  # how many autograd nodes this thread has made so far; 0 where torch does not say


def learn(loop: Any) -> None:
    """Leave only the roots hooked once enough updates were seen."""
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
            own, call = cls.__dict__.get("__call__"), cls.__call__
            call = _call(_class_wide if call is _looks_at_all else call, None if own else cls)
            setattr(cls, "__call__", call)  # noqa: B010  mypy takes it for a method
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


def _on_compile(*_: Any) -> None:
    """Take the class-wide hook off before dynamo looks at ``Module.__call__``: no guard and no graph break is ours."""
    try:
        learn_done()
        unseen.skip_when_compiling()
    except Exception as error:
        state.degraded("compile", error)


def count_nodes() -> None:
    """Find torch's counter of the autograd nodes that this thread has made."""
    global nodes
    import torch

    nodes = getattr(torch.autograd, "_get_sequence_nr", nodes)


def install() -> None:
    """Hook every module's call."""
    import torch

    global _class_wide, _looks_at_all, _grad_enabled, _compiling, _tensor
    count_nodes()
    _tensor = torch.Tensor
    _grad_enabled = torch.is_grad_enabled
    _compiling = unseen.is_compiling()
    _class_wide = torch.nn.Module.__call__
    _looks_at_all = _learning(_class_wide)
    torch.nn.Module.__call__ = _looks_at_all  # type: ignore[method-assign]
    on_import("torch._dynamo.callback", lambda module: module.on_compile_start(_on_compile))
