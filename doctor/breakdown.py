"""From steps and records to the breakdown of a step. Pure.

I/O against preparation, from each fetching thread's own accounting: what was neither CPU time, nor waiting for a CPU,
nor covered by the CPU time of other threads working for it, was blocked, and blocked in a fetch is I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from fasttrain_doctor.evidence import OTHER_PARTS, Breakdown, Phase
from fasttrain_doctor.partition import Piece, cut, overlapping, waits
from fasttrain_doctor.recorded import Process
from fasttrain_doctor.records import Interval, Kind, Record
from fasttrain_doctor.stats import warmup as find_warmup
from fasttrain_doctor.steps import Step, Steps, of_thread

_FEWEST = 3  # steps left after warm-up below which warm-up is not dropped


@dataclass(frozen=True, slots=True)
class Fetching:
    """What fetches consisted of, in seconds: ``io``, ``prepare``, ``queue`` (runnable but waiting for a CPU).

    ``known`` is False where the kernel keeps no run-queue time: then io and prepare cannot be told apart.
    """

    io: float = 0.0
    prepare: float = 0.0
    queue: float = 0.0
    wall: float = 0.0
    known: bool = True

    @property
    def io_share(self) -> float | None:
        """Share of the fetching that was I/O; None when it is unknown or nothing was fetched."""
        total = self.io + self.prepare
        return self.io / total if self.known and total > 0 else None


def fetching(records: Iterable[Record]) -> Fetching:
    """Add up FETCH records."""
    io = prepare = queue = wall = 0.0
    known = True
    for r in records:
        if r.kind is not Kind.FETCH:
            continue
        ns = r.t1 - r.t0
        cpu = r.cpu1 - r.cpu0
        if r.a < 0:
            known = False
        waited = max(0, r.a)
        blocked = max(0, ns - cpu - waited)
        pool = min(blocked, r.b)
        io += (blocked - pool) / 1e9
        prepare += (ns - blocked + pool) / 1e9
        queue += waited / 1e9
        wall += ns / 1e9
    return Fetching(io, prepare, queue, wall, known)


@dataclass(frozen=True, slots=True)
class Window:
    """The steps a breakdown is made of: all of the window, those measured, and how many were warm-up."""

    every: tuple[Step, ...]
    measured: tuple[Step, ...]
    warmup: int


def window(steps: Steps) -> Window:
    """Drop the warm-up and the first step of each epoch, which waits for workers to start; keep enough to judge."""
    every = steps.steps
    lead = find_warmup([s.seconds for s in every]) if len(every) >= 2 * _FEWEST else 0
    # The very first step pays for lazy initialisation whatever the change point says.
    lead = max(lead, 1) if len(every) > _FEWEST else lead
    kept = every[lead:]
    steady = tuple(s for s in kept if not s.first_of_epoch)
    return Window(every, steady if len(steady) >= _FEWEST else kept, lead)


def break_down(
    process: Process,
    workers: Sequence[Process],
    steps: Steps,
    batch_size: int | None,
) -> Breakdown | None:
    """Break a process's steps down; None when it has none.

    Args:
        process: the training process.
        workers: its loader workers.
        steps: its steps.
        batch_size: samples per batch, where known.
    """
    chosen = window(steps)
    if not chosen.measured:
        return None
    times = np.array([s.seconds for s in chosen.measured])
    mean = float(times.mean())
    mine = of_thread(process.records, steps.thread)
    by_loader = bool(steps.loaders) and steps.found_by in ("loader", "backward")
    count = len(chosen.measured)
    first, last = chosen.measured[0].start, chosen.measured[-1].end
    others = [*process.records, *(r for p in workers for r in p.records)]
    elsewhere = [r for r in others if _fetched_ahead(r, steps) and r.t1 > first and r.t0 < last]
    # Made by hand, an update ends where nothing tells it from the making of the next batch.
    blurred = steps.found_by == "update" and not elsewhere
    before_forward = None if by_loader else "data" if elsewhere else "python" if blurred else "made"
    unseen = steps.found_by == "backward" and not any(r.kind is Kind.UPDATE and r.flag for r in mine)
    totals: Counter[str] = Counter()
    local: dict[int, Record] = {}
    for step, records in zip(chosen.measured, overlapping(mine, chosen.measured), strict=True):
        pieces = cut(step, records, steps.loaders, before_forward, by_hand=unseen)
        _add(totals, pieces, _blocked(pieces, records), made=before_forward == "made")
        local |= {r.t0: r for p in pieces if p.label == "data" and (r := p.record) and r.kind is Kind.FETCH}
    own, remote = fetching(local.values()), fetching(elsewhere)
    phases, inferred = _data(totals, own, remote, blurred)
    inferred += ["optimizer"] if totals["by_hand"] else []
    per = {name: ns / 1e9 / count for name, ns in totals.items()}
    has_workers = bool(elsewhere)
    io, prepare = phases
    batches = float(np.mean([s.batches for s in chosen.measured]))
    other = {part: per.get(part, 0.0) for part in OTHER_PARTS if part in per or part in ("python", "gc")}
    device = _device(mine, chosen.measured)
    out = {
        Phase.IO: None if io is None else io / count,
        Phase.PREPARE: None if prepare is None else prepare / count,
        Phase.H2D: per.get("h2d"),
        Phase.FORWARD: per.get("forward", 0.0),
        Phase.BACKWARD: per.get("backward", 0.0),
        Phase.OPTIMIZER: per.get("optimizer", 0.0),
    }
    data = (
        None
        if blurred and not totals["data"] and not totals["made"]
        else (totals["data"] + totals["made"]) / 1e9 / count
    )
    if device is not None:
        out, data = _on_device(out, data, device)
        other["python"] = 0.0
    out[Phase.OTHER] = mean - (data or 0.0) - sum(v for k, v in out.items() if v is not None and k not in _DATA)
    other["python"] = max(0.0, (out[Phase.OTHER] or 0.0) - sum(v for k, v in other.items() if k != "python"))
    fetches = remote if has_workers else own
    return Breakdown(
        mean=mean,
        median=float(np.median(times)),
        p10=float(np.percentile(times, 10)),
        p90=float(np.percentile(times, 90)),
        measured=count,
        warmup=chosen.warmup,
        found_by=steps.found_by,
        batches_per_step=batches,
        samples_per_step=_samples(elsewhere or local.values(), count) if batch_size is None else batch_size * batches,
        clock="host" if device is None else "device",
        phases=out,
        data=data,
        other={part: other.get(part) for part in OTHER_PARTS},
        hidden=_hidden(remote, count, out) if has_workers else {"io": None, "prepare": None, "h2d": None},
        contention=fetches.queue / fetches.wall if fetches.known and fetches.wall > 0 else None,
        inferred=tuple(inferred),
    )


_DATA = (Phase.IO, Phase.PREPARE)


def _samples(fetches: Iterable[Record], steps: int) -> float | None:
    """Count the samples of a step where no sampler says how many there are; None where batches are fetched whole."""
    counts = [r.c for r in fetches]
    return sum(counts) / steps if max(counts, default=0) > 1 else None


def _add(totals: Counter[str], pieces: Sequence[Piece], blocked: Sequence[int | None], made: bool) -> None:
    """Add up a step's pieces. A loss and an update by hand compute: what they wait for is a batch, or the script's own."""
    for p, waited in zip(pieces, blocked, strict=True):
        if p.label == "made":
            totals["made"] += p.ns
            totals["made_io"] += waited or 0
            totals["accounted"] += waited is not None
        elif p.label in ("loss", "update"):
            ns = waits(p, waited)
            totals["forward" if p.label == "loss" else "optimizer"] += p.ns - ns
            totals["by_hand"] += p.label == "update"
            totals["made" if made else "python"] += ns
            totals["made_io"] += ns if made else 0
        else:
            totals[p.label] += p.ns


def _blocked(pieces: Sequence[Piece], records: Sequence[Record]) -> list[int | None]:
    """Return the ns in which a piece's thread was blocked, and neither queued for a CPU nor waited for other threads.

    Both are read where no loader is asked: at the begin of a forward and a backward, at the end of an optimizer's step.
    None where that is not known.
    """
    points = [(r.t0, r.a + r.b) for r in records if r.kind in (Kind.FORWARD, Kind.BACKWARD) and r.a]
    points += [(r.t1, r.a + r.b) for r in records if r.kind is Kind.OPTIMIZER and r.a]
    points.sort()
    away = [q[1] - p[1] for p, q in pairwise(points)]
    at = [bisect_right(points, (p.t0, inf)) - 1 for p in pieces]
    idle = [None if p.cpu is None or not 0 <= i < len(away) else p.ns - p.cpu for p, i in zip(pieces, at, strict=True)]
    sums: Counter[int] = Counter()
    for i, ns in zip(at, idle, strict=True):
        sums[i] += ns or 0
    return [
        None if ns is None else ns - min(ns, away[i] * ns // max(sums[i], 1)) for i, ns in zip(at, idle, strict=True)
    ]


def _fetched_ahead(r: Record, steps: Steps) -> bool:
    """Whether a fetch was a worker's, or another thread's, for the training loader."""
    if r.kind is not Kind.FETCH or (r.obj and r.obj not in steps.loaders):
        return False
    return bool(r.flag) or r.thread != steps.thread


def _data(
    totals: Counter[str], own: Fetching, remote: Fetching, blurred: bool
) -> tuple[tuple[float | None, float | None], list[str]]:
    """Split the time of asking for data into I/O and preparation, in seconds over all measured steps.

    In the main process by its own fetches; what is spent in ``next`` around them (sampler, pinning) is preparation.
    With workers the wait is split in proportion to what the workers were doing.
    """
    if totals["made"]:
        if not totals["accounted"]:
            return (None, None), []
        io = totals["made_io"] / 1e9
        return (io, (totals["made"] + totals["data"]) / 1e9 - io), ["io", "prepare"]
    asked = totals["data"] / 1e9
    if remote.wall > 0:
        share = remote.io_share
        if share is None:
            return (None, None), []
        return (asked * share, asked * (1 - share)), []
    if own.wall > 0:
        if not own.known:
            return (None, None), []
        io = min(own.io, asked)
        return (io, asked - io), []
    if asked > 0:
        return (None, None), []  # a loader without hooks: a wait, of what is not known
    return ((None, None) if blurred else (0.0, 0.0)), []


def _hidden(remote: Fetching, steps: int, phases: dict[Phase, float | None]) -> dict[str, float | None]:
    """Return the workers' seconds per step that did not make the step longer."""
    out: dict[str, float | None] = {"h2d": None}
    for name, total, phase in (("io", remote.io, Phase.IO), ("prepare", remote.prepare, Phase.PREPARE)):
        shown = phases[phase]
        out[name] = max(0.0, total / steps - (shown or 0.0)) if remote.known else None
    return out


def _device(records: Sequence[Record], steps: Sequence[Step]) -> dict[Interval, float] | None:
    """Return the device's seconds per step by interval, from border events; None where there are none.

    Events are resolved a little after their step: all intervals between the first and the last whole step count.
    """
    events = [r for r in records if r.kind is Kind.DEVICE and r.t0 >= steps[0].start]
    serials = sorted({r.b for r in events})
    if len(serials) < _FEWEST:
        return None
    whole = set(serials[1:-1])
    sums: Counter[Interval] = Counter()
    for r in events:
        if r.b in whole:
            sums[Interval(r.obj)] += r.a
    return {interval: ns / 1e9 / len(whole) for interval, ns in sums.items()}


def _on_device(
    host: dict[Phase, float | None], data: float | None, device: dict[Interval, float]
) -> tuple[dict[Phase, float | None], float | None]:
    """Put the device's intervals in place of the host's; the gap of a fetch keeps the host's io/prepare split."""
    gap = device.get(Interval.DATA, 0.0)
    io, prepare = host[Phase.IO], host[Phase.PREPARE]
    scale = gap / data if data else 0.0
    return {
        Phase.IO: None if io is None else io * scale,
        Phase.PREPARE: None if prepare is None else prepare * scale,
        Phase.H2D: device.get(Interval.H2D),
        Phase.FORWARD: device.get(Interval.FORWARD, 0.0),
        Phase.BACKWARD: device.get(Interval.BACKWARD, 0.0),
        Phase.OPTIMIZER: device.get(Interval.OPTIMIZER, 0.0),
    }, None if data is None else gap
