"""Adds up what one process's look has sampled: the ``look`` fact, bounded in size, in seconds of this process."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fasttrain_doctor.evidence import STAGES
from fasttrain_doctor.probe import looking_transforms, state
from fasttrain_doctor.probe.looking_code import Reader
from fasttrain_doctor.probe.looking_sampler import DEPTH, Sample
from fasttrain_doctor.probe.looking_stacks import (
    Frame,
    Stack,
    State,
    Wait,
    collates,
    in_loop,
    outside,
    place,
    pooled,
    stage,
    waits_for,
)
from fasttrain_doctor.probe.recorder import clock

if TYPE_CHECKING:
    from fasttrain_doctor.probe.looking import Look

_MOST_LINES = 40
_MOST_BLOCKED = 2  # times what samples say
_WAITED = 0.2  # share of a sample's time beyond which waiting for the interpreter is more than the sampler's doing


class _Sums:
    """Wall ns by stage, by line and by what blocked; ``counts`` of the lines' samples."""

    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()
        self.lines: Counter[Frame] = Counter()
        self.counts: Counter[Frame] = Counter()
        self.waits: Counter[str] = Counter({"io": 0, "lock": 0, "pool": 0})
        self.lock = 0
        self.locks: Counter[Frame] = Counter()
        self.lock_counts: Counter[Frame] = Counter()

    def line(self, stack: Stack, ns: int) -> None:
        found = place(stack)
        if found is not None:
            at = Frame(found.file, found.line, found.function, found.module)
            self.lines[at] += ns
            self.counts[at] += 1

    def waited(self, stack: Stack, ns: int) -> None:
        """Note a wait for a lock."""
        self.lock += ns
        self.waits["lock"] += ns
        found = place(stack)
        if found is not None:
            at = Frame(found.file, found.line, found.function, found.module)
            self.locks[at] += ns
            self.lock_counts[at] += 1


_BLOCKED = (State.FUTEX, State.FILE_LOCK, State.BLOCKED)
_COMPUTING = (State.RUNNING, State.INTERPRETER)


def _queued(sample: Sample) -> int:
    """Return the ns that a sample's thread waited for the interpreter, where that is more than the sampler's doing."""
    return sample.queued if sample.queued > _WAITED * sample.wall else 0


def weights(samples: Sequence[Sample], fetch: int, blocked: int | None) -> tuple[float, float]:
    """Return what the wall time of a sample that is blocked, and of any other, stands for.

    A sample may come late where its thread computes, or where the machine is busy: samples divide the blocked time, how
    much of it there was the fetches' own accounting says. Waits for the sampler are in that too, which on a busy machine
    is more than can be taken off again: hence a bound.

    Args:
        samples: of whole fetches.
        fetch: ns that these took.
        blocked: ns of them in which the thread was blocked, None where that is not known.
    """
    waits = _blocked(samples)
    rest = sum(s.wall for s in samples) - waits
    if not waits + rest:
        return 0.0, 0.0
    if blocked is None or not waits or not rest:
        return fetch / (waits + rest), fetch / (waits + rest)
    blocked = max(0, blocked - sum(s.held for s in samples))
    blocked = min(blocked, _MOST_BLOCKED * fetch * waits // (waits + rest), fetch)
    return blocked / waits, (fetch - blocked) / rest


@dataclass(frozen=True, slots=True)
class Clocked:
    """What fetches took by the clock, in ns: in all, of that in the collate function and in timed transforms.

    Samples alone would not do: a thread in Python's own code gives way only after a while, so that what is short in it
    is hardly ever met, and what follows too often.
    """

    fetch: int
    collate: int = 0
    transform: int = 0

    def parts(self, waited_in_item: float) -> dict[str, float]:
        """Divide the whole into what collates, what transforms and the rest of the samples, which also waits so long."""
        collate = min(self.collate, self.fetch)
        transform = max(0.0, min(self.transform, self.fetch - collate - waited_in_item))
        return {"collate": collate, "transform": transform, "item": self.fetch - collate - transform}


def in_fetches(samples: Sequence[Sample], clocked: Clocked, blocked: int | None, reader: Reader) -> _Sums:
    """Add up samples of whole fetches; ``blocked`` as for ``weights``."""
    sums = _Sums()
    groups: dict[str, list[Sample]] = {"collate": [], "transform": [], "item": []}
    for sample in samples:
        groups[_part(reader.stack(sample.key))].append(sample)
    waiting, _ = weights(samples, clocked.fetch, blocked)
    parts = clocked.parts(waiting * _blocked(groups["item"]) if blocked is not None else 0.0)
    for name, group in groups.items():
        known = None if blocked is None else int(min(waiting * _blocked(group), parts[name]))
        factors = weights(group, int(parts[name]), known)
        _add(sums, group, *factors, reader)
        if not group:  # too short for a sample to meet it
            sums.stages[name] += int(parts[name])
    return sums


def _part(stack: Stack) -> str:
    if collates(stack):
        return "collate"
    return "transform" if any(frame.timed for frame in stack) else "item"


def _blocked(samples: Sequence[Sample]) -> int:
    return sum(s.wall if s.state in _BLOCKED else _queued(s) for s in samples)


def _add(sums: _Sums, samples: Sequence[Sample], waiting: float, other: float, reader: Reader) -> None:
    for sample in samples:
        stack = reader.stack(sample.key)
        wait = waits_for(stack, sample.state)
        wall = int(sample.wall * (waiting if sample.state in _BLOCKED else other))
        if wait is Wait.POOL:
            _in_pool(sums, sample, wall, stack, reader)
            continue
        sums.line(stack, wall)
        if wait is Wait.LOCK:
            sums.waited(stack, wall)
            continue
        if queued := _queued(sample):
            wall = int((sample.wall - queued) * other)
            if waits_for(stack, State.FUTEX) is Wait.POOL:  # the others computed what it has just been given
                _in_pool(sums, sample, int(queued * waiting), stack, reader)
            else:
                sums.waited(stack, int(queued * waiting))
        elif wait is Wait.IO:
            sums.waits["io"] += wall
        sums.stages[stage(stack, sample.state)] += wall


def _in_pool(sums: _Sums, sample: Sample, wall: int, stack: Stack, reader: Reader) -> None:
    """Divide the time a fetch waits for other threads by what they are doing for it."""
    busy = []
    for key, its in sample.helpers:
        found = reader.stack(key)
        if waits_for(found, its) not in (Wait.POOL, Wait.LOCK) and place(found) is not None:
            busy.append((found, its))
    busy = [each for each in busy if pooled(each[0])] or busy
    if not busy:
        sums.line(stack, wall)
        sums.stages["decode"] += wall
        sums.waits["pool"] += wall
        return
    for found, its in busy:
        part, name = wall // len(busy), stage(found, its)
        sums.line(found, part)
        sums.stages["decode" if name == "item" else name] += part
        sums.waits["io" if its is State.BLOCKED else "pool"] += part


def _outside(look: Look, reader: Reader) -> _Sums:
    """Add up what happened outside fetches: by stage what the loader does around them, by line the loop's own Python."""
    sums = _Sums()
    for ident, sample in look.sampler.outside:
        stack = reader.stack(sample.key)
        name = outside(stack, sample.state)
        loops = ident in look.sampler.threads
        if name is not None:
            # A thread that only passes batches on may wait for the interpreter: that is nobody's cost.
            sums.stages[name] += sample.wall if loops or name == "pin" else sample.cpu
        elif loops and look.main and len(stack) < DEPTH and in_loop(stack):
            wait = waits_for(stack, sample.state)
            if wait is Wait.POOL or (sample.after in look.losses and sample.state in _COMPUTING):
                continue  # batches that another thread makes; the loss, which belongs to the forward
            sums.line(stack, sample.wall)
            if wait is Wait.LOCK:
                sums.waited(stack, sample.wall)
    return sums


def _lines(lines: Counter[Frame], counts: Counter[Frame]) -> list[list[Any]]:
    """Return [file, line, function, seconds, samples] of the hottest."""
    return [[f.file, f.line, f.function, ns / 1e9, counts[f]] for f, ns in lines.most_common(_MOST_LINES)]


def _parent() -> int | None:
    """Return the process that a worker works for: with a fork server it is not the one that made it."""
    process = multiprocessing.parent_process()
    return None if process is None else process.pid


def facts(look: Look) -> dict[str, Any]:
    """Return the fields of a process's ``look`` fact; of its fetches only whole ones count."""
    began = clock()
    reader = Reader(look.sampler.codes, looking_transforms.CODES)
    timers = sorted(look.transforms.timers.items(), key=lambda entry: entry[1].first)
    clocked = Clocked(look.fetch_ns, look.collate_ns, sum(timer.kept[0] for _, timer in timers))
    fetched = in_fetches(look.seen, clocked, look.blocked_ns, reader)
    around = _outside(look, reader)
    stages = {name: fetched.stages[name] + around.stages[name] for name in STAGES}
    return {
        "main": look.main,
        "took": (clock() - began) / 1e9,
        "parent": _parent(),
        "worker": state.recorder.worker,
        "loader": state.recorder.loader,
        "steps": state.loop.steps - look.begun_at,
        "samples": look.samples,
        "fetches": look.fetches,
        "fetch": look.fetch_ns / 1e9,
        "sampled": look.sampler.count,
        "known": look.sampler.kernel.known,
        "stages": {name: ns / 1e9 for name, ns in stages.items()},
        "lock": fetched.lock / 1e9,
        "waits": {name: ns / 1e9 for name, ns in fetched.waits.items()},
        "lines": _lines(fetched.lines, fetched.counts),
        "locks": _lines(fetched.locks, fetched.lock_counts),
        "loop_lines": _lines(around.lines, around.counts),
        "loop_lock": around.lock / 1e9,
        "loop_locks": _lines(around.locks, around.lock_counts),
        "searched": look.searched,
        "transforms": [
            [*key, timer.name, timer.kept[0] / 1e9, timer.kept[1], timer.first]
            for key, timer in timers
            if timer.kept[1]
        ],
        "why": look.transforms.why,
        "opens": look.opens,
        "reads": None if look.reads is None else [look.reads.calls, look.reads.read, look.reads.storage],
    }
