"""Fetch batches in other processes: as many as the measured I/O share asks for, never a table by core count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fasttrain_doctor.evidence import Breakdown, Effect, Evidence, Loader, Machine, Phase
from fasttrain_doctor.tuners.fixes import Change, Fix, Knob, Options, Value

LADDER = (1, 2, 4, 8, 16, 24, 32, 48)
MOST_WORKERS = 64
WORKER_BYTES = 47 << 20  # measured: resident memory of one forked worker that is its own
MEMORY_SHARE = 0.5  # of what is free: the rest belongs to the training
WORTH = 0.03  # a wait below this share of the step is not worth a trial
CONTENDED = 0.1  # share of the fetching threads' time spent waiting for a CPU
HAND_OFF = 0.3e-3  # seconds to pass one batch between processes where no replay floor says it
SHORT_EPOCH = 200  # batches; below, starting the workers again each epoch can be seen
MOST_OPTIONS = 6


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one step asks of the loader (seconds of one worker) and of the rest of the loop (seconds of the step)."""

    io: float
    cpu: float
    compute: float
    ready: float  # the step if batches lay ready in workers
    batches: float

    def step(self, workers: int, cores: float) -> float:
        """Predict the step: workers wait side by side, but all computing shares the cores."""
        if workers == 0:
            return self.compute + self.io + self.cpu
        fetch = max((self.io + self.cpu) / workers, self.cpu / max(cores, 0.5))
        return max(self.ready, fetch, (self.cpu + self.compute) / max(cores, 1.0))


def _demand(breakdown: Breakdown, evidence: Evidence) -> _Demand | None:
    data = breakdown.data
    if data is None:
        return None
    io, prepare = breakdown.phases.get(Phase.IO), breakdown.phases.get(Phase.PREPARE)
    hidden_io, hidden_prepare = breakdown.hidden.get("io"), breakdown.hidden.get("prepare")
    if io is None or prepare is None:
        io = prepare = data / 2  # cannot be told apart here: neither bound is ruled out
    if hidden_io is not None and hidden_prepare is not None:
        io, prepare = io + hidden_io, prepare + hidden_prepare
    # A worker that waits for a CPU is counted as preparing: that part goes when the crowding goes.
    prepare *= 1.0 - min(max(breakdown.contention or 0.0, 0.0), 0.95)
    prepare = min(prepare, evidence.machine.cores * breakdown.mean)  # no more CPU time than there was
    compute = max(breakdown.mean - data, 0.0)
    ready = evidence.floor.ready if evidence.floor is not None else None
    batches = max(breakdown.batches_per_step, 1.0)
    return _Demand(io, prepare, compute, ready if ready is not None else compute + HAND_OFF * batches, batches)


def _most(loader: Loader, machine: Machine, demand: _Demand, world: int) -> int:
    """Return how many workers can be of use and fit: CPU for their computing share, memory, /dev/shm, batches."""
    cores, caps = machine.cores / world, [MOST_WORKERS]
    work = demand.io + demand.cpu
    if demand.cpu > 0 and work > 0:
        step = demand.compute + work
        free = max(cores - demand.compute / step, 0.5)  # the training thread keeps its own
        caps.append(max(1, math.ceil(min(free * work / demand.cpu, MOST_WORKERS))))
    held = (loader.batch_bytes or 0) * (loader.prefetch_factor or 2)
    if machine.memory_free is not None:
        caps.append(int(machine.memory_free * MEMORY_SHARE / world / (WORKER_BYTES + held)))
    if machine.shm_free is not None and held:
        caps.append(int(machine.shm_free * MEMORY_SHARE / world / held))
    if loader.length is not None:
        caps.append(max(1, loader.length))
    if loader.iterable and loader.shards is not None:
        caps.append(loader.shards)
    return max(min(caps), 0)


def _refusal(evidence: Evidence) -> str:
    loader = evidence.loader
    if loader is None:
        return "no training loader was seen: the batches are made some other way"
    if loader.kind != "torch":
        return f"the batches come from `{loader.kind}`, whose workers are not torch's to set"
    if loader.iterable and loader.shards is None:
        return (
            f"`{loader.dataset}` is an IterableDataset that is not known to split itself between workers: "
            "each further worker would deliver every sample again"
        )
    if evidence.breakdown.data is None:
        return "how long a step waits for data was not measured"
    return ""


def _value(loader: Loader, workers: int) -> Value:
    if workers == 0:
        return {"num_workers": 0}
    return {"num_workers": workers, "prefetch_factor": loader.prefetch_factor or 2, "persistent_workers": True}


def _candidates(evidence: Evidence, loader: Loader, demand: _Demand) -> list[int]:
    now, breakdown = loader.num_workers, evidence.breakdown
    most = _most(loader, evidence.machine, demand, evidence.world)
    cores = evidence.machine.cores / evidence.world
    found: set[int] = set()
    share = (breakdown.data or 0.0) / breakdown.mean if breakdown.mean > 0 else 0.0
    if share >= WORTH:
        enough = math.ceil((demand.io + demand.cpu) / max(demand.ready, 1e-6))
        found |= {n for n in (*LADDER, min(enough, most)) if now < n <= most}
    crowded = (breakdown.contention or 0.0) >= CONTENDED and now > 0
    if crowded or now > most:
        found |= {n for n in (*LADDER, math.ceil(cores)) if n < now and n <= max(most, math.ceil(cores))}
    # With trivial items the hand-off between processes is the wait, and no worker at all is best: possible where
    # the fetching itself, done in line, would fit into the step as it is now.
    hidden = sum(breakdown.hidden.get(part) or 0.0 for part in ("io", "prepare"))
    if now > 0 and share >= WORTH and (crowded or demand.compute + hidden <= breakdown.mean):
        found.add(0)
    return sorted(found)


def options(evidence: Evidence) -> Options:
    """Return worker settings worth trying, best predicted first; the search explores between and around them."""
    loader, reason = evidence.loader, _refusal(evidence)
    if reason or loader is None:
        return Options(reason=reason)
    demand = _demand(evidence.breakdown, evidence)
    assert demand is not None  # refused above where data was not measured
    cores = evidence.machine.cores / evidence.world
    counts = sorted(_candidates(evidence, loader, demand), key=lambda n: (round(demand.step(n, cores), 6), n))
    values = [_value(loader, n) for n in counts[:MOST_OPTIONS]]
    short = loader.length is not None and loader.length <= SHORT_EPOCH
    start = evidence.share_of_epoch(None if evidence.epoch is None else evidence.epoch.start)
    short = short or (start is not None and start >= WORTH)
    if loader.num_workers > 0 and not loader.persistent_workers and short:
        values.insert(0, _value(loader, loader.num_workers))  # same workers, kept between epochs
    if values:
        return Options(tuple(values))
    share = (evidence.breakdown.data or 0.0) / max(evidence.breakdown.mean, 1e-12)
    if share < WORTH:
        return Options(reason=f"a step waits for data only {share:.1%} of its time")
    return Options(reason="no further worker fits: CPU, memory, /dev/shm or the number of batches is used up")


def knobs(evidence: Evidence) -> tuple[Knob, ...]:
    """Return the ranges to explore: workers up to what can be of use, and how far each runs ahead."""
    loader = evidence.loader
    if loader is None or not options(evidence).values:
        return ()
    demand = _demand(evidence.breakdown, evidence)
    assert demand is not None
    most = max(_most(loader, evidence.machine, demand, evidence.world), 1)
    return Knob("num_workers", 1, most, log=True), Knob("prefetch_factor", 1, 8, log=True)


def effect(evidence: Evidence, _: Value) -> Effect:
    """Judge by what fetching was seen to do: exact only where it left every random state untouched."""
    loader = evidence.loader
    if loader is None or loader.rng_untouched is not True or loader.iterable or loader.worker_init_fn:
        return Effect.RESEEDED
    return Effect.EXACT


def expected(evidence: Evidence, value: Value) -> float | None:
    """Predict the speedup from the measured shares: for the order of trials only, never shown as a result."""
    loader = evidence.loader
    if _refusal(evidence) or loader is None or not isinstance(value, Mapping):
        return None
    if int(value["num_workers"]) < loader.num_workers:
        return None  # what crowding and hand-off cost is not known before they are gone
    demand = _demand(evidence.breakdown, evidence)
    cores = evidence.machine.cores / evidence.world
    step = demand.step(int(value["num_workers"]), cores) if demand is not None else 0.0
    return evidence.breakdown.mean / step if step > 0 else None


def install(value: Value) -> Change:
    """Override the view's worker settings; torch wants no prefetch factor where there is no worker.

    Raises:
        ValueError: a count is not a whole number of at least 0 (workers) or 1 (prefetch_factor).
    """
    table: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"num_workers": value}
    workers, prefetch = table.get("num_workers"), table.get("prefetch_factor", 2)
    keep = table.get("persistent_workers", True)
    for name, given, low in (("num_workers", workers, 0), ("prefetch_factor", prefetch, 1)):
        if type(given) is not int or given < low:
            raise ValueError(f"dataloader-workers: {name} must be a whole number of at least {low}, got {given!r}")
    if type(keep) is not bool or set(table) - {"num_workers", "prefetch_factor", "persistent_workers"}:
        raise ValueError(
            f"dataloader-workers takes num_workers, prefetch_factor, persistent_workers = true|false, got {table!r}"
        )
    if workers == 0:
        return Change(loader={"num_workers": 0, "prefetch_factor": None, "persistent_workers": False})
    return Change(loader={"num_workers": workers, "prefetch_factor": prefetch, "persistent_workers": keep})


def applied(value: Value) -> str:
    """Word the loader's new settings."""
    return ", ".join(f"{key}={given}" for key, given in install(value).loader.items() if given is not None)


FIX = Fix(
    name="dataloader-workers",
    summary="fetch batches in worker processes, as many as the measured I/O share asks for",
    effect=effect,
    options=options,
    install=install,
    applied=applied,
    knobs=knobs,
    expected=expected,
    side="data",
)
