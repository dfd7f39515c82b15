"""Samples the stacks of this process's threads, with what the kernel says of each, about a thousand times a second.

A sample takes place while the interpreter's lock is held throughout, so that a stack and the state of its thread belong
together; the files of /proc are read through ctypes, which keeps the lock. Nothing needs root: the threads are our own.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from fasttrain_doctor.probe.looking_stacks import State
from fasttrain_doctor.probe.recorder import clock

# Captured: a script may put others in their place.
_sleep = time.sleep
_read_clock = time.clock_gettime_ns

PERIOD = 0.001  # seconds
_SWITCH = 0.0001  # seconds until a thread in pure Python lets the sampler in; the interpreter's default is 5 ms
_LONGEST = 0.02  # seconds between samples: one that was held up itself is followed by the next all the same
_UNDISTURBED = 150_000_000  # ns in which it is seen whether other threads compute
_COMPETES = 0.1  # share of that time which they then take
_SHARE = 0.1  # most of the time that sampling may take
DEPTH = 160  # innermost frames of a stack
_MOST = 16_000  # samples of one process
_MOST_THREADS = 24
_HELPERS = 8  # other threads whose stacks are kept with one that waits

# futex and futex_waitv; flock and fcntl (https://github.com/torvalds/linux, syscall_64.tbl and unistd.h)
_CALLS: dict[str, tuple[frozenset[int], frozenset[int]]] = {
    "x86_64": (frozenset({202, 449, 455}), frozenset({73, 72})),
    "aarch64": (frozenset({98, 449, 455}), frozenset({32, 25})),
}

# Identity of a code object, offset in it, and so on, innermost first: hashing the objects themselves takes long.
Key = tuple[int, ...]


@dataclass(slots=True)
class Sample:
    """One thread at one moment, for all that happened since the last: ns of wall and CPU time.

    ``queued``: ns of waiting for the interpreter beyond what the sampler made it wait, ``held``, where that is its state.
    """

    key: Key
    state: State
    wall: int
    cpu: int
    queued: int = 0
    held: int = 0
    helpers: tuple[tuple[Key, State], ...] = ()
    after: int = 0  # number of the forward that it comes after, with no backward nor update in between


@dataclass(slots=True)
class _Known:
    """What is kept of a thread between samples: descriptors, CPU and run-queue time so far."""

    native: int
    syscall: int = -1
    schedstat: int = -1
    cpu: int = -1
    queue: int = 0

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self.syscall, self.schedstat):
            if fd >= 0:
                os.close(fd)


def _opened(native: int, name: str) -> int:
    try:
        return os.open(f"/proc/self/task/{native}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


class Kernel:
    """Reads what the kernel says of this process's threads. ``known``: whether it says what they are blocked in."""

    def __init__(self) -> None:
        keeping = ctypes.PyDLL(None)  # whose calls keep the interpreter's lock
        self._usleep: Any = keeping.usleep
        self._pread: Any = keeping.pread
        self._pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
        self._pread.restype = ctypes.c_ssize_t
        self._buffer = ctypes.create_string_buffer(256)
        calls = _CALLS.get(os.uname().machine)
        self._futexes, self._locks = calls or (frozenset(), frozenset())
        self._interpreter: range | None = None
        self.known = calls is not None and self._find_interpreter()

    def _read(self, fd: int) -> bytes:
        if fd < 0:
            return b""
        size = self._pread(fd, self._buffer, 256, 0)
        return self._buffer.raw[:size] if size > 0 else b""

    def state(self, fd: int) -> State:
        """Return what a thread is doing, from its ``syscall`` file."""
        words = self._read(fd).split(b" ", 2)
        if words[0][:7] == b"running":
            return State.RUNNING
        try:
            number = int(words[0])
        except ValueError:
            return State.UNKNOWN
        if number in self._futexes:
            address = int(words[1], 16)
            if self._interpreter is not None and address in self._interpreter:
                return State.INTERPRETER
            return State.FUTEX
        return State.FILE_LOCK if number in self._locks else State.BLOCKED

    def queue(self, fd: int) -> int:
        """Return a thread's time on the run queue in ns, from its ``schedstat``; 0 where none is kept."""
        words = self._read(fd).split(b" ", 2)
        return int(words[1]) if len(words) == 3 else 0

    def _find_interpreter(self) -> bool:
        """Find where threads wait for the interpreter's lock: where one that only computes is seen to wait."""
        told: list[int] = []
        done: list[bool] = []

        def compute() -> None:
            told.append(threading.get_native_id())
            while not done:
                pass

        _thread.start_new_thread(compute, ())
        fd = -1
        try:
            for _ in range(200):
                if told:
                    break
                _sleep(0.001)
            fd = _opened(told[0], "syscall") if told else -1
            for _ in range(40):
                self._usleep(250)  # without letting go of the lock: the other one must come to wait for it
                words = self._read(fd).split(b" ", 2)
                if words[0].isdigit() and int(words[0]) in self._futexes:
                    at = int(words[1], 16)
                    self._interpreter = range(at - 256, at + 257)
                    return True
            return False
        finally:
            done.append(True)
            if fd >= 0:
                os.close(fd)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Let this thread in soon wherever another is in pure Python, so that it is sampled where it is."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, _SWITCH))
    lower = sys.getswitchinterval()  # as it is kept: in microseconds
    try:
        yield
    finally:
        if sys.getswitchinterval() == lower:  # else the script has chosen another meanwhile
            sys.setswitchinterval(usual)


@dataclass(slots=True)
class Sampler:
    """Samples until ``over`` says so. ``inside`` maps a thread that fetches to the samples of its fetch so far."""

    kernel: Kernel
    stop_at: CodeType  # a stack ends with the frame that runs this: the fetch
    inside: dict[int, list[Sample]]
    threads: dict[int, int]  # the threads always sampled: identity -> native number
    over: Callable[[], bool]
    after: Callable[[], int]
    skips: Callable[[], bool]  # what happens outside fetches just now is not the training's
    outside: list[tuple[int, Sample]] = field(default_factory=list)  # with the thread's identity
    codes: dict[int, tuple[CodeType, dict[str, Any]]] = field(default_factory=dict)  # with their globals
    count: int = 0
    rivals: int = 0  # CPU ns of the threads that are neither always sampled nor fetch
    _known: dict[int, _Known] = field(default_factory=dict)

    def run(self) -> None:
        """Sample; to be called in a thread of its own."""
        own = threading.get_ident()
        began = last = clock()
        held = 0
        try:
            with contextlib.ExitStack() as sooner:
                decided = False
                while not self.over() and self.count < _MOST:
                    _sleep(min(_LONGEST, max(PERIOD, held / 1e9 * (1 / _SHARE - 1))))
                    now = clock()
                    self._sample(own, now - last, held)
                    last, held = now, clock() - now
                    if not decided and now - began > _UNDISTURBED:
                        decided = True
                        # Threads that compete for the interpreter would wait for it less than they usually do.
                        if self.rivals < _COMPETES * (now - began):
                            sooner.enter_context(at_once())
        finally:
            for known in self._known.values():
                known.close()
            self._known.clear()

    def _sample(self, sampler: int, wall: int, held: int) -> None:
        frames = sys._current_frames()
        threads = self._threads(sampler)
        keys: dict[int, Key] = {}
        for ident in threads:
            frame = frames.get(ident)
            if frame is not None:
                keys[ident] = self._key(frame)
        frames.clear()
        frame = None
        states = {ident: self.kernel.state(known.syscall) for ident, known in threads.items() if ident in keys}
        skips, after = self.skips(), self.after()
        spent = {ident: self._spent(threads[ident], wall) for ident in keys}
        computed = sum(cpu for cpu, _ in spent.values() if cpu > 0)
        own = {*self.threads, *self.inside}
        self.rivals += sum(cpu for ident, (cpu, _) in spent.items() if cpu > 0 and ident not in own)
        for ident, key in keys.items():
            cpu, blocked = spent[ident]
            if cpu < 0:
                continue
            fetch = self.inside.get(ident)
            state = states[ident]
            queued = delay = 0
            if state is State.INTERPRETER:  # for others who computed meanwhile, and for the sampler
                queued = min(blocked, computed - cpu)
                delay = min(blocked - queued, held)
            helpers: tuple[tuple[Key, State], ...] = ()
            if fetch is not None and state in (State.FUTEX, State.INTERPRETER):
                others = [(k, states[i]) for i, k in keys.items() if i not in self.inside and i not in self.threads]
                helpers = tuple(others[:_HELPERS])
            sample = Sample(key, state, wall, cpu, queued, delay, helpers, after)
            if fetch is not None:
                fetch.append(sample)
            elif not skips:
                self.outside.append((ident, sample))
            self.count += 1

    def _threads(self, own: int) -> dict[int, _Known]:
        """Return the threads to sample: those given, those that fetch, and whatever others Python knows."""
        wanted = dict(self.threads)
        active = list(threading._active.items())  # type: ignore[attr-defined]
        for ident, thread in sorted(active, key=lambda entry: entry[0] not in self.inside):
            if ident != own and len(wanted) < _MOST_THREADS and thread.native_id is not None:
                wanted.setdefault(ident, thread.native_id)
        known = self._known
        # A script may start threads for every batch: what is kept of those that are gone would use up its descriptors.
        for ident in [i for i, old in known.items() if wanted.get(i) != old.native]:
            known.pop(ident).close()
        for ident, native in wanted.items():
            if ident not in known:
                known[ident] = _Known(native, _opened(native, "syscall"), _opened(native, "schedstat"))
        return {ident: known[ident] for ident in wanted}

    def _spent(self, known: _Known, wall: int) -> tuple[int, int]:
        """Return a thread's CPU and blocked ns since the last sample; (-1, 0) for one that was not there then."""
        try:  # a thread's CPU clock has its native number in it (linux, include/linux/posix-timers_types.h)
            cpu = _read_clock(~known.native << 3 | 6)
        except OSError:
            return -1, 0
        queue = self.kernel.queue(known.schedstat)
        before, waited = known.cpu, queue - known.queue
        known.cpu, known.queue = cpu, queue
        if before < 0:
            return -1, 0
        return cpu - before, max(0, wall - (cpu - before) - waited)

    def _key(self, frame: FrameType | None) -> Key:
        key: list[int] = []
        codes = self.codes
        while frame is not None and len(key) < 2 * DEPTH:
            code = frame.f_code
            if code is self.stop_at:
                break
            number = id(code)
            if number not in codes:
                codes[number] = code, frame.f_globals
            key += (number, frame.f_lasti)
            frame = frame.f_back
        return tuple(key)
