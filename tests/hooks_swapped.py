"""The probe in this process, with its hooks taken off and put back at will: what stands in torch's places is swapped."""

from __future__ import annotations

import builtins
import gc
import itertools
import logging
import os
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as optim
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch

from fasttrain_doctor.probe import arm, device, forwards, state
from fasttrain_doctor.probe.commands import Steps
from fasttrain_doctor.probe.loop import Loop

_ABSENT = object()
_OWNERS: list[Any] = [
    torch,
    torch.autograd,
    nn.utils,
    nn.utils.clip_grad,
    torch.Tensor,
    torch.distributed,
    nn.Module,
    torch.optim.Optimizer,
    torch.amp.GradScaler,
    logging.Logger,
    builtins,
    dataloader._BaseDataLoaderIter,
    dataloader._SingleProcessDataLoaderIter,
    dataloader._MultiProcessingDataLoaderIter,
    fetch._MapDatasetFetcher,
    fetch._IterableDatasetFetcher,
]
_STEP_HOOKS = (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks)
_ENOUGH = 60_000  # records, after which the file is written from its begin again


class Hooks:
    """Arms the probe, once a process; ``folder`` is where it writes."""

    def __init__(self, folder: str) -> None:
        os.environ["FASTTRAIN_DOCTOR_DIR"] = folder
        self._classes: list[type] = []
        self._before = self._attributes()
        self._called = len(gc.callbacks)
        arm.arm()
        self._changed = self._difference()
        self._hooks = [dict(hooks) for hooks in _STEP_HOOKS]
        self._callbacks = gc.callbacks[self._called :]
        self._armed = forwards._class_wide
        self._is_on = True

    def fresh(self) -> None:
        """Begin another script: the loop has seen nothing yet, every module call is looked at."""
        self.on()
        for cls in self._classes:
            if self._before[cls].get("__call__", _ABSENT) is _ABSENT:
                del cls.__call__
            else:
                cls.__call__ = self._before[cls]["__call__"]  # type: ignore[method-assign]
        self._classes = []
        forwards._roots.clear()
        forwards._seen.clear()
        forwards._nested.clear()
        forwards._class_wide = self._armed
        forwards._looks_at_all = forwards._learning(self._armed)
        nn.Module.__call__ = forwards._looks_at_all  # type: ignore[method-assign]
        self._changed = self._difference()
        state.loop = Loop(None)
        state.loop.program = Steps("observe", 10**9, 0.0)
        device.install()

    def settle(self) -> None:
        """Take note of the classes that are hooked now that the loop is known."""
        self._classes = [c for c in forwards._roots if "__call__" in vars(c)]
        for cls in self._classes:
            own = forwards._roots[cls]
            self._before[cls] = {"__call__": own} if own is not None else {}
        self._changed = self._difference()

    def on(self) -> None:
        """Put our hooks in place."""
        if not self._is_on:
            for owner, name, ours, _ in self._changed:
                setattr(owner, name, ours)
            for place, hooks in zip(_STEP_HOOKS, self._hooks, strict=True):
                place.update(hooks)
            gc.callbacks.extend(self._callbacks)
            self._is_on = True
        if next(state.recorder._count) > _ENOUGH:
            state.recorder._count = itertools.count()

    def off(self) -> None:
        """Put torch's own functions back."""
        if self._is_on:
            for owner, name, _, theirs in self._changed:
                if theirs is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, theirs)
            for place in _STEP_HOOKS:
                place.clear()
            del gc.callbacks[self._called :]
            self._is_on = False

    def _attributes(self) -> dict[Any, dict[str, Any]]:
        roots = {cls: {k: v for k, v in vars(cls).items() if k == "__call__"} for cls in self._classes}
        return {owner: dict(vars(owner)) for owner in _OWNERS} | roots

    def _difference(self) -> list[tuple[Any, str, Any, Any]]:
        changed = []
        for owner, names in self._attributes().items():
            before = self._before[owner]
            changed += [
                (owner, name, value, before.get(name, _ABSENT))
                for name, value in names.items()
                if value is not before.get(name, _ABSENT) and not name.startswith("__abc")
            ]
        return changed
