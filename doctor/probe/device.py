"""The light pass on an accelerator: events at phase borders on the step's stream. Nothing is ever synchronised.

Events partition the step as the device saw it: an interval holds the work that the host issued between two borders,
and the idle time before it. A border that the device had already passed when the host recorded the next one marks the
interval as host-bound: the device was waiting for work.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from fasttrain_doctor.probe import describe, spans, state, unseen
from fasttrain_doctor.probe.recorder import clock, thread_clock
from fasttrain_doctor.records import Interval, Kind

_MOST_PENDING = 4096


class Light:
    """Records and resolves border events. ``make`` creates a timing event (``torch.cuda.Event`` or a test's)."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._free: list[Any] = []
        self._pending: deque[tuple[Any, Any, int, int, int]] = deque()
        self._last: Any = None
        self._step = 0

    def mark(self, interval: Interval) -> None:
        """Close the interval since the last border and name it."""
        if not state.recorder.on or len(self._pending) >= _MOST_PENDING:
            self._last = None
            return
        event = self._free.pop() if self._free else self._make()
        host_bound = int(self._last is not None and self._last.query())
        event.record()
        if self._last is not None:
            self._pending.append((self._last, event, interval, host_bound, self._step))
        self._last = event

    def border(self) -> None:
        """Note a step border and write out every interval the device has finished."""
        self._step += 1
        while self._pending and self._pending[0][1].query():
            first, second, interval, host_bound, step = self._pending.popleft()
            ns = int(first.elapsed_time(second) * 1e6)
            now = clock()
            state.recorder.write(Kind.DEVICE, host_bound, interval, now, now, 0, 0, ns, step)
            self._free.append(first)


def _begin() -> None:
    """Start the light pass once the script has initialised CUDA; looked for at each border until then."""
    if not describe.initialized():
        return
    import torch

    loop = state.loop
    loop.on_border.remove(_begin)
    loop.device = Light(functools.partial(torch.cuda.Event, enable_timing=True))
    loop.on_border.append(loop.device.border)
    spans.install_on_device()
    install_copies()


def install_copies() -> None:
    """Hook moves of host tensors to a device; called once one is in use, or a plan changes copies."""
    import torch

    if getattr(torch.Tensor.to, "__wrapped__", None) is None:
        torch.Tensor.to = _copy(torch.Tensor.to)  # type: ignore[method-assign]
        torch.Tensor.cuda = _copy(torch.Tensor.cuda)  # type: ignore[method-assign]


def _to_device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    import torch

    wanted = kwargs.get("device", args[0] if args else None)
    if isinstance(wanted, torch.Tensor):
        return wanted.is_cuda
    return isinstance(wanted, (str, int, torch.device)) and torch.device(wanted).type == "cuda"


def _copy(original: Any) -> Any:
    always = original.__name__ == "cuda"

    @unseen.wraps(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            loop = state.loop
            if self.is_cuda or state.inside.depth or loop.off or not (always or _to_device(args, kwargs)):
                return original(self, *args, **kwargs)
            t0, cpu0 = clock(), thread_clock()
            if loop.on_copy is not None and threading.get_ident() == loop.thread:
                out = loop.on_copy(original, self, args, kwargs)
            else:
                out = original(self, *args, **kwargs)
            try:
                flag = int(self.is_pinned()) | (2 if kwargs.get("non_blocking") else 0)
                size = self.numel() * self.element_size()
                t1, cpu1 = clock(), thread_clock()
                place = spans.place() if t1 - t0 > spans.WORTH_A_PLACE else 0
                state.recorder.write(Kind.COPY, flag, 0, t0, t1, cpu0, cpu1, size, place)
                if loop.device is not None and threading.get_ident() == loop.thread:
                    loop.device.mark(Interval.H2D)
                if not _moved and describe.is_largest(self):
                    _moved.append(True)
                    state.recorder.fact("moved", moved=True)
            except Exception as error:
                state.degraded("copy", error)
            return out
        except BaseException as error:
            unseen.strip(error)
            raise

    return copy


_moved: list[bool] = []  # whether a batch's largest tensor was seen to be copied as it came


def install() -> None:
    """Look for an accelerator in use at each step border; asking torch for one could initialise it."""
    state.loop.on_border.append(_begin)
