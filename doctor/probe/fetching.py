"""Hooks on the fetchers, in the main process and in workers: CPU, run-queue wait and other threads' work per fetch."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from typing import Any

from fasttrain_doctor.probe import state
from fasttrain_doctor.probe.recorder import clock, thread_clock
from fasttrain_doctor.records import Kind

_process_clock = time.process_time_ns
_cpu_clock_id = time.pthread_getcpuclockid
_read_clock = time.clock_gettime_ns
_RNG_LOOKS = 6  # fetches on which the random states are compared: each costs about 20 us

# GNU OpenMP's threads spin before they sleep (GOMP_SPINCOUNT): after a parallel region of the training they burn CPU
# for up to this long each, which is nobody's decoding.
_SPIN_NS = 15_000_000


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

    fd = -1

    def read(self) -> int:
        if self.fd == -1:
            self.fd = _schedstat(threading.get_native_id())
        return _waited(self.fd)

    def after_fork(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


queue = _Queue()


class _Others(threading.local):
    """What the process's other Python threads did so far, as this thread saw it: CPU and run-queue wait, in ns."""

    def __init__(self) -> None:
        self.cpu = self.queue = 0
        self._known: dict[int, list[int]] = {}  # thread -> CPU and run-queue wait when last looked at, descriptor

    def look(self) -> tuple[int, int]:
        own = threading.get_ident()
        for ident, thread in list(threading._active.items()):  # type: ignore[attr-defined]
            if ident == own:
                continue
            try:
                cpu = _read_clock(_cpu_clock_id(ident))
            except OSError:
                continue
            known = self._known.get(ident)
            if known is None or cpu < known[0]:  # new, or another one with a dead one's number
                self._forget(ident)
                fd = _schedstat(thread.native_id) if len(self._known) < _MOST_THREADS else -2
                self._known[ident] = [cpu, _waited(fd), fd]
                if self._looked:  # all it did it did since the last look
                    self.cpu += cpu
                    self.queue += max(0, _waited(fd))
            elif cpu != known[0]:  # one that did not run did not wait either, and need not be asked
                waited = _waited(known[2])
                self.cpu += cpu - known[0]
                self.queue += max(0, waited - known[1])
                known[:2] = cpu, waited
        self._looked = True
        return self.cpu, self.queue

    _looked = False

    def _forget(self, ident: int) -> None:
        known = self._known.pop(ident, None)
        if known is not None and known[2] >= 0:
            os.close(known[2])

    def after_fork(self) -> None:
        for ident in list(self._known):
            self._forget(ident)
        self._looked = False


_MOST_THREADS = 64  # whose run-queue wait is read: each holds a descriptor
others = _Others()


def accounting() -> tuple[int, int]:
    """Return this thread's run-queue wait and the other Python threads' work so far, in ns; (0, 0) if unknown."""
    waited = queue.read()
    return (0, 0) if waited < 0 else (waited + 1, sum(others.look()))


def _random_state() -> tuple[Any, ...]:
    import random

    import torch

    parts: list[Any] = [hash(random.getstate()), hash(torch.get_rng_state().numpy().tobytes())]
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        kind = numpy.random.get_state()
        parts.append((hash(kind[1].tobytes()), kind[2]))
    return tuple(parts)


_looks = 0


def _wrap(original: Any) -> Any:
    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        recorder = state.recorder
        inside = state.inside
        if not recorder.on or inside.depth > 1:
            return original(self, index)
        global _looks
        in_worker = False
        try:
            info = _worker_info()
            in_worker = info is not None
            if in_worker:
                recorder.worker = info.id
            before = _random_state() if _looks < _RNG_LOOKS else None
            python0, python_queue0 = others.look()
            process0, cpu0, queue0, t0 = _process_clock(), thread_clock(), queue.read(), clock()
        except Exception as error:
            state.degraded("fetch", error)
            return original(self, index)
        inside.depth += 1
        try:
            return original(self, index)
        finally:
            inside.depth -= 1
            try:
                t1, queue1, cpu1, process1 = clock(), queue.read(), thread_clock(), _process_clock()
                python1, python_queue1 = others.look()
                native = max(0, (process1 - process0) - (cpu1 - cpu0) - (python1 - python0))
                if not in_worker:  # a worker runs one intra-op thread: nothing spins there
                    native = max(0, native - _SPIN_NS * (_threads() - 1))
                waited = -1 if queue0 < 0 or queue1 < 0 else queue1 - queue0
                pool = python1 - python0 + python_queue1 - python_queue0 + native
                samples = len(index) if isinstance(index, (list, tuple)) else 1
                recorder.write(Kind.FETCH, int(in_worker), recorder.loader, t0, t1, cpu0, cpu1, waited, pool, samples)
                if before is not None:
                    _looks += 1
                    recorder.fact("rng", untouched=_random_state() == before, worker=in_worker)
            except Exception as error:
                state.degraded("fetch", error)

    return fetch


def _worker_info() -> Any:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return None if worker is None else worker._worker_info


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def install() -> None:
    """Wrap ``fetch`` of both fetcher classes (torch.utils.data._utils.fetch, torch 1.8 to 2.14)."""
    from torch.utils.data._utils import fetch

    for cls in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        cls.fetch = _wrap(cls.fetch)  # type: ignore[method-assign]


def after_fork() -> None:
    """Let a forked child read its own thread's accounting."""
    global _looks
    queue.after_fork()
    others.after_fork()
    _looks = 0
