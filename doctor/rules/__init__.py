"""Bottlenecks: one module and one page each, found by walking this package. Nothing here reads a file or a clock."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from fasttrain_doctor.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule saw. ``lost`` is the share that would go if this did: a bound, not a promise.

    It is a share ``of`` the mean step, or of an epoch where the cost lies between steps. 0: a warning of what costs no
    time yet.
    """

    message: str
    lost: float
    evidence: Mapping[str, object] = field(default_factory=dict)
    of: Literal["step", "epoch"] = "step"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern and how to see it. ``name`` says the pattern found, never the remedy; ``fixes`` are fix names."""

    code: str
    name: str
    fixes: tuple[str, ...]
    check: Callable[[Evidence], Finding | None]


CROWDED = 0.2  # share of the loader threads' time spent waiting for a core from which the cores are taken
BUSY = 0.7  # of the cores kept busy by the script's own processes; with less, it queues behind other programs
PRESSED = 0.5  # share of the time in which some task waited for a CPU, from which most waits are made longer by it


def waiting(evidence: Evidence) -> float | None:
    """Return the share of the step that waits for data, no more than a replay of one batch saved; None: not measured."""
    breakdown, floor = evidence.breakdown, evidence.floor
    if breakdown.data is None or breakdown.mean <= 0:
        return None
    share = min(breakdown.data / breakdown.mean, 1.0)
    bound = None if floor is None else floor.bound
    return share if bound is None else min(share, bound)


def work(evidence: Evidence) -> float | None:
    """Return what making the batches of a step takes one process, in seconds; None: not measured."""
    fetches, samples = evidence.fetches, evidence.breakdown.samples_per_step
    if fetches is None or fetches.item is None or fetches.collate is None or samples is None:
        return None
    return (fetches.item + fetches.collate) * samples


def spared(evidence: Evidence, part: float) -> float | None:
    """Return the share of the step that would go if ``part`` of the time in fetches did; None: not measured.

    In the training process that part of the wait. Workers wait for the loop as well: of the wait remains what the rest
    of their work is too long for, and no more goes than the work itself.
    """
    breakdown, waits = evidence.breakdown, waiting(evidence)
    if waits is None:
        return None
    workers = 0 if evidence.loader is None else evidence.loader.num_workers
    seconds = work(evidence)
    if workers == 0 or seconds is None or breakdown.data is None:
        return part * waits
    shown, made = breakdown.data / breakdown.mean, seconds / breakdown.mean
    remains = max(0.0, (1 - part) * made / workers - (1 - shown))
    return max(0.0, min(waits, shown - remains, part * made))


def own_load(evidence: Evidence) -> bool:
    """Whether the script's own processes are what its threads queue behind, as far as that was measured."""
    load = None if evidence.pressure is None else evidence.pressure.tree_cpu
    return load is None or load >= BUSY * evidence.machine.cores


def pressed_by_others(evidence: Evidence) -> bool:
    """Whether other programs were seen to keep the script from the cores: what it waits for is then its turn."""
    pressed = None if evidence.pressure is None else evidence.pressure.cpu
    return pressed is not None and pressed >= PRESSED and not own_load(evidence)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of this package, ordered by code."""
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    return tuple(sorted((m.RULE for m in modules), key=lambda rule: rule.code))


def diagnose(evidence: Evidence) -> list[tuple[Rule, Finding]]:
    """Return what the rules find in ``evidence``, largest loss first."""
    found = [(rule, finding) for rule in all_rules() if (finding := rule.check(evidence)) is not None]
    return sorted(found, key=lambda pair: -pair[1].lost)
