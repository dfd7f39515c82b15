"""Hooks on the fetchers, in the main process and in workers: each sample's time, and what a fetch's time went to."""

from __future__ import annotations

import sys
import time
from types import CodeType
from typing import Any

from fasttrain_doctor.probe import describe, items, looking, state, unseen
from fasttrain_doctor.probe.accounting import others, queue
from fasttrain_doctor.probe.compute_pool import pool as computing
from fasttrain_doctor.probe.items import Draws, Items, Samples
from fasttrain_doctor.probe.recorder import clock, thread_clock
from fasttrain_doctor.records import Kind

_process_clock = time.process_time_ns
_FETCH, _ITEMS, _BETWEEN = int(Kind.FETCH), int(Kind.ITEMS), int(Kind.BETWEEN)  # an Enum's members are slow to reach
_RNG_LOOKS = 6  # fetches on which the random states are compared: each costs about 20 us

# GNU OpenMP's threads spin before they sleep (GOMP_SPINCOUNT): after a parallel region of the training they burn CPU
# for up to this long each, which is nobody's decoding. Only counted with until it is known which threads those are.
_SPIN_NS = 15_000_000

# A fetch that was blocked for no more than this, which is what reading its clocks takes, and this share of it computed.
_UNBLOCKED_NS = 2_000
_UNBLOCKED = 0.02

_worker: Any = None  # torch.utils.data._utils.worker

# What a sampled stack is read by: a frame of the first is a fetch, one of the second in it a sample, else it collates.
FETCH_CODES: set[CodeType] = set()
ITEM_CODES: set[CodeType] = set(items.CODES)


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


class _Moment:
    """The clocks of this process, less those of threads that compute for the training, and of this thread, in ns."""

    __slots__ = ("cpu", "feeder", "process", "python", "python_queue", "queue", "time")

    time: int
    cpu: int
    process: int
    queue: int
    python: int
    python_queue: int
    feeder: int


def _begin() -> _Moment:
    """Read the moment itself last: what is read before it is none of the fetch's."""
    moment = _Moment()
    moment.python, moment.python_queue = others.look()
    moment.process = _process_clock() - computing.burnt()
    moment.cpu = cpu = thread_clock()
    moment.queue = queue.at(clock(), cpu)
    moment.time = clock()
    return moment


_ended: _Moment | None = None  # of a worker: its last fetch's end, with the feeder's CPU at that fetch's begin


def _wrap(original: Any, attribute: str, stand_in: type[Samples]) -> Any:
    @unseen.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        try:
            if looking.flag[0] & 1:
                return looking.fetch(original, self, index)
            recorder = state.recorder
            inside = state.inside
            if not recorder.on or inside.depth > 1:
                return original(self, index)
            global _looks
            try:
                info = _worker._worker_info
                if info is not None:
                    recorder.worker, recorder.workers = info.id, info.num_workers
                before = _random_state() if _looks < _RNG_LOOKS else None
                source = self.__dict__[attribute]
                begun = _begin()
                if info is not None:
                    begun.feeder = others.feeder()
                samples = stand_in(source, index, not self.auto_collation, begun.time)
                shared = isinstance(source, Samples)
                if shared:  # another thread is in a fetch of the same fetcher: whose the samples are nobody knows
                    source.whole = samples.whole = True
                else:  # only while it fetches: whoever asks the fetcher for its data set later finds the user's own
                    setattr(self, attribute, samples)
            except Exception as error:
                state.degraded("fetch", error)
                return original(self, index)
            inside.depth += 1
            try:
                return original(self, index)
            finally:
                t1, cpu1 = clock(), thread_clock()
                inside.depth -= 1
                if not shared:
                    setattr(self, attribute, source)
                try:
                    _write(begun, t1, cpu1, samples, info is not None)
                    if before is not None:
                        _looks += 1
                        untouched = _random_state() == before
                        recorder.fact("rng", untouched=untouched, worker=info is not None, **describe.threads())
                except Exception as error:
                    state.degraded("fetch", error)
        except BaseException as error:
            unseen.strip(error)
            raise

    FETCH_CODES.add(fetch.__code__)
    return fetch


def _write(begun: _Moment, t1: int, cpu1: int, samples: Samples, in_worker: bool) -> None:
    """Write what a fetch came to. What ran beside it is only looked at where it was blocked."""
    global _ended
    write = state.recorder.write
    loader = state.recorder.loader
    t0, cpu0 = begun.time, begun.cpu
    blocked = max(0, t1 - t0 - (cpu1 - cpu0))
    queue1 = begun.queue
    if blocked <= _UNBLOCKED_NS + (t1 - t0) * _UNBLOCKED:
        waited, pool = 0, blocked
    else:
        process = _process_clock() - computing.burnt() - begun.process
        python, python_queue = others.look()
        python -= begun.python
        native = max(0, process - (cpu1 - cpu0) - python)
        if computing.looking and not in_worker:  # a worker runs one intra-op thread: nothing spins there
            native = max(0, native - _SPIN_NS * (_threads() - 1))
        queue1 = queue.at(t1, cpu1)
        waited = -1 if begun.queue < 0 or queue1 < 0 else queue1 - begun.queue
        pool = python + python_queue - begun.python_queue + native
        if in_worker:  # the batch before this one is being sent meanwhile: nobody waits for that here
            pool = max(0, pool - (others.feeder() - begun.feeder))
    write(_FETCH, in_worker, loader, t0, t1, cpu0, cpu1, waited, pool, samples.count)
    marks = samples.marks
    if len(marks) > 1:
        index, slow, slowest, excess, typical = samples.facts()
        write(_ITEMS, slow, index, t0, marks[-1], 0, 0, slowest, excess, typical)
    if in_worker:
        last, _ended = _ended, begun
        if last is not None:
            waited = -1 if begun.queue < 0 or last.queue < 0 else begun.queue - last.queue
            write(_BETWEEN, 0, loader, last.time, t0, last.cpu, cpu0, waited, begun.feeder - last.feeder)
        begun.time, begun.cpu, begun.queue = t1, cpu1, queue1


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def install() -> None:
    """Wrap ``fetch`` of both fetcher classes (torch.utils.data._utils.fetch, torch 1.8 to 2.14)."""
    global _worker
    from torch.utils.data._utils import fetch, worker

    _worker = worker
    map_style, iterable = fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher
    map_style.fetch = _wrap(map_style.fetch, "dataset", Items)  # type: ignore[method-assign]
    iterable.fetch = _wrap(iterable.fetch, "dataset_iter", Draws)  # type: ignore[method-assign]


def after_fork() -> None:
    """Let a forked child read its own thread's accounting."""
    global _looks, _ended
    queue.after_fork()
    others.after_fork()
    computing.after_fork()
    _looks = 0
    _ended = None
