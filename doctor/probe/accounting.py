"""What a thread's time went to besides its own computing: waiting for a CPU, and other threads' work for it."""

from __future__ import annotations

import os
import threading
import time

_cpu_clock_id = time.pthread_getcpuclockid
_read_clock = time.clock_gettime_ns
_active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
_FEEDER = "QueueFeederThread"  # multiprocessing's name for the thread that pickles and sends what a worker made
_MOST_THREADS = 64  # whose run-queue wait is read: each holds a descriptor

# A thread can only have waited for a CPU in time in which it did not compute. Below so much of it since the last reading
# that reading still holds: the error is at most this, and the kernel need not be asked.
NEGLIGIBLE_NS = 5_000


def _schedstat(tid: int) -> int:
    """Open a thread's scheduler statistics; -2 where the kernel keeps none."""
    try:
        return os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -2


def _waited(fd: int) -> int:
    """Return a thread's run-queue wait in ns: the second field (the first is stale while it runs); -1 if unknown."""
    if fd < 0:
        return -1
    try:
        return int(os.pread(fd, 64, 0).split(b" ")[1])
    except (OSError, ValueError, IndexError):
        return -1


class _Queue(threading.local):
    """This thread's run-queue wait."""

    def __init__(self) -> None:
        self._fd = -1
        self._last = -NEGLIGIBLE_NS, -1  # wall less CPU time at the last reading, and the wait it showed

    def read(self) -> int:
        """Return the wait so far, in ns; -1 if unknown."""
        if self._fd == -1:
            self._fd = _schedstat(threading.get_native_id())
        return _waited(self._fd)

    def at(self, now: int, cpu: int) -> int:
        """Return the same at a moment whose wall and CPU clocks were just read, as of the last reading if that holds."""
        idle = now - cpu
        known, waited = self._last
        if idle - known < NEGLIGIBLE_NS:
            return waited
        waited = self.read()
        self._last = idle, waited
        return waited

    def after_fork(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._last = -NEGLIGIBLE_NS, -1


queue = _Queue()


class _Others(threading.local):
    """What the process's other Python threads did so far, as this thread saw it: CPU and run-queue wait, in ns."""

    def __init__(self) -> None:
        self.cpu = self.queue = self._feeder = 0
        self._known: dict[int, list[int]] = {}  # thread -> CPU and run-queue wait when last looked at, descriptor
        self._looked = False

    def look(self) -> tuple[int, int]:
        """Return both sums after a look at each thread."""
        if len(_active) == 1:  # this one, which need not be among them where C code made it
            self._looked = True
            return self.cpu, self.queue
        own = threading.get_ident()
        for ident, thread in list(_active.items()):
            if ident == own:
                continue
            try:
                cpu = _read_clock(_cpu_clock_id(ident))
            except OSError:
                continue
            known = self._known.get(ident)
            if known is None or cpu < known[0]:  # new, or another one with a dead one's number
                self._forget(ident)
                feeds = thread.name == _FEEDER  # it works for no fetch: its waits are not read
                fd = -2 if feeds or len(self._known) >= _MOST_THREADS else _schedstat(thread.native_id or 0)
                self._known[ident] = [cpu, _waited(fd), fd]
                if feeds:
                    self._feeder = ident
                if self._looked:  # all it did it did since the last look
                    self.cpu += cpu
                    self.queue += 0 if ident == self._feeder else max(0, _waited(fd))
            elif cpu != known[0]:  # one that did not run did not wait either, and need not be asked
                waited = _waited(known[2])
                self.cpu += cpu - known[0]
                if ident != self._feeder:  # it sends what is done: nobody waits for it
                    self.queue += max(0, waited - known[1])
                known[:2] = cpu, waited
        self._looked = True
        return self.cpu, self.queue

    def feeder(self) -> int:
        """Return the CPU of the thread that sends batches, in ns, as of the last look; 0 where there is none."""
        return self._known[self._feeder][0] if self._feeder in self._known else 0

    def _forget(self, ident: int) -> None:
        known = self._known.pop(ident, None)
        if known is not None and known[2] >= 0:
            os.close(known[2])

    def after_fork(self) -> None:
        for ident in list(self._known):
            self._forget(ident)
        self._looked = False
        self._feeder = 0


others = _Others()


def accounting(now: int, cpu: int) -> tuple[int, int]:
    """Return this thread's run-queue wait and the other Python threads' work so far, in ns; (0, 0) if unknown.

    Args:
        now: the wall clock, just read.
        cpu: this thread's CPU clock, just read.
    """
    waited = queue.at(now, cpu)
    return (0, 0) if waited < 0 else (waited + 1, sum(others.look()))
