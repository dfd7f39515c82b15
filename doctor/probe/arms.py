"""Trial arms inside one process: the training loader's batches come from an arm's own iterator, one arm at a time.

An arm is a plan with its own workers. Between blocks the workers of all but the chosen arm are stopped (SIGSTOP), so
that its queue resumes as it was and nothing of another arm runs inside a block.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from fasttrain_doctor.probe import loading, replay, segments
from fasttrain_doctor.probe.applied import Applied
from fasttrain_doctor.probe.loop import Key, Loop
from fasttrain_doctor.probe.recorder import clock
from fasttrain_doctor.probe.view import View, make_iterator

_WORKER_TIMEOUT = 40  # seconds without a batch after which an arm's workers count as hung


class Arm:
    """A plan, its iterator and what became of it."""

    def __init__(self, plan: dict[str, Any], kind: str | None) -> None:
        self.applied = Applied(plan)
        self.replay = kind
        self.key: Key | None = None
        self.iterator: Any = None
        self.view: View | None = None
        self.failure: str | None = None
        self.start = 0.0
        self._source: Callable[[], Any] | None = None

    def build(self, key: Key) -> None:
        """Make the iterator this arm's batches come from."""
        began = clock()
        self.key = key
        loader = loading.latest(key)
        dataset = self.applied.dataset(loader)
        if dataset is not None:
            loader = loading.like(loader, dataset=dataset)
        self.view = View(loader, self.applied.loader, timeout=_WORKER_TIMEOUT)
        if self.replay is not None:
            self._source = replay.source(self.replay, loader, self)
        else:
            self.iterator = make_iterator(self.view)
            self._source = self._next
        self._source = self.applied.batches(self._source)
        self.start = (clock() - began) / 1e9

    def _next(self) -> Any:
        try:
            return loading.native_next(self.iterator)
        except StopIteration:
            assert self.view is not None
            if self.view.num_workers and getattr(self.iterator, "_workers", None) and self.view.persistent_workers:
                self.iterator._reset(self.view)
            else:
                self.iterator = make_iterator(self.view)
            raise

    def next(self) -> Any:
        """Return the arm's next batch."""
        assert self._source is not None
        return self._source()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every worker of this arm."""
        for worker in getattr(self.iterator, "_workers", None) or ():
            if worker.pid is not None:
                try:
                    os.kill(worker.pid, number)
                except OSError:
                    continue

    def close(self) -> None:
        """End the workers without waiting for them."""
        from torch._C import _remove_worker_pids

        workers = getattr(self.iterator, "_workers", None) or ()
        if workers:
            _remove_worker_pids(id(self.iterator))
            self.iterator._worker_pids_set = False
            self.iterator._shutdown = True
            self.signal(signal.SIGKILL)
            self.signal(signal.SIGCONT)
            for worker in workers:
                worker.join(2)
            segments.remove([worker.pid for worker in workers if worker.pid is not None])
        self.iterator = None
        self.applied.close()


_arms: dict[str, Arm] = {}


def _end() -> None:
    """Kill every arm's workers when the script ends by itself.

    multiprocessing's exit function asks daemons to end and joins them; one that is stopped would never answer.
    """
    for arm in tuple(_arms.values()):
        arm.close()
    _arms.clear()


def _end_at_exit() -> None:
    import multiprocessing.util

    # Newer atexit functions run first: before torch's for persistent workers, which would wait for each. In a process
    # that multiprocessing made atexit does not run, finalizers do.
    atexit.register(_end)
    multiprocessing.util.Finalize(None, _end, exitpriority=1000)


_current: Arm | None = None


def activate(loop: Loop, name: str, plan: dict[str, Any], kind: str | None) -> bool:
    """Switch to the arm ``name``, made on its first visit; returns whether it was made now."""
    global _current
    quiet(loop)
    arm = _arms.get(name)
    made = arm is None
    if arm is None:
        arm = Arm(plan, kind)
        key = loading.training_key(loop)
        if key is not None:
            arm.build(key)
        elif arm.applied.loader or kind is not None:
            raise RuntimeError("the loop's own thread asks no torch DataLoader for its batches")
        _arms[name] = arm
        _end_at_exit()
    arm.signal(signal.SIGCONT)
    arm.applied.attach(loop)
    if arm.key is not None:
        loop.take = _take
    _current = arm
    return made


def _take(iterator: Any, key: Key) -> Callable[[], Any] | None:
    arm = _current
    if arm is None or key != arm.key:
        return None

    def take() -> Any:
        length = loading.length(key)
        if length is not None and iterator._num_yielded >= length:
            raise StopIteration
        try:
            data = arm.next() if arm.failure is None else _rescue(key)
        except StopIteration:
            raise
        except Exception as error:
            if not arm.applied.plan and arm.replay is None:
                raise  # the script's own way of loading fails: that is the script's error
            arm.failure = f"{type(error).__name__}: {error}"[:300]
            data = _rescue(key)
        iterator._num_yielded += 1
        return data

    return take


_spare: dict[Key, Any] = {}


def _rescue(key: Key) -> Any:
    """Return a batch read in the main process, so that the loop can reach its next border after an arm failed."""
    if key not in _spare:
        _spare[key] = make_iterator(View(loading.latest(key), {"num_workers": 0}))
    return loading.native_next(_spare[key])


def rest(loop: Loop) -> dict[str, Any]:
    """End the current arm's block: stop its workers, undo its changes; returns what to add to the block's report."""
    arm = _current
    quiet(loop)
    if arm is None:
        return {}
    out: dict[str, Any] = {"start": arm.start, "touched": arm.applied.touched}
    arm.start = 0.0
    if arm.failure is not None:
        out |= {"failed": arm.failure}
    return out


def quiet(loop: Loop) -> None:
    """Freeze the current arm, if any. Until the next block the script's own loader serves."""
    global _current
    if _current is not None:
        _current.signal(signal.SIGSTOP)
        _current.applied.detach(loop)
        _current = None
    loop.take = _idle if _arms else None


def _idle(iterator: Any, key: Key) -> Callable[[], Any] | None:
    """Serve between blocks: the script's own iterator was made without workers once arms were there."""
    if iterator not in loading.hollow:
        return None

    def take() -> Any:
        length = loading.length(key)
        if length is not None and iterator._num_yielded >= length:
            raise StopIteration
        iterator._num_yielded += 1
        return _rescue(key)

    return take


def takes(key: Key) -> bool:
    """Whether arms serve this loader: then its own iterators need no workers."""
    return any(arm.key == key for arm in _arms.values())


def close(loop: Loop, name: str) -> None:
    """End an arm for good."""
    arm = _arms.pop(name, None)
    if arm is not None:
        if arm is _current:
            quiet(loop)
        arm.close()


def live_iterators() -> Iterator[Any]:
    """Yield the arms' iterators and the script's own."""
    yield from (arm.iterator for arm in _arms.values() if arm.iterator is not None)
    yield from loading.iterators()
