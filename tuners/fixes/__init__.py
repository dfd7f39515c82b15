"""Changes that may make training faster: one module and one page each, found by walking this package.

Imported in the user's process, where the chosen changes are installed: standard library, torch and triton only.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fasttrain_doctor.evidence import Effect, Evidence

# A fix's value is what fasttrain.toml holds for it: a number, a string, a flag, or a flat table of those.
Value = int | float | str | bool | Mapping[str, int | float | str | bool]
# fix name -> value; the empty plan is the script as it is.
Plan = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Options:
    """Values worth trying, best guess first. Empty with ``reason``: the fix does not apply here."""

    values: tuple[Value, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Knob:
    """A numeric range of one key of a fix's value that the search may explore (integers; ``log``: by factors)."""

    key: str
    low: int
    high: int
    log: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What a fix does inside the user's process; the probe carries it out on the *training* objects only.

    ``loader``      overrides of the training loader: num_workers, prefetch_factor, persistent_workers, pin_memory.
    ``dataset``     is given the training loader and returns the dataset its view fetches from (a changed copy, the
                    loader's own untouched), or None to leave it.
    ``copy``        is called as ``copy(call, tensor, args, kwargs)`` in place of ``call(tensor, *args, **kwargs)`` where
                    the training thread moves a host tensor to an accelerator (``Tensor.to``, ``Tensor.cuda``).
    ``batches``     wraps the iterator of training batches: takes a ``next`` function, returns one.
    ``forward``     makes the context around each outermost training forward (and the loss that follows it, up to
                    the backward) given the root module.
    ``backward``    is called as ``backward(call, tensors, optimizers)`` in place of ``call(tensors)`` for the outermost
                    backward.
    ``step``        is called as ``step(call, optimizer)`` in place of ``call()`` for an optimizer's step.
    ``optimizer``   is applied once to each training optimizer, at its first step; returns an undo.
    ``model``       is applied once to the root module, at its first training forward; returns an undo.
    ``close``       frees what the fix holds when it is switched off.

    A change is undoable (can be switched on and off between blocks of one process) unless ``process`` says otherwise.
    """

    loader: Mapping[str, Any] = field(default_factory=dict)
    dataset: Callable[[Any], Any] | None = None
    copy: Callable[[Callable[..., Any], Any, tuple[Any, ...], Mapping[str, Any]], Any] | None = None
    batches: Callable[[Callable[[], Any]], Callable[[], Any]] | None = None
    forward: Callable[[Any], AbstractContextManager[Any]] | None = None
    backward: Callable[[Callable[[Any], Any], Any, tuple[Any, ...]], Any] | None = None
    step: Callable[[Callable[[], Any], Any], Any] | None = None
    optimizer: Callable[[Any], Callable[[], None] | None] | None = None
    model: Callable[[Any], Callable[[], None] | None] | None = None
    close: Callable[[], None] | None = None
    process: bool = False  # needs a process of its own: cannot be undone, or may crash


def _no_knobs(_: Evidence) -> tuple[Knob, ...]:
    return ()


def _no_guess(_: Evidence, __: Value) -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class Fix:
    """A change worth trying. ``effect`` and ``options`` judge by evidence alone (parent); ``install`` runs in the child.

    ``applied`` words what was done, for `run` and the report, e.g. ``num_workers=8, prefetch_factor=4``.
    """

    name: str
    summary: str
    effect: Callable[[Evidence, Value], Effect]
    options: Callable[[Evidence], Options]
    install: Callable[[Value], Change]
    applied: Callable[[Value], str]
    needs: tuple[str, ...] = ()
    knobs: Callable[[Evidence], tuple[Knob, ...]] = _no_knobs
    expected: Callable[[Evidence, Value], float | None] = _no_guess  # speedup expected, for ordering
    side: str = "compute"  # "data": bounded by the replay floor; "compute": not
    device_only: bool = False  # nothing to do without an accelerator; "never run on a device" until a device check ran


@cache
def all_fixes() -> Mapping[str, Fix]:
    """Every fix of this package by name."""
    names = (m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    modules = (importlib.import_module(f"{__name__}.{name}") for name in names)
    return {fix.name: fix for fix in sorted((m.FIX for m in modules), key=lambda fix: fix.name)}


def plan_effect(plan: Plan, evidence: Evidence) -> Effect:
    """Return what a plan may change: the maximum over its fixes."""
    fixes = all_fixes()
    return max((fixes[name].effect(evidence, value) for name, value in plan.items()), default=Effect.EXACT)
