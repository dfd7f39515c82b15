"""What the hooks cost in this process: timed on calls that do nothing, with a loop and a recorder of their own."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from fasttrain_doctor.probe import fetching, state, training
from fasttrain_doctor.probe.items import Items
from fasttrain_doctor.probe.loop import Loop
from fasttrain_doctor.probe.recorder import Recorder, clock

_CALLS = 40
_SAMPLES = 64
_elsewhere = bytearray(1 << 20)  # read and written between two calls


class _Fetcher:
    def __init__(self, samples: int) -> None:
        self.dataset, self.auto_collation = range(samples), True

    def fetch(self, index: Any) -> list[int]:
        return [self.dataset[i] for i in index]


def measure() -> dict[str, float]:
    """Return the cost in ns of a hooked call, of a hooked fetch of one sample, and of each further sample.

    About 10 ms; nothing else of this process is recorded meanwhile.
    """
    loop, recorder = state.loop, state.recorder
    state.loop, state.recorder = Loop(None), Recorder.scratch(_CALLS * 8)
    try:
        call = training._wrap_gradients(_nothing)
        fetch = fetching._wrap(_Fetcher.fetch, "dataset", Items)
        one, many = (_Fetcher(n) for n in (1, _SAMPLES))
        few, all_ = [0], list(range(_SAMPLES))
        first = _time(lambda: fetch(one, few)) - _time(lambda: one.fetch(few))
        every = _time(lambda: fetch(many, all_)) - _time(lambda: many.fetch(all_))
        hooked = _time(lambda: call(None)) - _time(lambda: _nothing(None))
    finally:
        state.loop, state.recorder = loop, recorder
    return {"record_ns": hooked, "fetch_ns": first, "sample_ns": max(0.0, (every - first) / (_SAMPLES - 1))}


def _nothing(_: Any) -> None:
    """Stand in for what is hooked."""


def _time(call: Callable[[], Any]) -> float:
    """Return the median ns of a call that finds nothing in the CPU's caches, as between two phases of a step."""
    took = []
    for _ in range(_CALLS):
        bytes(_elsewhere)
        began = clock()
        call()
        took.append(clock() - began)
    return statistics.median(took)
