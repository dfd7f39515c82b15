"""Counts what fetches open and read during a look: opens that Python sees, and the kernel's own counts of reads."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

_MOST_THREADS = 32

# The ends of the names of threads that pass batches on: what they read is between processes.
_PASSING = ("QueueFeederThread", "(_serve)", "(_pin_memory_loop)")


@dataclass(slots=True)
class Reads:
    """What a process's Python threads have read: calls, bytes, and bytes of them that came from a device."""

    calls: int = 0
    read: int = 0
    storage: int = 0


class Counter:
    """Counts for the time between ``begin`` and ``end``. ``known``: whether the kernel counts at all."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}  # native thread number -> its io file
        self._before: dict[int, Reads] = {}
        self.known = True

    def begin(self) -> None:
        """Read the counts of every Python thread, this one's last: what that costs is none of the fetch's."""
        self._before = {}
        own = threading.get_native_id()
        threads = [n for n in self._threads() if n != own] + [own]
        for native in self._fds.keys() - set(threads):
            os.close(self._fds.pop(native))
        for native in threads:
            reads = self._read(native)
            if reads is not None:
                self._before[native] = reads
        if own in self._before:  # the reading itself
            self._before[own].calls += 1
            self._before[own].read += self._size

    def end(self) -> Reads | None:
        """Return what was read since ``begin``; None where the kernel does not count. This thread's count comes first."""
        own = threading.get_native_id()
        total = Reads()
        if own not in self._before:
            self.known = False
            return None
        for native in [own] + [n for n in self._threads() if n != own]:
            now, before = self._read(native), self._before.get(native)
            if now is None:
                continue
            before = before or Reads()
            total.calls += now.calls - before.calls
            total.read += now.read - before.read
            total.storage += now.storage - before.storage
        return total

    def _threads(self) -> list[int]:
        active = list(threading._active.values())[:_MOST_THREADS]  # type: ignore[attr-defined]
        return [t.native_id for t in active if t.native_id is not None and not t.name.endswith(_PASSING)]

    def _read(self, native: int) -> Reads | None:
        fd = self._fds.get(native)
        try:
            if fd is None:
                fd = self._fds[native] = os.open(f"/proc/self/task/{native}/io", os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(fd, 512, 0)
        except OSError:  # it has ended, or the kernel keeps none
            return None
        self._size = len(text)
        fields = dict(line.split(b": ") for line in text.splitlines())
        try:
            return Reads(int(fields[b"syscr"]), int(fields[b"rchar"]), int(fields[b"read_bytes"]))
        except (KeyError, ValueError):
            return None

    _size = 0

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


_counting: set[int] = set()  # keys of the fetches under way
_not: set[int] = set()  # threads whose opens are ours
_opened = [0]
_hooked: list[bool] = []


def count_opens() -> None:
    """Begin to see what is opened; an audit hook cannot be taken away again, so it is there but once."""
    if _hooked:
        return
    _hooked.append(True)
    counting, excepted, opened, ident = _counting, _not, _opened, threading.get_ident

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if counting and event == "open" and ident() not in excepted:
            opened[0] += 1

    sys.addaudithook(hook)


def opened() -> int:
    """Return how many opens were seen while something was counted."""
    return _opened[0]


def ours(thread: int) -> None:
    """Leave a thread's opens out."""
    _not.add(thread)


def count(key: int, on: bool) -> None:
    """Count opens from now on, or no longer, for the fetch ``key``."""
    if on:
        _counting.add(key)
    else:
        _counting.discard(key)


def after_fork() -> None:
    """Forget the fetches and threads of the parent."""
    _counting.clear()
    _not.clear()
