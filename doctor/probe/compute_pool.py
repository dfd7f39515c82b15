"""Which native threads compute for the training: they spin on after it, and what they burn in a fetch decodes nothing.

They are those that keep a CPU busy during a backward. Read by the kernel's clock of each thread, which needs no more
than its number (CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED of Linux).
"""

from __future__ import annotations

import os
import threading
import time

_read = time.clock_gettime_ns
_LOOKS = 4  # backwards that are looked at: the pool is made in the first, and all of it may not work in each
_BUSY = 0.1  # of a backward's wall time, and at least
_LEAST_NS = 50_000


class _Pool:
    """The threads found so far; ``looks`` counts the backwards looked at."""

    def __init__(self) -> None:
        self.clocks: dict[int, int] = {}  # thread number -> its clock
        self.looks = 0
        self._before: dict[int, int] = {}
        self._began = 0

    def before(self, now: int) -> None:
        """Note what native threads have burnt before a backward."""
        self._before, self._began = _burnt(), now

    def after(self, now: int) -> None:
        """Take those that were busy during the backward."""
        self.looks += 1
        least = max(_LEAST_NS, _BUSY * (now - self._began))
        for tid, burnt in _burnt().items():
            if burnt - self._before.get(tid, 0) >= least:
                self.clocks[tid] = _clock_of(tid)

    @property
    def looking(self) -> bool:
        """Whether backwards are still to be looked at."""
        return self.looks < _LOOKS

    def burnt(self) -> int:
        """Return what the threads found have burnt in all, in ns."""
        total = 0
        for tid, clock in tuple(self.clocks.items()):
            try:
                total += _read(clock)
            except OSError:  # it has ended
                self.clocks.pop(tid, None)
        return total

    def after_fork(self) -> None:
        """Forget all: a forked child has none of them."""
        self.__init__()  # type: ignore[misc]


pool = _Pool()


def _clock_of(tid: int) -> int:
    return (~tid << 3) | 6


def _burnt() -> dict[int, int]:
    """Return the CPU of every thread that Python did not start, in ns, by its number."""
    own = {thread.native_id for thread in list(threading._active.values())}  # type: ignore[attr-defined]
    out = {}
    try:
        tids = [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return {}
    for tid in tids:
        if tid not in own:
            try:
                out[tid] = _read(_clock_of(tid))
            except OSError:
                continue
    return out
