"""The short look inside: after the observed window and the profiled steps every process samples itself for a while.

The training process begins and ends it; its workers learn of it from one byte of a file that all map (odd: on), which
their fetches look at anyway. Each process writes one ``look`` fact when it is over. Nothing of it is ever on inside a
comparison.
"""

from __future__ import annotations

import _thread
import functools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fasttrain_doctor.probe import looking_files, state, unseen
from fasttrain_doctor.probe.accounting import queue
from fasttrain_doctor.probe.looking_facts import facts
from fasttrain_doctor.probe.looking_files import Counter, Reads
from fasttrain_doctor.probe.looking_sampler import Kernel, Sample, Sampler, at_once
from fasttrain_doctor.probe.looking_transforms import Transforms
from fasttrain_doctor.probe.recorder import clock, thread_clock

_sleep = time.sleep
_ident = threading.get_ident
_NAME = "look.on"
_MOST_NS = 30_000_000_000  # a look that nobody ends is over by itself

flag: Any = b"\0"  # mapped by ``install``: what a fetch looks at
_look: Look | None = None
_kernel: list[Kernel] = []


def install() -> None:
    """Map the byte that tells of a look; spawned workers find the same file, forked ones have the map."""
    global flag
    path = os.path.join(state.recorder.folder, _NAME)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, mmap.PAGESIZE)  # a hole of a full disk would kill the process that looks (SIGBUS)
        flag = mmap.mmap(fd, mmap.PAGESIZE)
    finally:
        os.close(fd)
    os.register_at_fork(after_in_child=_after_fork)


@dataclass
class Look:
    """One process's look: what its fetches took and were seen to be in."""

    generation: int
    main: bool  # of the training process
    began: int = field(default_factory=clock)
    usual: float = field(default_factory=sys.getswitchinterval)
    searched: bool = False  # for transforms
    begun_at: int = 0  # steps that the loop had taken before
    samples: int = 0
    fetches: int = 0
    fetch_ns: int = 0
    collate_ns: int = 0  # of fetch_ns, in the collate function
    blocked_ns: int | None = 0  # of fetch_ns, by the fetching thread's own accounting; None: not kept here
    opens: int = 0
    reads: Reads | None = field(default_factory=Reads)
    seen: list[Sample] = field(default_factory=list)  # in whole fetches
    transforms: Transforms = field(default_factory=Transforms)
    forwards: int = 0
    after: int = 0  # number of the last forward, 0 once a backward or an update has followed
    losses: set[int] = field(default_factory=set)  # forwards that a backward followed
    ended: bool = False
    sampler: Sampler = field(init=False)
    inside: dict[int, list[Sample]] = field(default_factory=dict)
    counter: Counter = field(default_factory=Counter)
    closing: Any = None  # what writes the facts of a process that ends before the look does
    _over: Any = field(default_factory=_thread.allocate_lock)
    _once: Any = field(default_factory=_thread.allocate_lock)

    def start(self, thread: int, native: int) -> None:
        """Begin to sample in a thread of its own, which Python's own list of threads does not show."""
        if not _kernel:
            _kernel.append(Kernel())
        self.sampler = Sampler(
            _kernel[0],
            fetch.__code__,
            self.inside,
            {thread: native},
            self.over,
            lambda: self.after,
            lambda: bool(state.loop._aside),
        )
        looking_files.count_opens()
        self._over.acquire()
        _thread.start_new_thread(self._run, ())

    def over(self) -> bool:
        """Whether the look has ended, for whatever reason."""
        return self.ended or flag[0] != self.generation or clock() - self.began > _MOST_NS

    def _run(self) -> None:
        looking_files.ours(_ident())
        try:
            self.sampler.run()
        except Exception as error:
            state.degraded("look", error)
        finally:
            self.ended = True
            self.transforms.take_off()
            self._over.release()
        if not self.main:
            with at_once():  # each file read would else wait for the worker's own computing
                self.finish()

    def finish(self) -> None:
        """Wait for the sampler and write what was seen, once."""
        global _look
        self.ended = True
        if not self._once.acquire(False):
            return
        try:
            if self._over.acquire(True, 1.0):
                self._over.release()
            if not self.main and self.closing is not None:
                self.closing.cancel()
            self.transforms.take_off()
            if _look is self:
                _look = None
            state.recorder.fact("look", **facts(self))
            self.counter.close()
        except Exception as error:
            state.degraded("look", error)

    def open(self, thread: int, fetcher: Any) -> list[Sample]:
        """Note that a thread begins to fetch; returns where its samples go."""
        if not self.searched:
            self.searched = True
            self.transforms.put_on(getattr(fetcher, "dataset", None))
        samples: list[Sample] = []
        self.inside[thread] = samples
        return samples

    def close(
        self,
        samples: list[Sample],
        count: int,
        ns: int,
        collate: int,
        busy: int | None,
        opens: int,
        reads: Reads | None,
    ) -> None:
        """Note that a fetch has ended as it should: only then does it count, and only within the look."""
        if self.over():
            return
        self.seen += samples
        self.samples += count
        self.fetches += 1
        self.fetch_ns += ns
        self.collate_ns += collate
        self.blocked_ns = None if busy is None or self.blocked_ns is None else self.blocked_ns + max(0, ns - busy)
        self.opens += opens
        self.transforms.keep()
        if reads is None or self.reads is None:
            self.reads = None
        else:
            self.reads.calls += reads.calls
            self.reads.read += reads.read
            self.reads.storage += reads.storage


@unseen.pass_over
def fetch(original: Callable[[Any, Any], Any], fetcher: Any, index: Any) -> Any:
    """Fetch while a look is on. A sampled stack of a fetch ends at this frame."""
    thread = _ident()
    try:
        begun = _begin_fetch(thread, fetcher)
        try:
            data = original(fetcher, index)
        finally:
            t1, cpu1 = clock(), thread_clock()
            if begun is not None:
                looking_files.count(thread, False)
                begun.look.inside.pop(thread, None)
                fetcher.collate_fn = begun.collate.original
        if begun is not None:
            _end_fetch(begun, t1, cpu1, index)
        return data
    except BaseException as error:
        unseen.strip(error)
        raise


@dataclass(slots=True)
class _Fetch:
    """A fetch under way: when it began, in ns, and the counts of that moment."""

    look: Look
    samples: list[Sample]
    collate: _Collate
    queue: int
    opens: int
    cpu: int
    time: int


class _Collate:
    """Stands in for a fetcher's collate function, for one fetch and for the fetcher alone, and times it."""

    __slots__ = ("ns", "original")

    def __init__(self, original: Any) -> None:
        self.original, self.ns = original, 0

    @unseen.pass_over
    def __call__(self, samples: Any) -> Any:
        t0 = clock()
        try:
            return self.original(samples)
        except BaseException as error:
            unseen.strip(error)
            raise
        finally:
            self.ns += clock() - t0


def _begin_fetch(thread: int, fetcher: Any) -> _Fetch | None:
    """Note that a thread begins to fetch; None where this fetch is not looked into."""
    look = None
    try:
        look = _look or _begin_in_worker(thread)
        if look is None or look.over() or look.inside or state.loop._aside:
            return None
        samples = look.open(thread, fetcher)
        waited = queue.read()  # a read itself
        look.counter.begin()
        looking_files.count(thread, True)
        begun = _Fetch(look, samples, _Collate(fetcher.collate_fn), waited, looking_files.opened(), 0, 0)
        fetcher.collate_fn = begun.collate
        begun.cpu, begun.time = thread_clock(), clock()
        return begun
    except Exception as error:
        state.degraded("look", error)
        if look is not None:
            look.inside.pop(thread, None)
            looking_files.count(thread, False)
        return None


def _end_fetch(begun: _Fetch, t1: int, cpu1: int, index: Any) -> None:
    """Count a fetch that has ended as it should."""
    try:
        opens = looking_files.opened() - begun.opens
        reads, waited = begun.look.counter.end(), queue.read()
        count = len(index) if isinstance(index, (list, tuple)) else 1
        busy = None if begun.queue < 0 or waited < 0 else cpu1 - begun.cpu + waited - begun.queue
        begun.look.close(begun.samples, count, t1 - begun.time, begun.collate.ns, busy, opens, reads)
    except Exception as error:
        state.degraded("look", error)


def _begin_in_worker(thread: int) -> Look | None:
    """Begin this process's look, where it is a worker's; None in another process that only happens to be armed."""
    global _look
    worker = sys.modules.get("torch.utils.data._utils.worker")
    if worker is None or worker._worker_info is None:
        return None
    state.recorder.worker = worker._worker_info.id
    look = Look(flag[0], main=False)
    if look.over() or flag[0] in _looked:
        return None
    from multiprocessing.util import Finalize

    _looked.append(look.generation)
    state.recorder.fact("looking", generation=look.generation)
    look.closing = Finalize(None, look.finish, exitpriority=1000)
    _look = look
    look.start(thread, threading.get_native_id())
    return look


_looked: list[int] = []  # generations this worker has taken part in


def begin(loop: Any) -> Look:
    """Begin a look in the training process, and tell its workers."""
    global _look
    import atexit

    _look = look = Look(flag[0] + 1 & 0xFF | 1, main=True, begun_at=loop.steps)
    flag[0] = look.generation
    try:
        native = next((t.native_id for i, t in threading._active.items() if i == loop.thread), None)  # type: ignore[attr-defined]
        look.start(loop.thread, native or threading.get_native_id())
    except BaseException:
        flag[0] = look.generation + 1 & 0xFF
        _look = None
        raise
    look.closing = functools.partial(atexit.unregister, look.finish)
    atexit.register(look.finish)

    def forward(module: Any) -> None:
        look.forwards += 1
        look.after = look.forwards

    def backward(call: Any, args: Any, kwargs: Any) -> Any:
        if look.after:  # a loop may compute without a module, or step back twice
            look.losses.add(look.after)
        look.after = 0
        return call

    def step(optimizer: Any) -> None:
        look.after = 0

    loop.on_forward, loop.on_backward, loop.on_step = forward, backward, step
    return look


def end(loop: Any, look: Look) -> None:
    """End a look of the training process: its workers see it at their next sample, and write what they saw."""
    loop.on_forward = loop.on_backward = loop.on_step = None
    flag[0] = look.generation + 1 & 0xFF
    look.finish()
    look.closing()


def _after_fork() -> None:
    """Let a child begin anew: its parent's sampler is not there, nor may the parent's timers be on its transforms."""
    global _look
    look, _look = _look, None
    _looked.clear()
    looking_files.after_fork()
    if look is not None:
        look.ended = True
        look.transforms.take_off()
        sys.setswitchinterval(look.usual)
