"""Hooks on what is not training but happens inside a step: checkpoints, logging, collectives, blocking reads, gc."""

from __future__ import annotations

import builtins
import gc
import sys
from typing import Any

from fasttrain_doctor.probe import state, unseen
from fasttrain_doctor.probe.imports import on_import
from fasttrain_doctor.probe.recorder import clock, thread_clock
from fasttrain_doctor.records import Kind, Span

_MOST_PLACES = 256
WORTH_A_PLACE = 20_000  # ns: what takes less is not worth the look for its line
_places: dict[tuple[str, int], int] = {}


def place() -> int:
    """Number the user's line that got us here; 0 when there is none or there are too many."""
    at = state.user_line(3)
    if at is None:
        return 0
    key = at[:2]
    number = _places.get(key)
    if number is None:
        if len(_places) >= _MOST_PLACES:
            return 0
        number = _places[key] = len(_places) + 1
        state.recorder.fact("place", id=number, file=at[0], line=at[1])
    return number


def _wrap(original: Any, span: Span) -> Any:
    @unseen.wraps(original)
    def spanned(*args: Any, **kwargs: Any) -> Any:
        try:
            inside = state.inside
            if inside.depth or state.loop.off or not state.loop.began:
                return original(*args, **kwargs)
            t0, cpu0 = clock(), thread_clock()
            inside.depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                inside.depth -= 1
                try:
                    cpu1, t1 = thread_clock(), clock()
                    at = place() if t1 - t0 > WORTH_A_PLACE else 0
                    state.recorder.write(Kind.SPAN, span, 0, t0, t1, cpu0, cpu1, at)
                except Exception as error:
                    state.degraded(f"span-{span.name.lower()}", error)
        except BaseException as error:
            unseen.strip(error)
            raise

    return spanned


def _patch(owner: Any, names: tuple[str, ...], span: Span) -> None:
    for name in names:
        original = getattr(owner, name, None)
        if callable(original):
            spanned = _wrap(original, span)
            setattr(owner, name, spanned)
            # Where it was made as well: pickled by name, it must be found to be the same there.
            home = sys.modules.get(getattr(original, "__module__", None) or "")
            if getattr(home, name, None) is original:
                setattr(home, name, spanned)


class _Print:
    """Stands in for ``print``. No function of Python's: as an attribute of a class that one would become a method."""

    def __init__(self, original: Any) -> None:
        told = {name: getattr(original, name) for name in ("__doc__", "__module__", "__name__", "__qualname__")}
        self.__dict__.update(told, __wrapped__=original, _spanned=_wrap(original, Span.LOGGING))

    @unseen.pass_over
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._spanned(*args, **kwargs)
        except BaseException as error:
            unseen.strip(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> str:
        return str(self.__name__)  # copied and pickled as a global is: by its name


_gc_open, _gc_asked = 0, False
_gc_count, _gc_threshold, _gc_on = gc.get_count, gc.get_threshold, gc.isenabled


def _collected(phase: str, info: dict[str, int]) -> None:
    """Record a collection; with its place where the script asked for it.

    The interpreter comes to one by itself only when more objects were made than the first threshold says.
    """
    global _gc_open, _gc_asked
    try:
        if phase == "start":
            _gc_asked = not _gc_on() or _gc_count()[0] <= _gc_threshold()[0]
            _gc_open = clock()
        elif _gc_open and state.loop.began and not state.loop.off:
            t1 = clock()
            if t1 - _gc_open > WORTH_A_PLACE:
                at = place() if _gc_asked else 0
                state.recorder.write(Kind.SPAN, Span.GC, info.get("generation", 0), _gc_open, t1, a=at)
    except Exception as error:
        state.degraded("gc", error)


_COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast",
    "barrier", "all_to_all", "all_to_all_single", "reduce", "gather", "scatter", "broadcast_object_list",
    "all_gather_object",
)  # fmt: skip
_READS = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "nonzero")


def install() -> None:
    """Hook torch.save, logging, print, SummaryWriter (when imported), collectives and the garbage collector."""
    import logging

    import torch

    _patch(torch, ("save",), Span.CHECKPOINT)
    _patch(logging.Logger, ("handle",), Span.LOGGING)
    builtins.print = _Print(builtins.print)
    if torch.distributed.is_available():
        _patch(torch.distributed, _COLLECTIVES, Span.COLLECTIVE)
    gc.callbacks.append(_collected)
    on_import("torch.utils.tensorboard.writer", _tensorboard)
    on_import("wandb.sdk.wandb_run", lambda module: _patch(module.Run, ("log",), Span.LOGGING))


def _tensorboard(module: Any) -> None:
    names = tuple(n for n in dir(module.SummaryWriter) if n.startswith("add_") or n == "flush")
    _patch(module.SummaryWriter, names, Span.LOGGING)


def install_on_device() -> None:
    """Hook the host's blocking reads of device tensors; called once a device is in use."""
    import torch

    def guarded(original: Any) -> Any:
        spanned = _wrap(original, Span.SYNC)

        @unseen.wraps(original)
        def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return (spanned if self.is_cuda else original)(self, *args, **kwargs)
            except BaseException as error:
                unseen.strip(error)
                raise

        return read

    for name in _READS:
        original = getattr(torch.Tensor, name, None)
        if original is not None:
            setattr(torch.Tensor, name, guarded(original))
    _patch(torch.cuda, ("synchronize",), Span.SYNC)
