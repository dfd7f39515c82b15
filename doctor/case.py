"""Everything one diagnosis has found so far, and the public diagnosis made of it at whatever point it ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fasttrain_doctor import __version__
from fasttrain_doctor.diagnosis import (
    Candidate,
    Change,
    DebugMode,
    Diagnosis,
    FindingFacts,
    FloorFacts,
    Loop,
    NotMeasured,
    OperatorFacts,
    Overhead,
    Startup,
    Status,
    Steps,
    StepTime,
    TrialFacts,
    Tuned,
)
from fasttrain_doctor.epochs import epoch_of
from fasttrain_doctor.evidence import Debug, Device, Evidence, Floor, Look, Machine, Operator, Pressure
from fasttrain_doctor.gather import Watched, loop_of
from fasttrain_doctor.inside import hot_lines, loader_facts, pressure_facts, unseen
from fasttrain_doctor.loop_source import loop_of_process, no_loader
from fasttrain_doctor.partition import gaps_between
from fasttrain_doctor.pressure import pressure_of
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.sampling import Sample
from fasttrain_doctor.trend import growth
from fasttrain_doctor.window_facts import debug_of, queued_of
from fasttrain_doctor.wording import out_of_time

if TYPE_CHECKING:
    from fasttrain_doctor.tuners.search import SearchResult

_SCRATCH = "pymp-"  # folders of multiprocessing: the script never knew of them
_BY_HAND = (
    "the update is made by hand and changes nothing in place: nothing tells its end from the making of the next batch"
)


@dataclass
class Case:
    """Filled stage by stage; ``diagnosis()`` can be asked for at any moment."""

    script: str
    command: list[str]
    started: str
    machine: Machine
    watched: Watched | None = None
    startup: Startup | None = None
    look: Look | None = None
    samples: Sequence[Sample] = ()  # of the machine, from outside of the script
    floor: Floor | None = None
    operators: Sequence[Operator] | None = None
    device: Device | None = None
    evidence: Evidence | None = None
    findings: Sequence[tuple[Rule, Finding]] = ()
    trials: list[TrialFacts] = field(default_factory=list)
    noise: float | None = None
    search: SearchResult | None = None
    tuned: Tuned | None = None
    candidate: Candidate | None = None
    trace: str | None = None
    overhead: Overhead | None = None
    degraded: list[str] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)
    unprotected: list[Change] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    executions: int = 0
    interrupted: bool = False
    failed: str | None = None
    seconds: float | None = None

    def missing(self, what: str, why: str) -> None:
        """Note what was not measured; the first reason stands."""
        self.not_measured.setdefault(what, why)

    def out_of_time(self, reserve: float, budget: float) -> None:
        """Say why there were no more trials; see ``wording.out_of_time``."""
        self.missing("trials", out_of_time(reserve, budget))

    @property
    def status(self) -> Status:
        """How the diagnosis ended."""
        if self.failed is not None or self.watched is None:
            return "interrupted" if self.interrupted else "failed"
        if self.interrupted:
            return "interrupted"
        return "degraded" if self.degraded else "complete"

    def diagnosis(self) -> Diagnosis:
        """Return the public diagnosis of what is known; its verdict is left to the report."""
        w = self.watched
        b = w.breakdown if w is not None else None
        return Diagnosis(
            tool=__version__,
            status=self.status,
            degraded=self.degraded,
            not_measured=[NotMeasured(what=k, why=v) for k, v in self._absent().items()],
            command=self.command,
            script=self.script,
            started=self.started,
            seconds=self.seconds,
            machine=dataclasses.asdict(self.machine),
            clock=None if b is None else b.clock,  # type: ignore[arg-type]
            loop=None if w is None else self._loop(w),
            steps=None
            if b is None
            else Steps(
                measured=b.measured,
                warmup=b.warmup,
                found_by=b.found_by,  # type: ignore[arg-type]
                batches_per_step=b.batches_per_step,
                samples_per_step=b.samples_per_step,
            ),
            step=None if b is None else StepTime(mean=b.mean, median=b.median, p10=b.p10, p90=b.p90),
            phases=None if b is None else {phase.value: seconds for phase, seconds in b.phases.items()},
            data=None if b is None else b.data,
            inferred=[] if b is None else list(b.inferred),
            other=None if b is None else dict(b.other),
            hidden=None if b is None else dict(b.hidden),
            contention=None if b is None else b.contention,
            queued=None if w is None else queued_of(w.process),
            trend=None if w is None else growth([step.seconds for step in w.window.measured]),
            loader=None if w is None else loader_facts(w, self.look),
            epoch=None if w is None else epoch_of(w),
            startup=self.startup,
            ranks=None if w is None else w.ranks,
            pressure=None if w is None else pressure_facts(self.pressure),
            debug=None if w is None else _debug(debug_of(w.process)),
            floor=_floor(self.floor),
            findings=[_finding(rule, found) for rule, found in self.findings],
            trials=list(self.trials),
            noise=self.noise,
            tuned=self.tuned,
            candidate=self.candidate,
            verdict="",
            operators=None if self.operators is None else [_operator(o) for o in self.operators],
            device=None if self.device is None else dataclasses.asdict(self.device),
            trace=self.trace,
            overhead=self.overhead,
            unprotected=self.unprotected,
            moved=[path for path in self.moved if not Path(path).name.startswith(_SCRATCH)],
            step_seconds=[] if w is None else [s.seconds for s in w.window.every],
            executions=self.executions,
        )

    @property
    def pressure(self) -> Pressure | None:
        """What pressed on the training during its window, by the samples there are."""
        if self.watched is None or not self.watched.window.every:
            return None
        every = self.watched.window.every
        return pressure_of(self.samples, every[0].start, every[-1].end)

    def _loop(self, watched: Watched) -> Loop:
        lines = None if self.look is None else hot_lines(self.look.loop_lines)
        return dataclasses.replace(loop_of(watched), hot_lines=lines)

    def _absent(self) -> Mapping[str, str]:
        out = dict(self.not_measured)
        if self.failed is not None:
            out.setdefault("everything", self.failed)
        if self.watched is None:
            return out
        b = self.watched.breakdown
        if not self.machine.gpus:
            out.setdefault("h2d", "no accelerator: nothing is copied to a device")
        elif b.phases.get("h2d") is None:  # type: ignore[call-overload]
            out.setdefault("h2d", "the training used no accelerator")
        if b.data is None:
            out.setdefault("data", _BY_HAND)
        if self.watched.loader is None:
            why = no_loader(loop_of_process(self.watched.process))
            out.setdefault("floor", why)
            out.setdefault("loader", why)
        for what, why in unseen(self.watched, self.look, self.pressure).items():
            out.setdefault(what, out.get("look", why))
        if queued_of(self.watched.process) is None:
            out.setdefault(
                "queued", "the waits of the training thread for a CPU were not read at both ends of the window"
            )
        if self.startup is None:
            out.setdefault("startup", "the start of the script was not followed")
        if not gaps_between(self.watched.window.every):
            out.setdefault("epoch", "no end of an epoch fell into the window")
        return out


def _floor(floor: Floor | None) -> FloorFacts | None:
    if floor is None or floor.baseline is None or floor.ceiling is None:
        return None
    return FloorFacts(step=floor.baseline / floor.ceiling, ceiling=floor.ceiling, baseline=floor.baseline)


def _finding(rule: Rule, found: Finding) -> FindingFacts:
    evidence: dict[str, Any] = dict(found.evidence)
    return FindingFacts(
        code=rule.code,
        rule=rule.name,
        lost=found.lost,
        message=found.message,
        evidence=evidence,
        fixes=list(rule.fixes),
        of=found.of,
    )


def _debug(found: Sequence[Debug] | None) -> list[DebugMode] | None:
    return None if found is None else [DebugMode(name=mode.name, how=mode.how) for mode in found]


def _operator(o: Operator) -> OperatorFacts:
    return OperatorFacts(phase=o.phase.value, name=o.name, seconds=o.seconds, calls=o.calls, device=o.device)
