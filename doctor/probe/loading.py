"""Hooks on loader iterators: which loader, how long ``next`` took, and where a trial's arm takes over."""

from __future__ import annotations

import multiprocessing.util
import os
import sys
import warnings
import weakref
from typing import Any

from fasttrain_doctor.probe import describe, state, unseen
from fasttrain_doctor.probe.loop import Key
from fasttrain_doctor.probe.recorder import LOADER, clock, thread_clock
from fasttrain_doctor.records import Kind

KEY = ("dataset", "dataset_length", "batch_size", "sampler", "drop_last")

# iterator -> (number, key) of its loader; weak, so that nothing hangs on the user's objects. A loader is often gone
# while its iterator lives (``for batch in DataLoader(...)``), so it is not looked up through a reference.
_loader_of: weakref.WeakKeyDictionary[Any, tuple[int, Key]] = weakref.WeakKeyDictionary()
_described: dict[int, int] = {}  # loader number -> batches described


# iterators made without workers of their own because arms serve their loader
hollow: weakref.WeakSet[Any] = weakref.WeakSet()
_spent: dict[Key, int] = {}  # ns in next, by loader
_latest: dict[Key, Any] = {}  # the newest loader of each key, without its iterator
_MOST_KEYS = 64
_BATCH_LOOKS = 6  # batches described: a device is only known to be in use after the first ones
_original_next: Any = None


def native_next(iterator: Any) -> Any:
    """Return the iterator's own next batch, past the hook."""
    return _original_next(iterator)


def iterators() -> list[Any]:
    """Return the script's own live iterators."""
    return list(_loader_of.keys())


def training_key(loop: Any) -> Key | None:
    """Return the key of the loader that leads to backwards and is waited for most, or None.

    None as well where another thread asks it: that one would be in the middle of an arm's queue when arms are switched.
    """
    known = [k for k in loop.training - loop.elsewhere if k in _latest]
    return max(known, key=lambda k: _spent.get(k, 0), default=None)


def like(loader: Any, **changed: Any) -> Any:
    """Return a loader like this one that holds no iterator, with some attributes changed."""
    held = object.__new__(type(loader))
    held.__dict__.update(loader.__dict__)
    held.__dict__.update(changed, _iterator=None)
    return held


def latest(which: Key) -> Any:
    """Return the newest loader of a key: a copy that holds no iterator, so that no workers are kept by it."""
    return _latest[which]


def facts_of(which: Key) -> dict[str, Any]:
    """Return what ``describe.loader`` said of the newest loader of a key."""
    return _facts[which]


def length(which: Key) -> int | None:
    """Return the batches of one epoch, or None where only the data set's end tells."""
    length: int | None = _facts[which]["length"]
    return length


_facts: dict[Key, dict[str, Any]] = {}
_keys: dict[int, Key] = {}


def number(loader: Any) -> int:
    """Return the loader's number; its facts are written the first time."""
    serial, new = state.loaders.get(loader)
    if new:
        facts = describe.loader(loader)
        _keys[serial] = which = tuple(facts[k] for k in KEY)
        _facts[which] = facts
        state.recorder.fact("loader", id=serial, **facts)
    return serial


def key(loader: Any) -> Key:
    """Return what tells loaders apart, also those that are made anew each epoch."""
    return _keys[number(loader)]


def _wrap_init(original: Any) -> Any:
    @unseen.wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        try:
            t0, cpu0 = clock(), thread_clock()
            if not _hollow(self, loader):
                with _Making(loader):
                    original(self, loader, *args, **kwargs)
            try:
                _made(self, loader, t0, cpu0, reset=False)
            except Exception as error:
                state.degraded("loader", error)
        except BaseException as error:
            unseen.strip(error)
            raise

    return __init__


def _wrap_reset(original: Any) -> Any:
    @unseen.wraps(original)
    def _reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            t0, cpu0 = clock(), thread_clock()
            if self in hollow:
                return _base_reset(self, loader, *args, **kwargs)
            out = original(self, loader, *args, **kwargs)
            try:
                if not kwargs.get("first_iter") and not (args and args[0]):
                    _made(self, loader, t0, cpu0, reset=True)
            except Exception as error:
                state.degraded("loader", error)
            return out
        except BaseException as error:
            unseen.strip(error)
            raise

    return _reset


class _Making:
    """Tells workers started meanwhile whose they are: forked ones by the recorder's copy, others by the environment.

    They are given this process's folder for the sockets over which they pass tensors: one of their own would stay behind
    when they are killed.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.put = False

    def __enter__(self) -> None:
        try:
            if not self.loader.num_workers:
                return
            multiprocessing.util.get_temp_dir()
            if not getattr(self.loader, "_ftd_view", False):
                state.recorder.loader = number(self.loader)
                os.environ[LOADER] = str(state.recorder.loader)
                self.put = True
        except Exception as error:
            state.degraded("loader", error)

    def __exit__(self, *_: object) -> None:
        if self.put:
            state.recorder.loader = 0
            os.environ.pop(LOADER, None)


_base_init: Any = None
_base_reset: Any = None


def _hollow(iterator: Any, loader: Any) -> bool:
    """Make a worker loader's iterator without workers while arms serve its batches; whether that was done."""
    arms = sys.modules.get("fasttrain_doctor.probe.arms")
    try:
        if arms is None or getattr(loader, "_ftd_view", False) or not loader.num_workers or not arms.takes(key(loader)):
            return False
    except Exception as error:
        state.degraded("arms", error)
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the script has had them, for the iterator it made itself
        _base_init(iterator, loader)
    iterator._shutdown = True  # nothing to shut down: _shutdown_workers returns at once
    iterator._workers = []
    hollow.add(iterator)
    return True


def _made(iterator: Any, loader: Any, t0: int, cpu0: int, reset: bool) -> None:
    if getattr(loader, "_ftd_view", False):
        return  # an arm's own iterator
    serial_of, which = number(loader), key(loader)
    _loader_of[iterator] = serial_of, which
    if len(_latest) < _MOST_KEYS:
        _latest[which] = like(loader)
    serial, _ = state.iterators.get(iterator)
    state.recorder.write(
        Kind.ITERATOR, 0, serial, t0, clock(), cpu0, thread_clock(), serial_of, iterator._num_workers, int(reset)
    )


def _wrap_next(original: Any) -> Any:
    @unseen.wraps(original)
    def __next__(self: Any) -> Any:
        try:
            inside = state.inside
            loop = state.loop
            if inside.depth or loop.off:
                return original(self)
            known = _loader_of.get(self)
            if known is None:
                return original(self)
            serial, which = known
            try:
                loop.before_next(which)
                take = loop.source(self, which)
                iterator, _ = state.iterators.get(self)
                t0, cpu0 = clock(), thread_clock()
            except Exception as error:
                state.degraded("next", error)
                return original(self)
            inside.depth += 1
            flag = 2
            try:
                data = original(self) if take is None else take()
                flag = 0
            except StopIteration:
                flag = 1
                loop.ended(which)
                raise
            finally:
                inside.depth -= 1
                cpu1, t1 = thread_clock(), clock()
                _spent[which] = _spent.get(which, 0) + t1 - t0
                state.recorder.write(Kind.NEXT, flag, iterator, t0, t1, cpu0, cpu1, serial)
            try:
                loop.after_next(which, data)
                looks = _described.get(serial, 0)
                if looks < _BATCH_LOOKS:
                    _described[serial] = looks + 1
                    facts = describe.batch(data)
                    if looks == 0:
                        state.recorder.fact("batch", loader=serial, **facts)
            except Exception as error:
                state.degraded("next", error)
            return data
        except BaseException as error:
            unseen.strip(error)
            raise

    return __next__


def install() -> None:
    """Wrap the iterator base class (torch.utils.data.dataloader, checked on torch 2.14): sees every way of iterating."""
    from torch.utils.data import dataloader

    global _original_next, _base_init, _base_reset
    base = dataloader._BaseDataLoaderIter
    _original_next, _base_init, _base_reset = base.__next__, base.__init__, base._reset
    single, multi = dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter
    single.__init__ = _wrap_init(single.__init__)  # type: ignore[method-assign]
    multi.__init__ = _wrap_init(multi.__init__)  # type: ignore[method-assign]
    multi._reset = _wrap_reset(multi._reset)  # type: ignore[method-assign]
    base.__next__ = _wrap_next(base.__next__)  # type: ignore[method-assign]
