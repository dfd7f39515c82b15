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


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of this package, ordered by code."""
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    return tuple(sorted((m.RULE for m in modules), key=lambda rule: rule.code))


def diagnose(evidence: Evidence) -> list[tuple[Rule, Finding]]:
    """Return what the rules find in ``evidence``, largest loss first."""
    found = [(rule, finding) for rule in all_rules() if (finding := rule.check(evidence)) is not None]
    return sorted(found, key=lambda pair: -pair[1].lost)
