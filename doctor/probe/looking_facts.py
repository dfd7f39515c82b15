"""Adds up what one process's look has sampled: the ``look`` fact, bounded in size, in seconds of this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
    in_loop,
    outside,
    place,
    stage,
    waits_for,
)

if TYPE_CHECKING:
    from fasttrain_doctor.probe.looking import Look

_MOST_LINES = 40
_WAITED = 0.2  # share of a sample's time beyond which waiting for the interpreter is more than the sampler's doing


class _Sums:
    """Wall ns by stage, by line and by what blocked; ``counts`` of the lines' samples."""

    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()
        self.lines: Counter[Frame] = Counter()
        self.counts: Counter[Frame] = Counter()
        self.blocked: Counter[str] = Counter({"io": 0, "lock": 0, "pool": 0})
        self.lock = 0
        self.locks: Counter[Frame] = Counter()
        self.lock_counts: Counter[Frame] = Counter()

    def line(self, stack: Stack, ns: float) -> None:
        found = place(stack)
        if found is not None:
            at = Frame(found.file, found.line, found.function, found.module)
            self.lines[at] += int(ns)
            self.counts[at] += 1

    def waited(self, stack: Stack, ns: int) -> None:
        self.lock += ns
        found = place(stack)
        if found is not None:
            at = Frame(found.file, found.line, found.function, found.module)
            self.locks[at] += ns
            self.lock_counts[at] += 1


def _in_fetches(samples: Iterable[Sample], reader: Reader) -> _Sums:
    sums = _Sums()
    for sample in samples:
        stack, wall = reader.stack(sample.key), sample.wall
        wait = waits_for(stack, sample.state)
        if wait is Wait.POOL:
            _in_pool(sums, sample, stack, reader)
            continue
        sums.line(stack, wall)
        if wait is Wait.LOCK:
            sums.blocked["lock"] += sample.blocked
            sums.waited(stack, wall)
            continue
        if sample.state is State.INTERPRETER and sample.blocked > _WAITED * wall:
            sums.blocked["lock"] += sample.blocked
            sums.waited(stack, sample.blocked)
            wall -= sample.blocked
        elif wait is Wait.IO:
            sums.blocked["io"] += sample.blocked
        sums.stages[stage(stack, sample.state)] += wall
    return sums


def _in_pool(sums: _Sums, sample: Sample, stack: Stack, reader: Reader) -> None:
    """Divide the time a fetch waits for other threads by what they are doing for it."""
    busy = []
    for key, its in sample.helpers:
        found = reader.stack(key)
        if waits_for(found, its) not in (Wait.POOL, Wait.LOCK) and place(found) is not None:
            busy.append((found, its))
    if not busy:
        sums.line(stack, sample.wall)
        sums.stages["decode"] += sample.wall
        sums.blocked["pool"] += sample.blocked
        return
    part, blocked = sample.wall / len(busy), sample.blocked / len(busy)
    for found, its in busy:
        name = stage(found, its)
        sums.line(found, part)
        sums.stages["decode" if name == "item" else name] += int(part)
        sums.blocked["io" if its is State.BLOCKED else "pool"] += int(blocked)


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
            if sample.past_forward and sample.state in (State.RUNNING, State.INTERPRETER):
                continue  # the loss belongs to the forward
            sums.line(stack, sample.wall)
            if waits_for(stack, sample.state) is Wait.LOCK:
                sums.waited(stack, sample.wall)
    return sums


def _lines(lines: Counter[Frame], counts: Counter[Frame], scale: float = 1.0) -> list[list[Any]]:
    """Return [file, line, function, seconds, samples] of the hottest."""
    return [[f.file, f.line, f.function, ns * scale / 1e9, counts[f]] for f, ns in lines.most_common(_MOST_LINES)]


def facts(look: Look) -> dict[str, Any]:
    """Return the fields of a process's ``look`` fact; of its fetches only whole ones count."""
    reader = Reader(look.sampler.spaces, looking_transforms.CODES)
    fetched, around = _in_fetches(look.seen, reader), _outside(look, reader)
    sampled = sum(sample.wall for sample in look.seen)
    scale = look.fetch_ns / sampled if sampled else 0.0  # samples give the shares, the fetches' own times the seconds
    timers = sorted(look.transforms.timers.items(), key=lambda entry: entry[1].first)
    stages = {name: fetched.stages[name] * scale + around.stages[name] for name in STAGES}
    return {
        "main": look.main,
        "worker": state.recorder.worker,
        "loader": state.recorder.loader,
        "samples": look.samples,
        "fetches": look.fetches,
        "fetch": look.fetch_ns / 1e9,
        "sampled": look.sampler.count,
        "known": look.sampler.kernel.known,
        "stages": {name: ns / 1e9 for name, ns in stages.items()},
        "lock": fetched.lock * scale / 1e9,
        "blocked": {name: ns / 1e9 for name, ns in fetched.blocked.items()},
        "lines": _lines(fetched.lines, fetched.counts, scale),
        "locks": _lines(fetched.locks, fetched.lock_counts, scale),
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
