"""From what the probes wrote to the evidence that rules and fixes judge by. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fasttrain_doctor.breakdown import Window, break_down, window
from fasttrain_doctor.diagnosis import Epoch, LoaderRole, Loop, Ranks, Startup
from fasttrain_doctor.evidence import Breakdown, Loader, Model, Optimizer
from fasttrain_doctor.partition import gaps_between
from fasttrain_doctor.recorded import Fact, Process, Recorded
from fasttrain_doctor.records import Kind, Record, Span
from fasttrain_doctor.steps import Steps, find_steps

STRAGGLES = 1.1  # a rank this many times slower than the median is a straggler


@dataclass(frozen=True, slots=True)
class Watched:
    """One start of the script, understood: its slowest trainer's steps and what they consist of."""

    process: Process
    workers: tuple[Process, ...]
    steps: Steps
    window: Window
    breakdown: Breakdown
    loader: Loader | None
    loader_fact: Fact | None
    optimizers: tuple[Optimizer, ...]
    model: Model | None
    ranks: Ranks
    framework: str | None
    spans: Mapping[str, tuple[tuple[str, float], ...]]


def understand(recorded: Recorded) -> Watched | None:
    """Find and break down the steps of the slowest training process; None when none has a whole step."""
    found = [w for p in recorded.trainers if (w := _one(recorded, p)) is not None]
    if not found:
        return None
    slowest = max(found, key=lambda w: w.breakdown.mean)
    names = {id(w): str(w.process.rank if w.process.rank is not None else i) for i, w in enumerate(found)}
    times = {names[id(w)]: w.breakdown.mean for w in found}
    middle = statistics.median(times.values())
    late = slowest.breakdown.mean > STRAGGLES * middle and len(found) > 1
    world = max([len(found), *(int(f.get("world") or 1) for p in recorded.processes for f in p.facts_of("rank"))])
    ranks = Ranks(world=world, reported=len(found), step=times, straggler=names[id(slowest)] if late else None)
    return replace(slowest, ranks=ranks)


def _one(recorded: Recorded, process: Process) -> Watched | None:
    steps = find_steps(process)
    workers = tuple(recorded.workers_of(process))
    fact = _loader_fact(process, steps)
    size = fact.get("batch_size") if fact is not None else None
    breakdown = break_down(process, workers, steps, int(size) if size else None)
    if breakdown is None:
        return None
    optimizers = {int(f["id"]): f for f in process.facts_of("optimizer")}
    framework = next((f["framework"] for f in optimizers.values() if f.get("framework")), None)
    chosen = window(steps)
    return Watched(
        process=process,
        workers=workers,
        steps=steps,
        window=chosen,
        breakdown=breakdown,
        loader=None if fact is None else _loader(process, workers, fact),
        loader_fact=fact,
        optimizers=tuple(_optimizer(f) for f in optimizers.values()),
        model=_model(process.facts_of("model")),
        ranks=Ranks(world=1, reported=1, step={}, straggler=None),
        framework=framework,
        spans=_spans(process, chosen),
    )


def _loader_fact(process: Process, steps: Steps) -> Fact | None:
    if not steps.loaders:
        return None
    facts = {int(f["id"]): f for f in process.facts_of("loader")}
    return next((facts[n] for n in steps.loaders if n in facts), None)


def _loader(process: Process, workers: Iterable[Process], fact: Fact) -> Loader:
    batch = next((f for f in process.facts_of("batch") if f.get("loader") == fact["id"]), {})
    looks = [f for p in (process, *workers) for f in p.facts_of("rng")]
    shape = batch.get("batch_shape")
    transforms = fact.get("transforms")
    return Loader(
        num_workers=int(fact["num_workers"]),
        prefetch_factor=fact["prefetch_factor"],
        pin_memory=bool(fact["pin_memory"]),
        persistent_workers=bool(fact["persistent_workers"]),
        batch_size=fact["batch_size"],
        length=fact["length"],
        dataset=str(fact["dataset"]),
        dataset_length=fact["dataset_length"],
        iterable=bool(fact["iterable"]),
        sampler=fact["sampler"],
        file=fact["file"],
        line=fact["line"],
        kind="torch",
        start_method=fact["start_method"],
        rng_untouched=all(bool(f["untouched"]) for f in looks) if looks else None,
        worker_init_fn=bool(fact["worker_init_fn"]),
        batch_bytes=batch.get("batch_bytes"),
        batch_dtype=batch.get("batch_dtype"),
        batch_shape=tuple(shape) if shape else None,
        transforms=tuple(str(t["name"]) for t in transforms) if transforms else None,
        collate=fact.get("collate"),
        moved=True if process.facts_of("moved") else None,
    )


def _optimizer(fact: Fact) -> Optimizer:
    return Optimizer(
        cls=str(fact["cls"]),
        parameters=int(fact["parameters"]),
        elements=int(fact["elements"]),
        foreach=fact["foreach"],
        fused=fact["fused"],
        capturable=fact["capturable"],
        differentiable=fact["differentiable"],
        device=str(fact["device"]),
        dtypes=tuple(fact["dtypes"]),
    )


def _model(facts: Sequence[Fact]) -> Model | None:
    """Return the largest module that trained; a GAN has several."""
    if not facts:
        return None
    fact = max(facts, key=lambda f: int(f["elements"]))
    names = Model.__slots__
    return Model(**{name: fact[name] for name in names if name in fact})


def _spans(process: Process, chosen: Window) -> Mapping[str, tuple[tuple[str, float], ...]]:
    """Return seconds per step of each named part of other, by the user's line that led there."""
    places = {int(f["id"]): f"{f['file']}:{f['line']}" for f in process.facts_of("place")}
    if not chosen.measured:
        return {}
    first, last = chosen.measured[0].start, chosen.measured[-1].end
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for r in process.of(Kind.SPAN):
        if first <= r.t0 < last and r.a in places:
            sums[Span(r.flag).name.lower()][places[r.a]] += r.t1 - r.t0
    count = len(chosen.measured)
    return {
        part: tuple((where, ns / 1e9 / count) for where, ns in found.most_common(8)) for part, found in sums.items()
    }


def loop_of(watched: Watched) -> Loop:
    """Return what was taken for the training loop: its place and the loaders with their roles."""
    process, steps = watched.process, watched.steps
    roles: dict[tuple[Any, ...], LoaderRole] = {}
    for fact in process.facts_of("loader"):
        number = int(fact["id"])
        if number in steps.loaders:
            role = "train"
        elif number in steps.eval_loaders:
            role = "eval"
        else:
            role = "other"
        entry = LoaderRole(role=role, file=fact["file"], line=fact["line"])  # type: ignore[arg-type]
        roles.setdefault((role, entry.file, entry.line), entry)
    at = process.facts_of("at")
    function = Counter((f["file"], f["function"]) for f in at).most_common(1)
    if not function:
        return Loop(file=None, lines=None, loaders=list(roles.values()))
    (file, name), _ = function[0]
    lines = [int(f["line"]) for f in at if (f["file"], f["function"]) == (file, name)]
    lines += [int(f["line"]) for f in process.facts_of("loader") if f["file"] == file and f.get("function") == name]
    return Loop(file=file, lines=(min(lines), max(lines)), loaders=list(roles.values()))


def startup_of(watched: Watched, started: float) -> Startup:
    """Return the costs before the first step.

    Args:
        watched: the understood run.
        started: when the process was started, in seconds of the records' clock.
    """
    asked = [r for r in watched.process.of(Kind.NEXT) if r.a in watched.steps.loaders]
    made = [r for r in watched.process.of(Kind.ITERATOR) if r.a in watched.steps.loaders]
    begin = asked[0] if asked else next(iter(watched.process.of(Kind.FORWARD, Kind.BACKWARD)), None)
    return Startup(
        imports=None if begin is None else max(0.0, begin.t0 / 1e9 - started),
        first_batch=(asked[0].t1 - asked[0].t0) / 1e9 if asked else None,
        workers=(made[0].t1 - made[0].t0) / 1e9 if made and made[0].b else None,
    )


def epoch_of(watched: Watched) -> Epoch:
    """Return what an epoch costs besides its steps, from the epochs' borders inside the window."""
    process, steps = watched.process, watched.steps
    length = watched.loader.length if watched.loader is not None else None
    gaps = gaps_between(watched.window.every)
    inside = [[r for r in process.records if a <= r.t0 < b and r.thread == steps.thread] for a, b in gaps]
    evals = [t for records in inside if (t := _eval_seconds(records, steps)) is not None]
    saves = [sum(_seconds(r) for r in records if _saves(r)) for records in inside]
    return Epoch(
        batches=length,
        start=_epoch_start(process, steps),
        eval=statistics.fmean(evals) if evals else None,
        checkpoint=statistics.fmean(saves) if any(saves) else None,
    )


def _saves(r: Record) -> bool:
    return r.kind is Kind.SPAN and r.flag == Span.CHECKPOINT


def _seconds(r: Record) -> float:
    return (r.t1 - r.t0) / 1e9


def _eval_seconds(records: Sequence[Record], steps: Steps) -> float | None:
    signs = [r for r in records if r.kind is Kind.NEXT and r.a not in steps.loaders]
    return (max(r.t1 for r in signs) - min(r.t0 for r in signs)) / 1e9 if signs else None


def _epoch_start(process: Process, steps: Steps) -> float | None:
    """Return what making the iterator and waiting for its first batch takes beyond a usual wait."""
    asked = [r for r in process.of(Kind.NEXT) if r.a in steps.loaders and r.flag == 0]
    made = [r for r in process.of(Kind.ITERATOR) if r.a in steps.loaders]
    if not made or not asked:
        return None
    usual = statistics.median(_seconds(r) for r in asked)
    costs = []
    for m in made[1:] or made:  # the first epoch's start also pays for what is lazy
        first = next((r for r in asked if r.obj == m.obj and r.t0 >= m.t1), None)
        if first is not None:
            costs.append(_seconds(m) + max(0.0, _seconds(first) - usual))
    return statistics.fmean(costs) if costs else None


def target_of(watched: Watched) -> dict[str, Any]:
    """Return the facts by which the training loader is found again; its size only where nothing else tells it apart."""
    fact = watched.loader_fact
    if fact is None:
        return {}
    twins = [
        f
        for f in watched.process.facts_of("loader")
        if f["dataset"] == fact["dataset"] and f["sampler"] == fact["sampler"]
    ]
    lengths = {f["dataset_length"] for f in twins}
    keys = ("dataset", "sampler", "file", "line") + (("dataset_length",) if len(lengths) > 1 else ())
    return {key: fact[key] for key in keys}
