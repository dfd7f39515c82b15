"""Carries out a plan's changes on the training loader, model and optimizers of this process, and nothing else."""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from fasttrain_doctor.probe import device, draws, loading, state, training, unseen
from fasttrain_doctor.probe.loop import Key, Loop
from fasttrain_doctor.tuners.fixes import Change, Plan, all_fixes

_LOADER_SETTINGS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")


class Applied:
    """A plan's changes, installed. ``attach`` switches them on for a loop, ``detach`` off again."""

    def __init__(self, plan: Plan) -> None:
        fixes = all_fixes()
        self.plan = plan
        self.changes: dict[str, Change] = {name: fixes[name].install(value) for name, value in plan.items()}
        self.loader: dict[str, Any] = {}
        for change in self.changes.values():
            self.loader |= dict(change.loader)
        self.touched: dict[str, str] = {}  # fix -> the object it was applied to
        self._undo: list[Callable[[], None]] = []
        self._seen: set[tuple[str, int]] = set()
        self._context: ExitStack | None = None

    def attach(self, loop: Loop) -> None:
        """Switch on: hook the loop where this plan needs it."""
        parts = list(self.changes.values())
        if any(c.forward or c.model for c in parts):
            loop.on_forward = self._on_forward
            loop.on_border.append(self._leave)
        if any(c.forward or c.backward for c in parts):
            loop.on_backward = self._on_backward
        if any(c.optimizer for c in parts):
            loop.on_step = self._on_step
        if any(c.copy for c in parts):
            device.install_copies()
            loop.on_copy = self._copy
        if any(c.step for c in parts):
            _wrap_steps()
            _StepHook.active = self._step

    def detach(self, loop: Loop) -> None:
        """Switch off and undo, newest first."""
        self._leave()
        loop.on_forward = loop.on_backward = loop.on_step = loop.on_copy = None
        if self._leave in loop.on_border:
            loop.on_border.remove(self._leave)
        _StepHook.active = None
        while self._undo:
            self._undo.pop()()
        self._seen.clear()

    def close(self) -> None:
        """Free what the changes hold."""
        for change in self.changes.values():
            if change.close is not None:
                change.close()

    def batches(self, source: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap a source of training batches with the plan's batch changes."""
        for name, change in self.changes.items():
            if change.batches is not None:
                source = change.batches(source)
                self.touched[name] = "training batches"
        return source

    def dataset(self, loader: Any) -> Any:
        """Return the data set this plan fetches from in place of the loader's own, or None."""
        for name, change in self.changes.items():
            if change.dataset is not None and (changed := change.dataset(loader)) is not None:
                self.touched[name] = state.qualname(loader.dataset)
                return changed
        return None

    def _copy(self, call: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        hook = next(c.copy for c in self.changes.values() if c.copy is not None)
        return hook(call, tensor, args, kwargs)

    def _on_forward(self, module: Any) -> None:
        for name, change in self.changes.items():
            if change.model is not None and (name, id(module)) not in self._seen:
                self._seen.add((name, id(module)))
                self._remember(change.model(module))
                self.touched[name] = state.qualname(module)
        if self._context is None and any(c.forward for c in self.changes.values()):
            self._context = ExitStack()
            for name, change in self.changes.items():
                if change.forward is not None:
                    self._context.enter_context(change.forward(module))
                    self.touched[name] = state.qualname(module)

    def _leave(self) -> None:
        if self._context is not None:
            context, self._context = self._context, None
            context.close()

    def _on_backward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
        self._leave()
        hook = next((c.backward for c in self.changes.values() if c.backward is not None), None)
        if hook is None or getattr(call, "__name__", "") != "backward" or not args:
            return call

        def scaled(tensors: Any, *rest: Any, **named: Any) -> Any:
            assert hook is not None
            return hook(lambda t: call(t, *rest, **named), tensors, live_optimizers())

        return scaled

    def _on_step(self, optimizer: Any) -> None:
        for name, change in self.changes.items():
            if change.optimizer is not None and (name, id(optimizer)) not in self._seen:
                self._seen.add((name, id(optimizer)))
                self._remember(change.optimizer(optimizer))
                self.touched[name] = state.qualname(optimizer)

    def _step(self, call: Callable[[], Any], optimizer: Any) -> Any:
        for name, change in self.changes.items():
            if change.step is not None:
                self.touched[name] = state.qualname(optimizer)
                return change.step(call, optimizer)
        return call()

    def _remember(self, undo: Callable[[], None] | None) -> None:
        if undo is not None:
            self._undo.append(undo)


def live_optimizers() -> tuple[Any, ...]:
    """Return the optimizers seen so far that still live."""
    return tuple(o for o in (ref() for _, ref in state.optimizers.known()) if o is not None)


class _StepHook:
    active: Callable[[Callable[[], Any], Any], Any] | None = None
    inside = False
    wrapped: set[type] = set()  # noqa: RUF012  one per process


def _wrap_steps() -> None:
    """Make the steps of every optimizer class, known or to come, pass by ``_StepHook``."""
    from torch.optim.optimizer import Optimizer

    def wrap(cls: type) -> None:
        if cls in _StepHook.wrapped:
            return
        _StepHook.wrapped.add(cls)
        original: Any = cls.step  # type: ignore[attr-defined]

        @unseen.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                hook = _StepHook.active
                if hook is None or _StepHook.inside:
                    return original(self, *args, **kwargs)
                _StepHook.inside = True
                try:
                    return hook(lambda: original(self, *args, **kwargs), self)
                finally:
                    _StepHook.inside = False
            except BaseException as error:
                unseen.strip(error)
                raise

        cls.step = step  # type: ignore[attr-defined]

    for optimizer in live_optimizers():
        wrap(type(optimizer))
    patch = Optimizer._patch_step_function
    if getattr(patch, "_ftd", False):
        return

    @unseen.wraps(patch)
    def _patch_step_function(self: Any) -> None:
        try:
            patch(self)
            wrap(type(self))
        except BaseException as error:
            unseen.strip(error)
            raise

    _patch_step_function._ftd = True
    Optimizer._patch_step_function = _patch_step_function  # type: ignore[method-assign]


# -- plans installed from the start: confirming runs, `run`, `enable()` ---------------------------------------------


_TELLING = ("dataset", "sampler", "dataset_length")


def matches(facts: Mapping[str, Any], target: Mapping[str, Any] | None) -> bool:
    """Whether a loader is the one a plan was made for.

    By what it reads and in which order; by its size too where the plan names one, because another loader differs by
    nothing else.
    """
    if not target:
        return False
    return all(facts.get(key) == target[key] for key in _TELLING if target.get(key) is not None)


class FromStart:
    """Installs a plan before the first step."""

    def __init__(self, loop: Loop, plan: Plan, target: Mapping[str, Any] | None) -> None:
        self.applied = Applied(plan)
        self.target = target
        self._sources: dict[int, Callable[[], Any]] = {}
        self._planned: weakref.WeakSet[Any] = weakref.WeakSet()
        self.applied.attach(loop)
        if self.applied.loader or any(c.dataset for c in self.applied.changes.values()):
            self._on_iterators()
        if any(c.batches for c in self.applied.changes.values()):
            loop.take = self._take

    def _on_iterators(self) -> None:
        from torch.utils.data import DataLoader

        original = DataLoader._get_iterator

        @unseen.wraps(original)
        def _get_iterator(loader: Any) -> Any:
            try:
                source, was_persistent = loader, draws.persistent(loader)
                try:
                    mine = self._mine(loading.key(loader))
                    if mine:
                        self._set(loader)
                        source = self._source(loader, was_persistent)
                except Exception as error:
                    state.degraded("plan-loader", error)
                    mine = False
                if mine:
                    self._planned.add(source)
                iterator = original(source)
                if mine and draws.persistent(loader) and loader._iterator is None:
                    loader._iterator = iterator
                    if not was_persistent:
                        draws.kept(iterator)
                return iterator
            except BaseException as error:
                unseen.strip(error)
                raise

        draws.install()
        check = DataLoader.check_worker_number_rationality

        @unseen.wraps(check)
        def check_worker_number_rationality(loader: Any) -> None:
            try:
                # Workers beyond the core count are what was measured to help: the warning against them is beside the point.
                # Filters are left alone, because a change of them makes every warning appear again.
                if loader not in self._planned:
                    check(loader)
            except BaseException as error:
                unseen.strip(error)
                raise

        DataLoader.check_worker_number_rationality = check_worker_number_rationality  # type: ignore[method-assign]
        DataLoader._get_iterator = _get_iterator  # type: ignore[method-assign]

    def _source(self, loader: Any, was_persistent: bool) -> Any:
        """Return the loader, or one like it that reads the plan's data set; the user's own keeps its own."""
        dataset = self.applied.dataset(loader)
        changed: dict[str, Any] = {} if dataset is None else {"dataset": dataset}
        if draws.spared(loader, was_persistent):
            import torch

            changed["generator"] = torch.Generator()  # the sampler has the script's own
        return loading.like(loader, **changed) if changed else loader

    def _mine(self, key: Key) -> bool:
        return matches(loading.facts_of(key), self.target)

    def _set(self, loader: Any) -> None:
        for name in _LOADER_SETTINGS:
            if name in self.applied.loader:
                # persistent_workers is refused by DataLoader.__setattr__ after construction
                object.__setattr__(loader, name, self.applied.loader[name])
        if loader.num_workers == 0:
            object.__setattr__(loader, "persistent_workers", False)
            object.__setattr__(loader, "prefetch_factor", None)
        elif loader.prefetch_factor is None:
            object.__setattr__(loader, "prefetch_factor", 2)
        at = state.user_line(3)
        where = f"{state.qualname(loader)} ({os.path.basename(at[0])}:{at[1]})" if at else state.qualname(loader)
        for name, change in self.applied.changes.items():
            if change.loader:
                self.applied.touched[name] = where

    def _take(self, iterator: Any, key: Key) -> Callable[[], Any] | None:
        if not self._mine(key):
            return None
        number, _ = state.iterators.get(iterator)
        source = self._sources.get(number)
        if source is None:
            source = self._sources[number] = self.applied.batches(lambda: loading.native_next(iterator))
        return source


def _read_plan() -> dict[str, Any]:
    with open(os.environ["FASTTRAIN_DOCTOR_PLAN"], encoding="utf-8") as file:
        plan: dict[str, Any] = json.load(file)
    return plan


def install_for_trial(loop: Loop) -> None:
    """Install the plan of FASTTRAIN_DOCTOR_PLAN in a watched process."""
    written = _read_plan()
    state.from_start = FromStart(loop, written["plan"], written.get("loader"))


def install_for_run() -> None:
    """Install the plan of FASTTRAIN_DOCTOR_PLAN with nothing watched, and say at the first step what was applied."""
    written = _read_plan()
    install_unwatched(written["plan"], written.get("loader"))


def install_unwatched(plan: Plan, target: Mapping[str, Any] | None) -> None:
    """Install ``plan`` with only the hooks it needs; nothing is recorded."""
    from fasttrain_doctor.probe.recorder import Recorder

    state.recorder = Recorder(os.devnull)
    state.recorder.on = False
    state.recorder.fact = lambda kind, **fields: None  # type: ignore[method-assign]
    state.loop = loop = Loop(None)
    loop.places(0)
    started = FromStart(loop, plan, target)
    changes = started.applied.changes.values()
    if any(c.forward or c.model or c.backward or c.step for c in changes):
        training.install()
    else:
        training.install_steps()
    if any(c.batches for c in changes):
        loading.install()
    loop.on_first_update = lambda: _say(started)


def _say(started: FromStart) -> None:
    fixes = all_fixes()
    for name, value in started.applied.plan.items():
        where = started.applied.touched.get(name)
        if where is not None:
            line = f"fasttrain-doctor: {name}: {fixes[name].applied(value)} on {where}"
        elif started.applied.changes[name].loader:
            line = f"fasttrain-doctor: {name} not applied: no loader like the tuned one has been iterated"
        else:
            line = f"fasttrain-doctor: {name} not applied: nothing it could be applied to has been used"
        sys.stderr.write(line + "\n")
    sys.stderr.flush()
