"""What the product says is to blame, decided from its own answers alone. Pure.

A diagnosis of one script has no other run to compare with, but what is planted has: ``amounts`` is what each part of the
step has grown by over the same script without a dose, in seconds per step. The parts are those of the breakdown; what
the loader cost is told apart further by the look inside (stages), by the fetches (one slow sample, collation) and by the
workers (all of them always busy, with no stage to blame).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from fasttrain_doctor.evidence import Breakdown, Fetches, Look, Phase

TAIL = 0.5  # share of the samples' time that is beyond the usual, from which the slow ones are to blame
BUSY = 0.8  # share of their time that workers fetch, from which there are too few
ONE = 0.6  # share of a sample's time that makes one stage the one to blame
UNNAMED = ("io", "prepare", "item")  # what a finer name may stand for


@dataclass(frozen=True)
class Said:
    """What the product says of one block. ``findings``: the share of the step lost by rule."""

    breakdown: Breakdown
    fetches: Fetches | None = None
    look: Look | None = None
    findings: Mapping[str, float] | None = None


def seconds(said: Said) -> dict[str, float]:
    """Return seconds per step by part: the phases, with ``other`` taken apart."""
    out = {str(phase): s for phase, s in said.breakdown.phases.items() if s is not None and phase is not Phase.OTHER}
    return out | {part: s for part, s in said.breakdown.other.items() if s is not None}


def excess(said: Said, bases: Sequence[Said]) -> dict[str, float]:
    """Return by how much each part has grown over the same script without a dose: over the median of ``bases``."""
    usual = [seconds(base) for base in bases]
    return {part: s - median(base.get(part, 0.0) for base in usual) for part, s in seconds(said).items()}


def amounts(said: Said, bases: Sequence[Said]) -> dict[str, float]:
    """Return ``excess`` with io and prepare under the finest names that the product gives them."""
    out = excess(said, bases)
    io, prepare = out.pop("io", 0.0), out.pop("prepare", 0.0)
    if said.breakdown.hidden["prepare"] is not None and said.breakdown.data:
        # Workers were hidden without a dose: what of the wait is io is told by what they do, not by what it grew from.
        share = (said.breakdown.phases[Phase.IO] or 0.0) / said.breakdown.data
        io, prepare = share * (io + prepare), (1 - share) * (io + prepare)
    io, prepare = max(0.0, io), max(0.0, prepare)
    total = io + prepare
    if not total:
        return out
    grown = _stages(said, bases)
    tail = _of_slow_samples(said, bases)
    named = {"read" if "read" in grown else "io": io}
    computing = {stage: s for stage, s in grown.items() if stage != "read" and s > 0} or {"prepare": 1.0}
    for stage, s in computing.items():
        named[stage] = prepare * s / sum(computing.values())
    busy = said.fetches is not None and (said.fetches.busy or 0.0) >= BUSY
    if busy and max(named.values()) < ONE * total and tail < ONE:
        return out | {"workers": total}
    return out | {part: s * (1 - tail) for part, s in named.items()} | {"sample": total * tail}


def _of_slow_samples(said: Said, bases: Sequence[Said]) -> float:
    """Return the share of the fetching's growth that slow samples are to blame for, 0 where they are not most of it.

    A sample whose thread is put off the CPU looks slow: what fetches queued is taken off.
    """
    fetches = said.fetches
    if fetches is None or fetches.tail is None:
        return 0.0
    item, collate = (max(0.0, _grown(name, said, bases)) for name in ("item", "collate"))
    share = fetches.tail * item / (item + collate) if item else 0.0
    share -= said.breakdown.contention or 0.0
    return share if share >= TAIL else 0.0


def _grown(name: str, said: Said, bases: Sequence[Said]) -> float:
    """Return the growth of one of the fetches' figures, in seconds per sample."""
    usual = [getattr(base.fetches, name) or 0.0 for base in bases if base.fetches is not None]
    return (getattr(said.fetches, name) or 0.0) - (median(usual) if usual else 0.0)


def _stages(said: Said, bases: Sequence[Said]) -> dict[str, float]:
    """Return the growth of each stage of a sample, in seconds; without a look inside only collation is known."""
    if said.look is not None:
        usual = [base.look.stages for base in bases if base.look is not None]
        return {
            stage: s - sum(base.get(stage) or 0.0 for base in usual) / max(1, len(usual))
            for stage, s in said.look.stages.items()
            if s is not None
        }
    if said.fetches is None or said.fetches.item is None:
        return {}
    return {"collate": _grown("collate", said, bases), "item": _grown("item", said, bases) - _blocked_per_sample(said)}


def _blocked_per_sample(said: Said) -> float:
    """Return what of an item was io, as far as the breakdown can say."""
    share = (said.breakdown.phases[Phase.IO] or 0.0) / said.breakdown.data if said.breakdown.data else 0.0
    return share * ((said.fetches.item if said.fetches is not None else None) or 0.0)


def named(said: Said, bases: Sequence[Said], count: int = 1) -> tuple[str, ...]:
    """Return the parts that have grown most, the largest first."""
    grown = amounts(said, bases)
    return tuple(sorted(grown, key=lambda part: -grown[part])[:count])


def finding(said: Said, bases: Sequence[Said]) -> str | None:
    """Return the rule whose loss has grown most over the script without a dose; None where none has."""
    if said.findings is None:
        return None
    usual = [base.findings or {} for base in bases]
    grown = {rule: lost - median(base.get(rule, 0.0) for base in usual) for rule, lost in said.findings.items()}
    best = max(grown, key=lambda rule: grown[rule], default=None)
    return best if best is not None and grown[best] > 0 else None
