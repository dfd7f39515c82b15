"""Sees an update that a script makes by hand: from the first to the last change in place of what a gradient was taken of.

Nothing of this is installed in a script that has an optimizer.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

from fasttrain_doctor.probe import state, unseen
from fasttrain_doctor.probe.recorder import clock, thread_clock
from fasttrain_doctor.records import Kind

_METHODS = ("add_", "sub_", "mul_", "copy_", "addcmul_", "addcdiv_", "lerp_", "__iadd__", "__isub__")
_LISTS = ("_foreach_add_", "_foreach_sub_", "_foreach_addcmul_", "_foreach_addcdiv_", "_foreach_copy_")
_MOST_NODES = 4000  # of a graph that are gone through for its leaves
_LOOKS = 3  # backwards whose graphs are


class _Update:
    """The update under way since the last backward."""

    def __init__(self) -> None:
        self.watching = False
        self.thread = 0
        self._leaves: set[int] = set()  # where the memory of what gradients are taken of begins
        self._looks = 0
        self._open = False  # no forward, backward or request has begun since the last backward
        self._first: tuple[int, int] | None = None
        self._last = 0, 0

    def before_backward(self, args: Any, kwargs: Any) -> None:
        """Learn what gradients are taken of."""
        self.close()
        if self.watching and self._looks < _LOOKS:
            self._looks += 1
            self._leaves |= _leaves(args, kwargs)

    def after_backward(self) -> None:
        """Begin to look for changes."""
        self._open = self.watching

    def changed(self, tensor: Any, t0: int, cpu0: int) -> None:
        """Note a change in place that began at ``t0`` and is done."""
        if tensor.data_ptr() in self._leaves:
            self._first = self._first or (t0, cpu0)
            self._last = clock(), thread_clock()

    def close(self) -> None:
        """Write the update, if there was one: something else begins."""
        first, self._first, self._open = self._first, None, False
        if first is not None:
            state.recorder.write(Kind.UPDATE, 1, 0, first[0], self._last[0], first[1], self._last[1])

    @property
    def looks_for_changes(self) -> bool:
        """Whether a change now would be part of an update."""
        return self._open and not state.inside.depth and threading.get_ident() == self.thread


update = _Update()


def watch() -> None:
    """Begin to watch in this thread."""
    if update.watching:
        return
    import torch

    update.watching, update.thread = True, threading.get_ident()
    for name in _METHODS:
        setattr(torch.Tensor, name, _wrap(getattr(torch.Tensor, name), first=False))
    for name in () if "torch._dynamo" in sys.modules else _LISTS:  # dynamo goes by which function it is
        setattr(torch, name, _wrap(getattr(torch, name), first=True))


def _wrap(original: Any, first: bool) -> Any:
    @unseen.wraps(original)
    def change(*args: Any, **kwargs: Any) -> Any:
        try:
            if not update.looks_for_changes:
                return original(*args, **kwargs)
            t0, cpu0 = clock(), thread_clock()
            gave = original(*args, **kwargs)
            try:
                update.changed(args[0][0] if first else args[0], t0, cpu0)
            except Exception as error:
                state.degraded("update", error)
            return gave
        except BaseException as error:
            unseen.strip(error)
            raise

    return change


def _leaves(args: Any, kwargs: Any) -> set[int]:
    """Return where the leaves' memory begins, from the graph above a backward's roots."""
    roots = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
    pending = [r.grad_fn for r in (roots if isinstance(roots, (list, tuple)) else (roots,))]
    found: set[int] = set()
    known: set[Any] = set()
    while pending and len(known) < _MOST_NODES:
        node = pending.pop()
        if node is None or node in known:
            continue
        known.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            with contextlib.suppress(RuntimeError):  # a tensor that stands for others has no memory
                found.add(leaf.data_ptr())
        pending += [parent for parent, _ in node.next_functions]
    return found
