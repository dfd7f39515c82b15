"""Hooks on the fetchers, in the main process and in workers: each sample's time, and what a fetch's time went to."""

from __future__ import annotations

import functools
import sys
import time
from types import CodeType
from typing import Any

from fasttrain_doctor.probe import describe, items, looking, state
from fasttrain_doctor.probe.accounting import others, queue
from fasttrain_doctor.probe.items import Draws, Items, Samples
from fasttrain_doctor.probe.recorder import clock, thread_clock
from fasttrain_doctor.records import Kind

_process_clock = time.process_time_ns
_RNG_LOOKS = 6  # fetches on which the random states are compared: each costs about 20 us

# GNU OpenMP's threads spin before they sleep (GOMP_SPINCOUNT): after a parallel region of the training they burn CPU
# for up to this long each, which is nobody's decoding.
_SPIN_NS = 15_000_000

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


class _Reading:
    """The clocks of this process and thread at one moment, in ns."""

    __slots__ = ("cpu", "feeder", "process", "python", "python_queue", "queue", "time")

    def begin(self) -> _Reading:
        """Read the moment itself last: what is read before it is none of the fetch's."""
        self._python()
        self.process, self.cpu, self.queue, self.time = _process_clock(), thread_clock(), queue.read(), clock()
        return self

    def end(self) -> _Reading:
        """Read the moment itself first."""
        self.time, self.queue, self.cpu, self.process = clock(), queue.read(), thread_clock(), _process_clock()
        self._python()
        return self

    def _python(self) -> None:
        self.python, self.python_queue = others.look()
        self.feeder = others.feeder()


_ended: _Reading | None = None  # of a worker: its last fetch's end, with the feeder's CPU at that fetch's begin


def _wrap(original: Any, attribute: str, stand_in: type[Samples]) -> Any:
    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        if looking.flag[0] & 1:
            return looking.fetch(original, self, index)
        recorder = state.recorder
        inside = state.inside
        if not recorder.on or inside.depth > 1:
            return original(self, index)
        global _looks
        try:
            info = _worker_info()
            if info is not None:
                recorder.worker = info.id
            before = _random_state() if _looks < _RNG_LOOKS else None
            source = self.__dict__[attribute]
            begun = _Reading().begin()
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
            inside.depth -= 1
            if not shared:
                setattr(self, attribute, source)
            try:
                ended = _Reading().end()
                _write(begun, ended, samples, info is not None)
                if before is not None:
                    _looks += 1
                    untouched = _random_state() == before
                    recorder.fact("rng", untouched=untouched, worker=info is not None, **describe.threads())
            except Exception as error:
                state.degraded("fetch", error)

    FETCH_CODES.add(fetch.__code__)  # type: ignore[attr-defined]
    return fetch


def _write(begun: _Reading, ended: _Reading, samples: Samples, in_worker: bool) -> None:
    global _ended
    write = state.recorder.write
    loader = state.recorder.loader
    python = ended.python - begun.python
    native = max(0, (ended.process - begun.process) - (ended.cpu - begun.cpu) - python)
    if not in_worker:  # a worker runs one intra-op thread: nothing spins there
        native = max(0, native - _SPIN_NS * (_threads() - 1))
    waited = -1 if begun.queue < 0 or ended.queue < 0 else ended.queue - begun.queue
    pool = python + ended.python_queue - begun.python_queue + native
    marks = samples.marks
    write(Kind.FETCH, int(in_worker), loader, begun.time, ended.time, begun.cpu, ended.cpu, waited, pool, samples.count)
    if len(marks) > 1:
        index, slow, slowest, excess, typical = samples.facts()
        write(Kind.ITEMS, slow, index, begun.time, marks[-1], begun.cpu, samples.cpu, slowest, excess, typical)
    if in_worker:
        last, _ended = _ended, ended
        if last is not None:
            waited = -1 if begun.queue < 0 or last.queue < 0 else begun.queue - last.queue
            sent = begun.feeder - last.feeder
            write(Kind.BETWEEN, 0, loader, last.time, begun.time, last.cpu, begun.cpu, waited, sent)
        ended.feeder = begun.feeder


def _worker_info() -> Any:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return None if worker is None else worker._worker_info


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def install() -> None:
    """Wrap ``fetch`` of both fetcher classes (torch.utils.data._utils.fetch, torch 1.8 to 2.14)."""
    from torch.utils.data._utils import fetch

    map_style, iterable = fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher
    map_style.fetch = _wrap(map_style.fetch, "dataset", Items)  # type: ignore[method-assign]
    iterable.fetch = _wrap(iterable.fetch, "dataset_iter", Draws)  # type: ignore[method-assign]


def after_fork() -> None:
    """Let a forked child read its own thread's accounting."""
    global _looks, _ended
    queue.after_fork()
    others.after_fork()
    _looks = 0
    _ended = None
