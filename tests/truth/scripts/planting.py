"""What the planted scripts share: doses that the runner sets while the loop is paused, and what each of them really took.

Part of the scripts, which import it by its bare name. A dose is seconds per step. A wait oversleeps and a computation is
interrupted where others use the CPUs as well, so the dose asked for is not the truth: each plant notes how long it took,
how much of that its thread computed, and how much it queued for a CPU.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import io
import mmap
import os
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from layout import BORDER, FETCHED, NOTE, PARTS, PLACES, STOPWATCH
from PIL import Image

SLOW = 16  # one sample in so many is the slow one

_code = {place: number for number, place in enumerate(PLACES)}
_doses = memoryview(bytearray(8 * len(PLACES))).cast("d")
_batch = 1
_elsewhere = False  # workers prepare the batches
_folder = ""


def begin(folder: str, batch: int, workers: int) -> None:
    """Read doses from ``folder`` and write notes there; ``batch`` samples make a step, ``workers`` prepare them."""
    global _doses, _folder, _batch, _elsewhere
    with open(os.path.join(folder, "doses"), "r+b") as f:
        _doses = memoryview(mmap.mmap(f.fileno(), 8 * len(PLACES))).cast("d")
    _folder, _batch, _elsewhere = folder, batch, workers > 0


# -- what a process notes ----------------------------------------------------------------------------------------------


class _Own(threading.local):
    """This thread's run-queue wait, and its timer."""

    def __init__(self) -> None:
        self.schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self.timer = _libc.timerfd_create(1, 0)


_libc = ctypes.CDLL(None, use_errno=True)
_own = _Own()
_notes = bytearray()
_file = -1


def _renew() -> None:
    global _own, _notes, _file, _pool, _holder
    _own, _notes, _file, _pool, _holder = _Own(), bytearray(), -1, None, None


os.register_at_fork(after_in_child=_renew)


def queued() -> float:
    """Seconds that this thread was runnable but waited for a CPU so far."""
    return int(os.pread(_own.schedstat, 64, 0).split()[1]) / 1e9


def note(code: int, t0: float, wall: float, cpu: float = 0.0, queue: float = 0.0) -> None:
    """Keep a note until the next ``flush``."""
    _notes.extend(NOTE.pack(code, t0, wall, cpu, queue))


def flush() -> None:
    """Write what was noted to this process's file."""
    global _file
    if _file < 0:
        _file = os.open(os.path.join(_folder, f"{os.getpid()}.notes"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(_file, _notes)
    _notes.clear()


class Stopwatch:
    """The loop's own clock: ``lap(part)`` gives the time since the last lap to a part of the step."""

    def __init__(self) -> None:
        self.last = 0.0

    def step(self) -> None:
        """Begin a step."""
        flush()
        note(BORDER, time.perf_counter(), 0.0, time.thread_time(), queued())
        self.last = time.perf_counter()

    def lap(self, part: str) -> None:
        """End a part."""
        now = time.perf_counter()
        note(STOPWATCH + PARTS.index(part), self.last, now - self.last)
        self.last = now


# -- plants ------------------------------------------------------------------------------------------------------------


def plant(place: str, share: float = 1.0, whole: bool = False) -> None:
    """Spend a share of the dose that is set for a place, and note what it took; ``whole`` leaves that to the caller."""
    dose = _doses[_code[place]] * share
    if not dose:
        return
    if whole:
        _HOW[place](dose)
        return
    t0, q0, c0 = time.perf_counter(), queued(), time.thread_time()
    _HOW[place](dose)
    c1, q1, t1 = time.thread_time(), queued(), time.perf_counter()
    note(_code[place], t0, t1 - t0, c1 - c0, q1 - q0)


def planted(place: str) -> bool:
    """Whether a dose is set for a place."""
    return _doses[_code[place]] > 0


def noted(place: str, t0: float, q0: float, c0: float) -> None:
    """Note the whole of what began at these readings as planted."""
    note(_code[place], t0, time.perf_counter() - t0, time.thread_time() - c0, queued() - q0)


def burn(seconds: float) -> None:
    """Compute for so long, by the thread's own CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def read(seconds: float) -> None:
    """Block in read(2), as on storage that answers late: a timer's descriptor is readable when it has expired."""
    whole = int(seconds * 1e9)
    spec = struct.pack("<4q", 0, 0, whole // 10**9, max(1, whole % 10**9))
    _libc.timerfd_settime(_own.timer, 0, spec, None)
    os.read(_own.timer, 8)


def _jpeg() -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").resize((48, 48)).convert("RGB").save(out, "JPEG")
    return out.getvalue()


_picture = _jpeg()


_owed = 0.0  # CPU time of pictures that were not decoded yet: one takes longer than a sample's share of a small dose


def decode(seconds: float) -> None:
    """Decode a picture as often as it takes to use so much CPU time, on average over calls."""
    global _owed
    _owed += seconds
    while _owed > 0:
        began = time.thread_time()
        Image.open(io.BytesIO(_picture)).load()
        _owed -= time.thread_time() - began


_pool: ThreadPoolExecutor | None = None


def _in_pool(seconds: float) -> None:
    global _pool
    _pool = _pool or ThreadPoolExecutor(1)
    _pool.submit(decode, seconds).result()


class _Holder(threading.Thread):
    """Another thread of the process, which holds the lock when asked to, as one that flushes a cache does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lock, self.taken = threading.Lock(), threading.Semaphore(0)
        self.wanted: collections.deque[float] = collections.deque()
        self.asked = threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        while True:
            self.asked.acquire()
            with self.lock:
                self.taken.release()
                time.sleep(self.wanted.popleft())


_holder: _Holder | None = None


def _behind_lock(seconds: float) -> None:
    global _holder
    _holder = _holder or _Holder()
    _holder.wanted.append(seconds)
    _holder.asked.release()
    _holder.taken.acquire()
    with _holder.lock:
        pass


def _spread(seconds: float) -> None:
    """Take a bit of everything: beside busy programs what computes takes longer than asked for, what waits does not."""
    read(seconds / 2)
    decode(seconds / 4)
    burn(seconds / 4)


class _Cycle:
    """Garbage that only the collector finds, and that takes long to finalise."""

    def __init__(self, seconds: float) -> None:
        self.me, self.seconds = self, seconds

    def __del__(self) -> None:
        burn(self.seconds)


def _collect(seconds: float) -> None:
    _Cycle(seconds)
    gc.collect(0)


class _Line:
    """A log line that takes long to write."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __str__(self) -> str:
        time.sleep(self.seconds)
        return "-"


class _State:
    """A checkpoint that takes long to write."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        time.sleep(self.seconds)
        return (float, (self.seconds,))


def _wait(seconds: float) -> None:
    """Wait as the host does for a device."""
    _stand_in.append(seconds)
    torch.cuda.synchronize()


_stand_in: list[float] = []


def stand_in_for_a_device() -> None:
    """Let ``torch.cuda.synchronize`` wait as for a busy device, which is not there, and the probe hook it as if it were."""
    from fasttrain_doctor.probe import spans

    torch.cuda.synchronize = lambda device=None: time.sleep(_stand_in.pop())
    spans._patch(torch.cuda, ("synchronize",), spans.Span.SYNC)


_HOW = {
    "read": read,
    "decode": decode,
    "pool": _in_pool,
    "collate": burn,
    "transform": burn,
    "lock": _behind_lock,
    "sample": read,
    "spread": _spread,
    "forward": burn,
    "backward": burn,
    "optimizer": burn,
    "sync": _wait,
    "checkpoint": lambda seconds: torch.save(_State(seconds), io.BytesIO()),
    "logging": lambda seconds: print(_Line(seconds)),
    "eval": time.sleep,
    "gc": _collect,
    "python": burn,
}

# -- where they are planted in the data and in the model ---------------------------------------------------------------

_drawn = 0


def augment(x: Any) -> Any:
    """One transform of the data set."""
    plant("transform", 1 / _batch)
    return x


def sample(x: Any, i: int, transform: Any) -> Any:
    """Sample ``i`` of a data set, with what is planted in it."""
    global _drawn
    _drawn += 1
    t0, q0, c0 = time.perf_counter(), queued(), time.thread_time()
    for place in ("read", "decode", "pool", "lock", "spread"):
        plant(place, 1 / _batch)
    if _drawn % SLOW == 0:
        plant("sample", SLOW / _batch)
    made = transform(x), i % 4
    note(FETCHED, t0, time.perf_counter() - t0, time.thread_time() - c0, queued() - q0)
    return made


def collate(samples: Any) -> Any:
    """The collate function, with what is planted in it."""
    t0, q0, c0 = time.perf_counter(), queued(), time.thread_time()
    plant("collate")
    made = torch.utils.data.default_collate(samples)
    note(FETCHED, t0, time.perf_counter() - t0, time.thread_time() - c0, queued() - q0)
    if torch.utils.data.get_worker_info() is not None:
        flush()
    return made


class Through(torch.autograd.Function):
    """Passes on what it gets, its gradient after what is planted in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        plant("backward")
        return g


class Planted(torch.nn.Module):
    """A model with what is planted in its forward and its backward.

    Beside busy workers two cores have no time for a model as well: there it computes on one sample, and waits for as
    long as a device might need for the others.
    """

    def __init__(self, body: torch.nn.Module, head: torch.nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Any) -> Any:
        plant("forward")
        if not _elsewhere:
            return self.head(Through.apply(self.body(x)))
        time.sleep(_DEVICE)
        return self.head(Through.apply(self.body(x[:1]))).expand(len(x), -1)


_DEVICE = 7e-3


class PerParameter(torch.optim.SGD):
    """An optimizer that works on one parameter after the other, each with its share of what is planted."""

    def step(self, closure: Any = None) -> Any:
        if planted("optimizer"):
            parameters = [p for group in self.param_groups for p in group["params"]]
            for _ in parameters:
                plant("optimizer", 1 / len(parameters))
        return super().step(closure)
