"""From what the probes wrote to the evidence that rules and fixes judge by. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fasttrain_doctor.breakdown import Window, break_down, window
from fasttrain_doctor.diagnosis import LoaderRole, Loop, Ranks
from fasttrain_doctor.evidence import Breakdown, Fetches, Loader, Model, Optimizer
from fasttrain_doctor.fetches import fetches_of
from fasttrain_doctor.loop_source import loop_of_process
from fasttrain_doctor.lost import without
from fasttrain_doctor.ranks import ranks_of
from fasttrain_doctor.recorded import Fact, Process, Recorded
from fasttrain_doctor.records import Kind, Span
from fasttrain_doctor.steps import Steps, find_steps


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
    fetches: Fetches | None


def understand(recorded: Recorded) -> Watched | None:
    """Find and break down the steps of the slowest training process; None when none has a whole step."""
    found = [w for p in recorded.trainers if (w := _one(recorded, p)) is not None]
    if not found:
        return None
    names = [str(w.process.rank if w.process.rank is not None else i) for i, w in enumerate(found)]
    names = names if len(set(names)) == len(names) else [str(i) for i in range(len(found))]
    world = max([len(found), *(int(f.get("world") or 1) for p in recorded.processes for f in p.facts_of("rank"))])
    ranks, slowest = ranks_of({name: w.breakdown for name, w in zip(names, found, strict=True)}, world)
    return replace(found[names.index(slowest)], ranks=ranks)


def _one(recorded: Recorded, process: Process) -> Watched | None:
    steps = find_steps(process)
    workers = tuple(recorded.workers_of(process))
    fact = _loader_fact(process, steps)
    size = fact.get("batch_size") if fact is not None else None
    breakdown = break_down(process, workers, steps, int(size) if size else None)
    if breakdown is None:
        return None
    breakdown = without(breakdown, [str(f.get("what")) for p in (process, *workers) for f in p.facts_of("degraded")])
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
        ranks=Ranks(world=1, reported=1, step={}, work={}, straggler=None),
        framework=framework,
        spans=_spans(process, chosen),
        fetches=fetches_of(process, workers, steps, chosen.measured),
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
    statement = loop_of_process(process)
    if statement is not None:
        lines = (statement.first, statement.last)
        return Loop(file=statement.file, lines=lines, loaders=list(roles.values()))
    function = Counter((f["file"], f["function"]) for f in at).most_common(1)
    if not function:
        return Loop(file=None, lines=None, loaders=list(roles.values()))
    (file, name), _ = function[0]
    seen = [int(f["line"]) for f in at if (f["file"], f["function"]) == (file, name)]
    seen += [int(f["line"]) for f in process.facts_of("loader") if f["file"] == file and f.get("function") == name]
    return Loop(file=file, lines=(min(seen), max(seen)), loaders=list(roles.values()))


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
