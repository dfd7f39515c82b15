"""From one process's records to its steps. Pure.

A step is one optimizer cycle. It ends where the next batch of the training loader is asked for after at least one
update; where no loader is asked, where the repeating cycle of optimizers closes; without an optimizer, a backward is
the update. What lies between epochs belongs to no step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fasttrain_doctor.recorded import Process
from fasttrain_doctor.records import Call, Kind, Mark, Record

_ASKED_ENOUGH = 0.5  # of the updates must follow a request, else the loader has stopped being asked


@dataclass(frozen=True, slots=True)
class Step:
    """One step: ``start`` and ``end`` in ns; ``paused`` ns inside it were the parent's commands.

    ``first_of_epoch`` also marks those before updates by hand began to be seen: they tell less than others, too.
    """

    start: int
    end: int
    paused: int
    batches: int
    updates: int
    first_of_epoch: bool = False

    @property
    def seconds(self) -> float:
        """Wall time without pauses."""
        return (self.end - self.start - self.paused) / 1e9


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a process and how they were found.

    ``loaders`` are the numbers of the training loaders, the one waited for most first; ``anchor`` is the optimizer whose
    step closes the cycle where no loader is asked.
    """

    steps: tuple[Step, ...]
    found_by: str  # "loader", "optimizer", "backward" or "update"
    thread: int
    loaders: tuple[int, ...]
    anchor: int | None
    eval_loaders: tuple[int, ...] = ()


def find_steps(process: Process) -> Steps:
    """Find the steps of a training process. No update at all: no steps."""
    training = [r for r in process.records if r.kind in (Kind.BACKWARD, Kind.OPTIMIZER)]
    if not training:
        return Steps((), "update", 0, (), None)
    thread = Counter(r.thread for r in _leading(training)).most_common(1)[0][0]
    mine = of_thread(process.records, thread)
    updates = _updates(mine)
    by_optimizer = any(r.kind is Kind.OPTIMIZER for r in mine)
    loaders = training_loaders(mine)
    requests = [r for r in mine if r.kind is Kind.NEXT and r.a in loaders]
    others = tuple(dict.fromkeys(r.a for r in mine if r.kind is Kind.NEXT and r.a not in loaders))
    if not loaders:  # batches fetched ahead by another thread
        ahead = Counter(r.a for r in process.records if r.kind is Kind.NEXT and r.flag == 0)
        loaders = tuple(n for n, _ in ahead.most_common() if n not in others)
    pauses = [r for r in mine if r.kind is Kind.MARK and r.flag == Mark.CONTROL]
    if requests and _still_asked(requests, updates):
        lengths = {int(f["id"]): f["length"] for f in process.facts_of("loader") if f.get("length")}
        steps = _by_requests(mine, loaders, updates, lengths)
        found_by, anchor = ("loader" if by_optimizer else "backward"), None
    else:
        anchor = _anchor(updates) if by_optimizer else None
        steps = _by_updates(updates, anchor, requests)
        found_by = "optimizer" if by_optimizer else "update"
        seen = next((r.t0 for r in mine if r.kind is Kind.UPDATE and r.flag), 0)
        steps = [replace(s, first_of_epoch=s.start < seen and s.end <= seen) for s in steps]
    return Steps(tuple(_with_pauses(steps, pauses)), found_by, thread, loaders, anchor, others)


def of_thread(records: Sequence[Record], thread: int) -> list[Record]:
    """Return a thread's records, and those of optimizers that stepped meanwhile in hooks of its backwards.

    On a device it is another thread that runs a backward's hooks.
    """
    spans = [r for r in records if r.kind is Kind.BACKWARD and r.thread == thread]
    inside = iter(spans)
    now = next(inside, None)
    out = []
    for r in records:
        if r.thread == thread:
            out.append(r)
        elif r.kind is Kind.OPTIMIZER:
            while now is not None and now.t1 < r.t1:
                now = next(inside, None)
            if now is not None and now.t0 <= r.t0:
                out.append(r)
    return out


def _leading(training: Sequence[Record]) -> Sequence[Record]:
    """Return what tells which thread trains: backwards, where there are any."""
    return [r for r in training if r.kind is Kind.BACKWARD] or training


def _updates(mine: Sequence[Record]) -> list[Record]:
    """Return a thread's updates; one within a backward ends with it."""
    backwards = [r for r in mine if r.kind is Kind.BACKWARD and not r.flag]
    found = []
    at = 0
    for r in mine:
        if r.kind is not Kind.OPTIMIZER:
            continue
        while at < len(backwards) and backwards[at].t1 < r.t0:
            at += 1
        inside = at < len(backwards) and backwards[at].t0 <= r.t0 and r.t1 <= backwards[at].t1
        found.append(replace(r, t1=backwards[at].t1) if inside else r)
    return found or backwards


def training_loaders(records: Sequence[Record]) -> tuple[int, ...]:
    """Return the loaders whose batches lead to backwards, the one waited for most first.

    Every loader asked since the last backward counts, unless it was for an evaluation: a model that trains ran in
    evaluation mode, or one ran without gradients and was not followed by a backward but by another request. The last
    one asked before a backward always counts, unless it was exhausted then.
    """
    waited: Counter[int] = Counter()
    found: dict[int, None] = {}
    asked: dict[int, None] = {}
    last: int | None = None
    looked = False
    for r in records:
        if r.kind is Kind.NEXT and looked:
            asked.clear()
            looked = False
        if r.kind is Kind.NEXT and r.flag == 0:
            waited[r.a] += r.t1 - r.t0
            asked[r.a] = None
            last = r.a
        elif r.kind is Kind.NEXT and r.a == last:
            last = None  # what is trained on next is none of its batches
        elif r.kind is Kind.FORWARD and not r.flag & Call.GRAD:
            looked = True
            if r.flag & Call.EVAL and r.flag & Call.TRAINS:
                asked.clear()
        elif r.kind is Kind.BACKWARD:
            found |= asked
            if last is not None:
                found[last] = None
            asked.clear()
            looked = False
    # One made anew each epoch has many numbers; the order is by time waited.
    return tuple(sorted(found, key=lambda n: -waited[n]))


def _still_asked(requests: Sequence[Record], updates: Sequence[Record]) -> bool:
    last = requests[-1].t0
    before = sum(u.t0 < last for u in updates)
    return before >= _ASKED_ENOUGH * len(updates)


def _by_requests(
    mine: Sequence[Record], loaders: Sequence[int], updates: Sequence[Record], lengths: Mapping[int, int]
) -> list[Step]:
    """Close a step at each request that follows an update. The step after the last request stays open.

    Some loops count their batches and never ask for more than there are: their epochs end where the loader is begun
    anew, or where another one is turned to after as many batches as the loader's length.
    """
    steps: list[Step] = []
    asked = [r for r in mine if r.kind in (Kind.NEXT, Kind.ITERATOR)]
    follower = _followers(asked, loaders)
    events = sorted([(u.t1, 0, u) for u in updates] + [(r.t0, 1, r) for r in asked], key=lambda e: e[:2])
    start: int | None = None
    aside: int | None = None  # when another loader was turned to after the last update
    fresh = True  # the first step of an epoch waits for workers to start and fill
    batches: Counter[int] = Counter()  # by loader: one batch of each of two zipped loaders is one batch
    given: Counter[int] = Counter()  # by loader, in this epoch
    done = 0
    for time, kind, r in events:
        if kind == 0:
            done += 1
            aside = None
            continue
        if r.a not in loaders:
            aside = aside or time
            continue
        begun = r.kind is Kind.ITERATOR
        through = begun or given[r.a] == lengths.get(r.a)
        if start is not None and done:
            steps.append(Step(start, aside or time if through else time, 0, max(batches.values()), done, fresh))
            start, done, fresh = None, 0, begun
            batches.clear()
        given[r.a] = 0 if through or r.flag else given[r.a]
        if begun:
            continue
        given[r.a] += not r.flag
        if r.flag:  # exhausted: what follows is between epochs until a batch is asked for again
            if start is not None and set(batches) - {r.a} and follower.get(id(r)) == r.a:
                continue  # unless another loader goes on, and this one is only begun anew
            start, fresh = None, True
            batches.clear()
            continue
        if start is None:
            start, done = time, 0
        batches[r.a] += 1
    return steps


def _followers(asked: Sequence[Record], loaders: Sequence[int]) -> dict[int, int]:
    """Return for each request, by its identity, the training loader that is asked next."""
    requests = [r for r in asked if r.kind is Kind.NEXT and r.a in loaders]
    return {id(r): after.a for r, after in pairwise(requests)}


def _anchor(updates: Sequence[Record]) -> int:
    """Return the optimizer that closes the cycle: the rarest, and of equals the one that comes last in it."""
    counts = Counter(u.obj for u in updates)
    order = {u.obj: i for i, u in enumerate(updates[: 4 * len(counts)])}
    return min(counts, key=lambda obj: (counts[obj], -order.get(obj, -1)))


def _by_updates(updates: Sequence[Record], anchor: int | None, requests: Sequence[Record]) -> list[Step]:
    ends = [u for u in updates if anchor is None or u.obj == anchor]
    done = sorted(u.t1 for u in updates)
    asked = sorted(r.t0 for r in requests if r.flag == 0)
    steps = []
    for before, end in pairwise(ends):
        inside = max(0, bisect_right(done, end.t1) - bisect_right(done, before.t1))
        batches = bisect_left(asked, end.t1) - bisect_left(asked, before.t1)
        steps.append(Step(before.t1, end.t1, 0, max(1, batches), inside))
    return steps


def _with_pauses(steps: Sequence[Step], pauses: Sequence[Record]) -> list[Step]:
    out = []
    for s in steps:
        paused = sum(min(p.t1, s.end) - max(p.t0, s.start) for p in pauses if p.t0 < s.end and p.t1 > s.start)
        out.append(Step(s.start, s.end, paused, s.batches, s.updates, s.first_of_epoch))
    return out
