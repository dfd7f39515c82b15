"""What the probe writes while the user's script runs.

Two files per process in the run's ``probe/`` folder, so that nothing is lost to ``os._exit`` or a kill:

- ``<pid>.rec``: fixed-size binary records in a memory-mapped file, written as things happen;
- ``<pid>.jsonl``: facts of variable length, one JSON object a line, each written by one ``write`` call.

Times are nanoseconds of ``time.perf_counter_ns`` (CLOCK_MONOTONIC on Linux: comparable between processes of one
machine). Imported in the user's process: standard library only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# kind, flag, thread (small number per process), obj (number of the object in the facts), then seven int64:
# t0, t1 (wall), cpu0, cpu1 (CPU time of the recording thread at t0 and t1), a, b, c (meaning by kind).
RECORD = struct.Struct("<BBHI7q")
SIZE = RECORD.size  # 64 bytes: one cache line

# File header: magic, pid, parent pid, rank (-1: unknown), worker (-1: not a loader worker), start time (wall epoch ns),
# start of clock (perf_counter_ns). Records follow at offset HEADER.size; a record of kind 0 ends the file.
HEADER = struct.Struct("<8sIIiiqq24x")
MAGIC = b"FTDREC01"


class Kind(IntEnum):
    """What a record tells; the comment gives the meaning of ``obj``, ``flag`` and ``a, b, c``."""

    NEXT = 1  # a loader iterator's __next__. obj iterator, a loader; flag 1: StopIteration, 2: another exception
    FETCH = 2  # a fetcher's fetch. obj loader, 0: unknown; flag 1: in a worker; a run-queue ns, b pool ns, c samples
    # (of one that ended in an exception those that were there)
    FORWARD = 3  # outermost module call. obj module; flag: Call; a, b: the thread's run-queue wait and the other
    # Python threads' CPU so far at t0, 0: not read (only where no loader is asked)
    BACKWARD = 4  # autograd.backward/grad, outermost. flag 1: inside another call; a, b: the same
    OPTIMIZER = 5  # an optimizer's step. obj optimizer; a, b: the same at t1; flag 1: skipped by a gradient scaler
    GRADIENTS = 6  # gradients are cleared or clipped
    SPAN = 7  # flag: Span; something that is not training. a: its place in the user's code (fact number) or 0
    COPY = 8  # a copy to the device issued by the host. flag 1: source pinned, 2: non_blocking; a bytes, b place or 0
    ITERATOR = 9  # an iterator was made or reset. obj iterator, a loader, b workers, c 1 when reset
    DEVICE = 10  # device times of one border interval. obj Interval, a device ns, flag 1: host-bound, b step serial
    UPDATE = 15  # around optimizer steps: a gradient scaler's unscale_, step, update; flag 1: a whole one, made by hand
    CLOSURE = 12  # the closure that an optimizer's step called
    ITEMS = 13  # the samples of the FETCH with the same t0 and thread; the rest of that one is collation. obj index of
    # the slowest + 1, 0: no number; flag slow samples, at most 255; a slowest ns, b what exceeds TAIL times the
    # median, c median ns (of two the lower). a, b, c -1: they came all at once. CPU is not read
    BETWEEN = 14  # in a worker, from the end of a fetch to the begin of the next. obj loader; a run-queue ns, -1:
    # unknown; b CPU of the thread that pickles and sends batches, from the earlier fetch's begin on
    MARK = 11  # the parent's command ran from t0 to t1 (profile, block, floor): steps inside are not the user's. a Mark


class Call(IntFlag):
    """What a FORWARD record says of its module."""

    GRAD = 1  # gradients were being recorded
    EVAL = 2  # the module was in evaluation mode
    TRAINS = 4  # some parameter of it requires a gradient
    LOSS = 8  # what it gave holds a single number that a gradient can be taken of


class Span(IntEnum):
    """Named parts of a step that are not one of the six phases."""

    SYNC = 1
    CHECKPOINT = 2
    LOGGING = 3
    COLLECTIVE = 4
    GC = 5
    LOCK = 6


class Mark(IntEnum):
    """Why an interval does not count as the user's own training."""

    CONTROL = 1  # waiting for the parent's next command
    PROFILE = 2
    BLOCK = 3


class Interval(IntEnum):
    """What the host did between two borders; ``obj`` of a DEVICE record."""

    DATA = 1
    H2D = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    OTHER = 6


@dataclass(frozen=True, slots=True)
class Record:
    """One event: times in ns of the monotonic clock, CPU in ns of the recording thread."""

    kind: Kind
    flag: int
    thread: int
    obj: int
    t0: int
    t1: int
    cpu0: int
    cpu1: int
    a: int
    b: int
    c: int


def read(data: bytes) -> Iterator[Record]:
    """Yield the records of one ``.rec`` file's bytes; stops at the first empty or torn record."""
    if len(data) < HEADER.size or data[:8] != MAGIC:
        return
    known = set(Kind)
    for offset in range(HEADER.size, len(data) - SIZE + 1, SIZE):
        kind, flag, thread, obj, t0, t1, cpu0, cpu1, a, b, c = RECORD.unpack_from(data, offset)
        if kind not in known or t1 < t0:  # a record torn by a kill has its times missing
            return
        yield Record(Kind(kind), flag, thread, obj, t0, t1, cpu0, cpu1, a, b, c)
