"""Writes records and facts of this process as they happen, bounded in size; survives ``os._exit`` and a kill."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
import threading
import time
from typing import Any

from fasttrain_doctor.records import HEADER, MAGIC, RECORD, SIZE

# Captured now: a script that patches ``time`` must not confuse us.
clock = time.perf_counter_ns
thread_clock = time.thread_time_ns
_ident = threading.get_ident
_now, _getpid, _getppid = time.time_ns, os.getpid, os.getppid
_open, _write, _reserve = os.open, os.write, os.posix_fallocate
_pack = RECORD.pack_into
_HEADER_SIZE = HEADER.size
_dumps = json.dumps  # scripts put faster ones in its place, whose answer is bytes

_CHUNK = 16 * 1024
# Bytes of records: of the training processes of one machine together, about 98,000; of one's loader workers together.
_MOST = 6 * 1024 * 1024
_MOST_OF_WORKERS = 2 * 1024 * 1024
_LEAST = 128 * 1024  # of one process, however many there are
_MOST_FACTS = 512 * 1024
LOADER = "FASTTRAIN_DOCTOR_LOADER"  # the loader whose workers are being started, while they are


def parent() -> int:
    """Return the process that this one works for: with a fork server it is not the one that made it."""
    process = sys.modules.get("multiprocessing.process")
    made_by = None if process is None else process.parent_process()
    return _getppid() if made_by is None or made_by.pid is None else int(made_by.pid)


class Recorder:
    """One per process. ``write`` costs about a microsecond; a full disk or a full file stops recording, never raises."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.on = True
        self.lost: str | None = None
        self._pid = 0
        self._map: Any = None  # once there is room, a map
        self._room = 0
        self._count = itertools.count()
        self._threads: dict[int, int] = {}
        self._lock = threading.Lock()
        self._facts_fd = -1
        self._facts_bytes = 0
        self._fd = -1
        self.worker = -1
        self.workers = 1  # how many the loader has whose worker this is
        self.loader = int(os.environ.get(LOADER, "0"))  # whose worker this is, where that is known

    def after_fork(self) -> None:
        """Start anew in a forked child: its own files, opened at its first record."""
        self._lock = threading.Lock()
        self._map = None
        self._room = 0
        self._count = itertools.count()
        self._threads = {}
        for fd in (self._fd, self._facts_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._facts_fd = -1
        self._facts_bytes = 0

    def write(
        self,
        kind: int,
        flag: int,
        obj: int,
        t0: int,
        t1: int,
        cpu0: int = 0,
        cpu1: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
    ) -> None:
        """Append one record (see ``records.Kind``)."""
        if not self.on:
            return
        ident = _ident()
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads.setdefault(ident, min(len(self._threads) + 1, 65535))
        offset = _HEADER_SIZE + next(self._count) * SIZE
        if offset + SIZE > self._room and not self._grow(offset + SIZE):
            return
        try:
            _pack(self._map, offset, kind, flag, thread, obj, t0, t1, cpu0, cpu1, a, b, c)
        except Exception as error:
            self.lose(f"a record could not be written: {error}")

    def _grow(self, need: int) -> bool:
        """Make room for ``need`` bytes; False, with the reason kept, when there is none to be had."""
        with self._lock:
            if need <= self._room:
                return True
            if self.lost is not None:
                return False
            if need > self._bound():
                self.lose("the record file reached its bound")
                return False
            try:
                if self._fd < 0:
                    path = os.path.join(self.folder, f"{_getpid()}.rec")
                    self._fd = _open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                room = min(self._room + max(_CHUNK, min(self._room, 1 << 20)), self._bound())
                # Reserve the blocks first: a store into a hole of a full disk would kill the user's process (SIGBUS).
                _reserve(self._fd, 0, room)
                fresh = self._map is None
                self._map = mmap.mmap(self._fd, room)
                if fresh:
                    rank = int(os.environ.get("RANK", "-1"))
                    HEADER.pack_into(self._map, 0, MAGIC, _getpid(), parent(), rank, self.worker, _now(), clock())
                self._room = room
            except Exception as error:
                self.lose(f"records could not be written: {error}")
                return False
            return True

    def _bound(self) -> int:
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
        most = _MOST if self.worker < 0 else _MOST_OF_WORKERS // max(1, self.workers)
        return max(_LEAST, most // max(1, int(ranks) if ranks.isdigit() else 1))

    @classmethod
    def scratch(cls, records: int) -> Recorder:
        """Return a recorder that keeps so many records in memory and writes nothing: what a record costs is timed on it."""
        recorder = cls("")
        recorder._room = _HEADER_SIZE + records * SIZE
        recorder._map = bytearray(recorder._room)
        recorder.lost = "it keeps no more"
        recorder._facts_bytes = _MOST_FACTS
        return recorder

    def lose(self, why: str) -> None:
        """Stop recording for good and say so once."""
        if self.lost is None:
            self.lost = why
            self.fact("degraded", what="records", why=why)

    def fact(self, kind: str, **fields: Any) -> None:
        """Append one line of JSON; a value that JSON cannot hold is written as its repr."""
        try:
            line = _dumps({"fact": kind, "pid": _getpid(), **fields}, default=repr).encode() + b"\n"
            self._facts_bytes += len(line)
            if self._facts_bytes > _MOST_FACTS:
                return
            if self._facts_fd < 0:
                path = os.path.join(self.folder, f"{_getpid()}.jsonl")
                self._facts_fd = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            _write(self._facts_fd, line)
        except Exception:
            self._facts_bytes = _MOST_FACTS + 1  # no room: the parent sees a process without facts and says so
