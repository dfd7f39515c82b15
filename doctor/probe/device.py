"""The light pass on an accelerator: events at phase borders on the step's stream. Nothing is ever synchronised.

Events partition the step as the device saw it: an interval holds the work that the host issued between two borders,
and the idle time before it. A border that the device had already passed when the host recorded the next one marks the
interval as host-bound: the device was waiting for work.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

from fasttrain_doctor.probe import describe, spans, state
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
    torch.Tensor.to = _copy(torch.Tensor.to)  # type: ignore[method-assign]
    torch.Tensor.cuda = _copy(torch.Tensor.cuda)  # type: ignore[method-assign]


def _copy(original: Any) -> Any:
    @functools.wraps(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_cuda or state.inside.depth or not state.loop.began:
            return original(self, *args, **kwargs)
        t0, cpu0 = clock(), thread_clock()
        out = original(self, *args, **kwargs)
        try:
            if out.is_cuda:
                pinned = self.is_pinned()
                flag = int(pinned) | (2 if kwargs.get("non_blocking") else 0)
                size = self.numel() * self.element_size()
                state.recorder.write(Kind.COPY, flag, 0, t0, clock(), cpu0, thread_clock(), size)
                if state.loop.device is not None:
                    state.loop.device.mark(Interval.H2D)
        except Exception as error:
            state.degraded("copy", error)
        return out

    return copy


def install() -> None:
    """Look for an accelerator in use at each step border; asking torch for one could initialise it."""
    state.loop.on_border.append(_begin)
