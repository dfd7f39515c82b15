"""Which fixes are worth trying, in which order, and why the others are not. Pure: evidence in, candidates out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fasttrain_doctor.evidence import Effect, Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.tuners.fixes import Fix, Knob, Value

WORTH = 0.03  # a bound below this share of the step is not worth a trial


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fix to try. ``bound`` is the share of the mean step it can take away at most; ``why`` names what suggests it."""

    fix: Fix
    values: tuple[Value, ...]
    knobs: tuple[Knob, ...]
    bound: float
    why: str

    def left(self, gained_same_side: float, gained_other_side: float) -> float:
        """Return the bound as a share of the step as it has become, after speedups (>= 1) on either side.

        What was gained on the same side has used the bound up; what was gained on the other side has made the step
        shorter and left this part as it was: a compute fix may be hidden behind the data until the data comes faster.
        """
        return min(1.0, max(0.0, 1.0 - gained_same_side * (1.0 - self.bound)) * gained_other_side)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A fix that is not tried, and why."""

    fix: str
    reason: str


@dataclass(frozen=True, slots=True)
class Space:
    """Candidates, largest bound first, those that no finding names at the end; and what is left out."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[Skipped, ...]


def side_bound(evidence: Evidence, side: str) -> float:
    """Return the share of the step that fixes of a side can take away together: 1 where nothing is known."""
    breakdown = evidence.breakdown
    share = None if breakdown.data is None or breakdown.mean <= 0 else min(1.0, breakdown.data / breakdown.mean)
    if side != "data":
        return 1.0 if share is None else 1.0 - share
    ceiling = evidence.floor.ceiling if evidence.floor is not None else None
    if ceiling is not None:
        return max(0.0, 1.0 - 1.0 / ceiling)
    return 1.0 if share is None else share


def space(
    evidence: Evidence,
    findings: Sequence[tuple[Rule, Finding]],
    fixes: Mapping[str, Fix],
    *,
    allow: Effect,
    max_workers: int | None = None,
) -> Space:
    """Turn findings into candidates: those that apply, whose effect is allowed, and whose needs are there."""
    named: dict[str, tuple[float, str]] = {}
    for rule, finding in findings:
        for name in rule.fixes:
            if name not in named or finding.lost > named[name][0]:
                named[name] = finding.lost, f"{rule.code} {rule.name}"
    candidates: list[Candidate] = []
    skipped: list[Skipped] = []
    for fix in fixes.values():
        values, reason = _values(evidence, fix, allow, max_workers)
        if not values:
            skipped.append(Skipped(fix.name, reason))
            continue
        lost, why = named.get(fix.name) or (_hoped(evidence, fix, values), "")
        bound = min(lost, side_bound(evidence, fix.side))
        knobs = tuple(_within(fix.knobs(evidence), max_workers))
        candidates.append(Candidate(fix, values, knobs, bound, why or "no finding: its own options suggest it"))

    def order(candidate: Candidate) -> tuple[bool, float, float, str]:
        expected = candidate.fix.expected(evidence, candidate.values[0]) or 1.0
        return candidate.fix.name not in named, -candidate.bound, -expected, candidate.fix.name

    return Space(tuple(sorted(candidates, key=order)), tuple(skipped))


def _hoped(evidence: Evidence, fix: Fix, values: Sequence[Value]) -> float:
    """Return the share of the step that a fix which no finding names expects to take away: 1 where it has no idea.

    Its rule, if it has one, has looked and found less than is worth a word: without this it would come before all.
    """
    expected = max((e for v in values if (e := fix.expected(evidence, v)) is not None), default=None)
    return 1.0 if expected is None else max(0.0, 1.0 - 1.0 / max(expected, 1.0))


def _values(evidence: Evidence, fix: Fix, allow: Effect, max_workers: int | None) -> tuple[tuple[Value, ...], str]:
    """Return the values that may be tried, or none and the reason."""
    missing = sorted(set(fix.needs) - evidence.packages)
    if missing:
        return (), f"needs {', '.join(missing)}, which the script's interpreter cannot import"
    options = fix.options(evidence)
    if not options.values:
        return (), options.reason
    allowed = [value for value in options.values if fix.effect(evidence, value) <= allow]
    if not allowed:
        least = min(fix.effect(evidence, value) for value in options.values)
        return (), f"may change the training ({least.name.lower()}): needs --allow {least.name.lower()}"
    unique: list[Value] = []
    for value in allowed:
        clamped = _clamp(value, max_workers)
        if clamped not in unique:
            unique.append(clamped)
    return tuple(unique), ""


def _clamp(value: Value, max_workers: int | None) -> Value:
    if max_workers is None or not isinstance(value, Mapping) or "num_workers" not in value:
        return value
    return {**value, "num_workers": min(int(value["num_workers"]), max_workers)}


def _within(knobs: Iterable[Knob], max_workers: int | None) -> Iterable[Knob]:
    for knob in knobs:
        if knob.key == "num_workers" and max_workers is not None and knob.high > max_workers:
            knob = Knob(knob.key, knob.low, max(knob.low, max_workers), knob.log)  # noqa: PLW2901
        yield knob
