"""From the ``look`` facts of a trainer and its workers to what the look inside showed. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fasttrain_doctor.evidence import STAGES, Breakdown, HotLine, Look, Phase
from fasttrain_doctor.gather import Watched
from fasttrain_doctor.recorded import Fact, Recorded

FEWEST = 5  # samples of a line below which it is not named
MOST_LINES = 12
_KEY = ("dataset", "dataset_length", "batch_size", "sampler", "drop_last")  # tells loaders apart, also those made anew
_AROUND = ("sampler", "transfer", "pin")  # stages that the training process has for all samples it is handed


@dataclass(frozen=True, slots=True)
class Waits:
    """What the look says of waiting: shares, in 0..1, of the fetches' time, and seconds per step of the loop's own."""

    lock: float  # of the fetches' time: waiting for a lock
    io: float  # likewise: blocked in reads and the like
    loop: float  # seconds per step that the loop itself waits for a lock


def looked(recorded: Recorded, watched: Watched) -> list[Fact]:
    """Return the facts of the process whose loop was looked into, then those of its training loader's workers.

    Empty where that process wrote none: the script ended in the look.
    """
    trainer = next((p for p in recorded.processes if any(f["main"] for f in p.facts_of("look"))), None)
    if trainer is None:
        return []
    fact = watched.loader_fact
    wanted = None if fact is None else [fact.get(name) for name in _KEY]
    others = {int(f["id"]) for f in trainer.facts_of("loader") if [f.get(name) for name in _KEY] != wanted}
    facts = [f for f in trainer.facts_of("look") if f["main"]][-1:]
    for process in recorded.processes:
        theirs = [f for f in process.facts_of("look") if not f["main"] and f["parent"] == trainer.pid]
        facts += [f for f in theirs if f["loader"] not in others]
    return facts


def pending(recorded: Recorded) -> bool:
    """Whether a worker that takes part in the look has not said yet what it saw."""
    return any(len(p.facts_of("look")) < len(p.facts_of("looking")) for p in recorded.processes)


def look_of(facts: Sequence[Fact], steps: int, samples_per_step: float | None) -> Look:
    """Add up what the processes saw.

    Args:
        facts: the training process's, then those of its workers.
        steps: that the loop took meanwhile.
        samples_per_step: where known; else as many were handed out as were fetched.
    """
    samples = sum(int(f["samples"]) for f in facts)
    handed = samples if facts[0]["samples"] or samples_per_step is None else steps * samples_per_step
    reads = _sum_reads(facts) if samples else None
    locks = [*_lines(facts, "locks"), *_lines(facts[:1], "loop_locks")]
    return Look(
        samples=samples,
        steps=steps,
        stages=_stages(facts, samples, handed) if samples else dict.fromkeys(STAGES),
        transforms=_transforms(facts, samples),
        item_lines=_hottest(_lines(facts, "lines"), samples),
        loop_lines=_hottest(_lines(facts[:1], "loop_lines"), steps),
        blocked_on_lock=_blocked_on_lock(facts),
        lock_place=max(locks, key=lambda line: line[0].seconds)[0].place if locks else None,
        opens=sum(int(f["opens"]) for f in facts) / samples if samples else None,
        read_calls=None if reads is None else reads[0] / samples,
        read_bytes=None if reads is None else reads[1] / samples,
        storage_bytes=None if reads is None else reads[2] / samples,
    )


def _stages(facts: Sequence[Fact], samples: int, handed: float) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for name in STAGES:
        own, theirs = (sum(float(f["stages"][name]) for f in part) for part in (facts[:1], facts[1:]))
        if name in _AROUND:
            out[name] = (own / handed if handed else 0.0) + theirs / samples
        else:
            out[name] = (own + theirs) / samples
    if not all(f["known"] for f in facts):  # what a thread is blocked in is not told here
        out["read"] = None
    return out


def _transforms(facts: Sequence[Fact], samples: int) -> tuple[tuple[str, float], ...] | None:
    if not samples or any(f["why"] for f in facts):
        return None
    seconds: Counter[tuple[Any, ...]] = Counter()
    first: dict[tuple[Any, ...], int] = {}
    for attribute, place, name, took, _, began in (t for f in facts for t in f["transforms"]):
        key = attribute, place, name
        seconds[key] += took
        first[key] = min(began, first.get(key, began))
    if not seconds:
        return None
    return tuple((key[2], seconds[key] / samples) for key in sorted(seconds, key=lambda key: first[key]))


def why_not_timed(facts: Sequence[Fact]) -> str | None:
    """Return why transforms could not be timed, where something stood in the way."""
    return next((str(f["why"]) for f in facts if f["why"]), None)


Line = tuple[HotLine, int]  # seconds in all, and samples


def _lines(facts: Sequence[Fact], name: str) -> list[Line]:
    """Add lines up over processes; those seen too seldom are left out."""
    seconds: Counter[tuple[str, int, str]] = Counter()
    counts: Counter[tuple[str, int, str]] = Counter()
    for file, line, function, took, count in (entry for f in facts for entry in f[name]):
        seconds[file, line, function] += took
        counts[file, line, function] += count
    return [(HotLine(*key, seconds[key]), n) for key, n in counts.items() if n >= FEWEST]


def _hottest(lines: Iterable[Line], over: int) -> tuple[HotLine, ...]:
    if not over:
        return ()
    hottest = sorted((line for line, _ in lines), key=lambda line: -line.seconds)[:MOST_LINES]
    return tuple(replace(line, seconds=line.seconds / over) for line in hottest)


def _blocked_on_lock(facts: Sequence[Fact]) -> float | None:
    waits: dict[str, float] = defaultdict(float)
    for fact in facts:
        for name, seconds in fact["waits"].items():
            waits[name] += seconds
    total = sum(waits.values())
    if total <= 0:
        return None
    return waits["lock"] / total if _lines(facts, "locks") else 0.0


def _sum_reads(facts: Sequence[Fact]) -> list[int] | None:
    fetched = [f["reads"] for f in facts if f["samples"]]
    if any(reads is None for reads in fetched):
        return None
    return [sum(part) for part in zip(*fetched, strict=True)]


def waits_of(facts: Sequence[Fact], steps: int) -> Waits:
    """Return what the processes' waits were; those seen too seldom are none."""
    fetch = sum(float(f["fetch"]) for f in facts)
    lock = sum(float(f["lock"]) for f in facts) if _lines(facts, "locks") else 0.0
    io = sum(float(f["waits"]["io"]) for f in facts)
    loop = float(facts[0]["loop_lock"]) if _lines(facts[:1], "loop_locks") else 0.0
    return Waits(
        lock=min(1.0, lock / fetch) if fetch else 0.0,
        io=min(1.0, io / fetch) if fetch else 0.0,
        loop=loop / steps if steps else 0.0,
    )


def with_locks(b: Breakdown, waits: Waits) -> Breakdown:
    """Return the breakdown with the waits for locks in ``other.lock``; its phases sum to the step as before.

    Accounting counts a fetch that waits for a lock as I/O, or as preparation where the lock's holder computed meanwhile:
    what the stacks say is I/O stays I/O.
    """
    phases, other, data = dict(b.phases), dict(b.other), b.data
    moved = 0.0
    io, prepare = phases.get(Phase.IO), phases.get(Phase.PREPARE)
    if data and io is not None and prepare is not None:
        phases[Phase.IO], phases[Phase.PREPARE], moved = _without_locks(io, prepare, waits)
        if Phase.IO in b.inferred:  # batches made in the loop: its own waits were taken for reads, as a fetch's are
            moved = min(io, waits.loop)
            phases[Phase.IO], phases[Phase.PREPARE] = io - moved, prepare
        data -= moved
    python = other.get("python") or 0.0
    own = min(python, waits.loop - moved) if Phase.IO in b.inferred else min(python, waits.loop)
    if own:
        other["python"] = python - own
    other["lock"] = (other.get("lock") or 0.0) + moved + own
    rest = phases.get(Phase.OTHER)
    if rest is not None:
        phases[Phase.OTHER] = rest + moved
    return replace(b, phases=phases, data=data, other=other, hidden=_hidden(b.hidden, waits))


def _without_locks(io: float, prepare: float, waits: Waits) -> tuple[float, float, float]:
    """Return I/O and preparation without what was a wait for a lock, and that."""
    wanted = waits.lock * (io + prepare)
    from_io = min(wanted, max(0.0, io - waits.io * (io + prepare)))
    from_prepare = min(wanted - from_io, prepare)
    return io - from_io, prepare - from_prepare, from_io + from_prepare


def _hidden(hidden: Mapping[str, float | None], waits: Waits) -> Mapping[str, float | None]:
    io, prepare = hidden.get("io"), hidden.get("prepare")
    if io is None or prepare is None:
        return hidden
    io, prepare, _ = _without_locks(io, prepare, waits)
    return {**hidden, "io": io, "prepare": prepare}
