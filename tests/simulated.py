"""A bench made of arithmetic: pipelines of workers with noise, drift, stalls and crashes, to search on."""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from fasttrain_doctor.evidence import Breakdown, Effect, Evidence, Floor, Loader, Machine, Phase
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.tuners.bench import ArmFailed, Block, SessionEnded
from fasttrain_doctor.tuners.fixes import Change, Fix, Knob, Options
from fasttrain_doctor.tuners.search import search


@dataclass
class Work:
    """A script: seconds of one batch on one worker (waiting, computing) and of a step's compute."""

    io: float = 0.0
    cpu: float = 0.0
    compute: float = 0.002
    optimizer: float = 0.0  # part of compute that fusing halves
    amp: float = 1.0  # what mixed precision makes of the rest
    hand_off: float = 0.0002
    cores: float = 2.0
    bursts: float = 0.0  # what a prefetch of 2 leaves waiting, gone at 8
    most: int = 48
    least_start: int = 8

    def step(self, plan):
        value = plan.get("dataloader-workers", {"num_workers": 0})
        workers = value["num_workers"]
        optimizer = self.optimizer / (2.0 if "fused-optimizer" in plan else 1.0)
        compute = (self.compute - self.optimizer) * (self.amp if "amp" in plan else 1.0) + optimizer
        if workers == 0:
            return self.io + self.cpu + compute
        crowd = 1.0 + 0.004 * max(0.0, workers - 8 * self.cores)  # more processes than anybody needs get in the way
        burst = self.bursts * max(0.0, 1.0 - math.log2(value.get("prefetch_factor", 2)) / 3.0)
        fetch = (self.io + self.cpu) / workers
        return max(compute + self.hand_off, fetch + burst, (self.cpu + compute + self.hand_off) / self.cores) * crowd


@dataclass
class Simulated:
    """A bench with the machine's weather: autocorrelated noise, a drift, stalls; a virtual clock."""

    work: Work
    seed: int = 0
    noise: float = 0.01
    drift: float = 0.0
    stalls: float = 0.0
    budget: float = 90.0
    crash_above: int = 10_000
    end_after: int = 10_000
    seconds: float = 0.0
    blocks: int = 0
    plans: list = field(default_factory=list)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)
        self.state = 0.0

    def left(self):
        return self.budget - self.seconds

    def block(self, plan, steps):
        if self.blocks >= self.end_after:
            raise SessionEnded("the script ended")
        workers = plan.get("dataloader-workers", {"num_workers": 0})["num_workers"]
        if workers > self.crash_above:
            raise ArmFailed("DataLoader worker killed by signal: Killed")
        self.blocks += 1
        self.plans.append(dict(plan))
        self.state = 0.5 * self.state + math.sqrt(0.75) * self.noise * self.rng.standard_normal()
        slow = math.exp(self.state + self.drift * self.seconds / 60)
        single = self.work.step(plan) * slow * np.exp(0.04 * self.rng.standard_normal(steps))
        if self.rng.random() < self.stalls:
            single[self.rng.integers(steps)] += self.rng.exponential(0.3)
        self.seconds += float(single.sum()) + 0.05
        return Block(steps, float(single.sum()), steps * 16.0, tuple(single))


# Fixes and findings like the real ones, in miniature.


def workers_fix(work):
    first = {"num_workers": work.least_start, "prefetch_factor": 2, "persistent_workers": True}
    return Fix(
        name="dataloader-workers",
        summary="",
        effect=lambda e, v: Effect.RESEEDED,
        options=lambda e: Options((first, {**first, "num_workers": 2})),
        install=lambda v: Change(),
        applied=str,
        knobs=lambda e: (Knob("num_workers", 1, work.most, log=True), Knob("prefetch_factor", 2, 8, log=True)),
        side="data",
    )


def flag(name, effect, needs=()):
    return Fix(
        name=name,
        summary="",
        effect=lambda e, v: effect,
        options=lambda e: Options((True,)),
        install=lambda v: Change(),
        applied=str,
        needs=needs,
    )


def catalogue(work):
    fixes = [workers_fix(work), flag("fused-optimizer", Effect.ROUNDING), flag("amp", Effect.PRECISION)]
    return {fix.name: fix for fix in fixes}


def evidence(work, floor=True):
    step = work.step({})
    phases = dict.fromkeys(Phase, 0.0) | {Phase.IO: work.io, Phase.PREPARE: work.cpu, Phase.FORWARD: work.compute}
    breakdown = Breakdown(
        mean=step,
        median=step,
        p10=step,
        p90=step,
        measured=40,
        warmup=2,
        found_by="loader",
        batches_per_step=1,
        samples_per_step=16,
        clock="host",
        phases=phases,
        data=work.io + work.cpu,
        other={},
        hidden={},
        contention=0.0,
    )
    loader = Loader(
        num_workers=0,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
        batch_size=16,
        length=100,
        dataset="x.Images",
        dataset_length=1600,
        iterable=False,
        sampler=None,
        file=None,
        line=None,
    )
    return Evidence(
        machine=Machine(cores=2, logical_cores=2),
        breakdown=breakdown,
        loader=loader,
        floor=Floor(work.compute, work.compute + work.hand_off, step) if floor else None,
    )


def findings(work):
    step, found = work.step({}), []
    for code, lost, names in [
        ("IO001", (work.io + work.cpu) / step, ("dataloader-workers",)),
        ("OP001", work.optimizer / step, ("fused-optimizer",)),
        ("FP001", work.compute / step, ("amp",)),
    ]:
        if lost > 0.01:
            found.append((Rule(code, code.lower(), names, lambda e: None), Finding("", lost)))
    return sorted(found, key=lambda pair: -pair[1].lost)


def run(work, *, allow=Effect.PRECISION, max_workers=None, **machine):
    bench = Simulated(work, **machine)
    heard = []
    found = search(
        bench,
        evidence(work),
        findings(work),
        allow=allow,
        budget=bench,
        max_workers=max_workers,
        on_trial=heard.append,
        fixes=catalogue(work),
        seed=bench.seed,
    )
    return found, bench, heard


def grid_optimum(work, allow=Effect.PRECISION):
    plans = []
    for workers, prefetch, fused, amp in itertools.product(range(work.most + 1), (2, 4, 8), (0, 1), (0, 1)):
        plan = {"dataloader-workers": {"num_workers": workers, "prefetch_factor": prefetch}} if workers else {}
        plan |= {"fused-optimizer": True} if fused else {}
        plan |= {"amp": True} if amp and allow >= Effect.PRECISION else {}
        plans.append(work.step(plan))
    return min(plans)


IO_BOUND = Work(io=0.064)  # 16 samples that wait 4 ms each
WORKLOADS = {
    "io-bound": IO_BOUND,
    "cpu-bound": Work(cpu=0.030, compute=0.010),
    "mixed": Work(io=0.020, cpu=0.010, compute=0.004),
    "bursty": Work(io=0.030, compute=0.002, bursts=0.002),
    "optimizer": Work(compute=0.020, optimizer=0.002),
    "hidden compute": Work(io=0.040, compute=0.010, amp=0.5),
    "slow steps": Work(io=0.5, cpu=0.1, compute=0.1),
    "small steps": Work(io=0.0005, compute=0.0005, hand_off=0.0002),
}
