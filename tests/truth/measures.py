"""From blocks to figures: how often the cause is named, how far shares are off, the slope of found against planted. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.truth import notes
from tests.truth.blocks import Block
from tests.truth.causes import BY_PLACE, LOUD, Cause
from tests.truth.naming import UNNAMED, Said, excess, finding, named, seconds

NONE = "nothing"
NEIGHBOURS = 4  # blocks without a dose whose median is what the script takes by itself
WAITS = ("read", "sample", "lock", "pool", "spread")  # of the thread that fetches
QUEUED = 1 / 3  # of what they took, from which on waiting for a CPU counts as more than them
PHASES = ("io", "prepare", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class Case:
    """A block with a dose, and the blocks without one that ran nearest to it."""

    block: Block
    bases: tuple[Block, ...]

    @property
    def causes(self) -> list[Cause]:
        """What was planted, the largest first."""
        return [BY_PLACE[place] for place in sorted(self.block.doses, key=lambda p: -self.block.doses[p])]

    @property
    def said(self) -> tuple[Said, list[Said]]:
        """What the product says of the block and of its neighbours."""
        return self.block.said, [base.said for base in self.bases]


def cases(blocks: Sequence[Block]) -> list[Case]:
    """Pair each block that has a dose with its neighbours that have none; the blocks are one script's, in order."""
    without = [i for i, b in enumerate(blocks) if not b.doses]
    return [
        Case(block, tuple(blocks[j] for j in sorted(without, key=lambda j: abs(j - i))[:NEIGHBOURS]))
        for i, block in enumerate(blocks)
        if block.doses
    ]


def growth(case: Case) -> dict[str, float]:
    """Return by how much each part of the step has grown by the script's own stopwatch; empty where it has none."""
    parts = case.block.parts
    return {part: s - statistics.median(b.parts.get(part, 0.0) for b in case.bases) for part, s in parts.items()}


def is_truth(case: Case) -> bool:
    """Whether what was planted is what made the step longer, by the script's own clocks.

    On a busy machine other programs may take more from some part than was planted, or from the thread that wakes from a
    planted wait more than the wait: then waiting for a CPU is the primary cause. Decided without looking at what was found.
    """
    grown = growth(case)
    waits = [case.block.planted[place] for place in case.block.doses if place in WAITS]
    late = sum(t.queue for t in waits) > QUEUED * sum(t.wall for t in waits)
    return not late and (not grown or not notes.outgrown(grown, case.block.doses, 1.0))


def is_named(cause: Cause, answer: str, said: Said) -> bool:
    """Whether an answer names the cause; where no loader can be looked into, its phase is the finest name there is."""
    if answer == cause.answer:
        return True
    seen = said.look is not None and any(s is not None for s in said.look.stages.values())
    return not seen and answer in UNNAMED and answer in (cause.part, "item") and cause.in_data


@dataclass(frozen=True)
class Named:
    """How many cases were named right, and what was said of each cause: (cause, answer) -> cases."""

    right: int
    of: int
    matrix: Mapping[tuple[str, str], int]

    @property
    def share(self) -> float:
        """Share named right, in 0..1."""
        return self.right / self.of if self.of else 1.0


def by_attribution(single: Iterable[Case]) -> Named:
    """Name each single cause by what has grown most."""
    right, of = 0, 0
    matrix: Counter[tuple[str, str]] = Counter()
    for case in single:
        said, bases = case.said
        (answer,) = named(said, bases)
        cause = case.causes[0]
        good = is_named(cause, answer, said)
        right, of = right + good, of + 1
        matrix[cause.name, cause.answer if good else answer] += 1
    return Named(right, of, matrix)


def by_finding(single: Iterable[Case]) -> Named:
    """Name each cause of LOUD and more by the rule whose loss has grown most."""
    right, of = 0, 0
    matrix: Counter[tuple[str, str]] = Counter()
    for case in single:
        cause = case.causes[0]
        if not cause.rules or case.block.doses[cause.place] < LOUD:
            continue
        answer = finding(*case.said) or NONE
        right, of = right + (answer in cause.rules), of + 1
        matrix[cause.name, answer] += 1
    return Named(right, of, matrix)


def both_named(double: Iterable[Case]) -> tuple[int, int]:
    """Return in how many two-cause cases the two largest growths are the two causes, and of how many."""
    right, of = 0, 0
    for case in double:
        said, bases = case.said
        answers = named(said, bases, 2)
        found = all(any(is_named(cause, a, said) for a in answers) for cause in case.causes)
        right, of = right + found, of + 1
    return right, of


def false_alarms(blocks: Iterable[Block]) -> Counter[str]:
    """Return which rules speak on blocks without a dose, and on how many."""
    return Counter(rule for b in blocks if not b.doses for rule in (b.said.findings or {}))


# -- shares ------------------------------------------------------------------------------------------------------------


def true_shares(block: Block) -> dict[str, float] | None:
    """Return each phase's share of the step by the script's own clocks; None where a framework drives the loop."""
    if not block.parts:
        return None
    mean = block.said.breakdown.mean
    data = block.parts.get("data", 0.0)
    lock = block.planted["lock"].blocked if "lock" in block.planted else 0.0
    if block.script.workers:
        io, lock = data * block.blocked, data * block.locked
    else:
        io = sum(block.planted[p].blocked for p in ("read", "sample", "spread") if p in block.planted)
    known = {"io": io, "prepare": data - io - lock} | {p: block.parts.get(p, 0.0) for p in PHASES[2:5]}
    return {p: s / mean for p, s in known.items()} | {"other": 1 - sum(known.values()) / mean}


def found_shares(block: Block) -> dict[str, float]:
    """Return each phase's share of the step as the product says it."""
    said = block.said.breakdown
    shares = {str(phase): (s or 0.0) / said.mean for phase, s in said.phases.items()}
    return {phase: shares[phase] for phase in PHASES}


def share_errors(blocks: Iterable[Block]) -> dict[str, list[float]]:
    """Return by phase how far found shares are from true ones, in points of the step (0..100)."""
    out: dict[str, list[float]] = defaultdict(list)
    for block in blocks:
        true = true_shares(block)
        if true is not None:
            found = found_shares(block)
            for phase in PHASES:
                out[phase].append(100 * (found[phase] - true[phase]))
    return out


def planted_pairs(singles: Iterable[Case]) -> dict[str, list[tuple[float, float]]]:
    """Return by part the (planted, found) seconds per step of each single cause in the training thread.

    What a worker does is planted in the worker's time: how much of it makes the step longer, the loop's stopwatch says.
    """
    out: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for case in singles:
        cause = case.causes[0]
        grown = excess(*case.said)
        if case.block.script.workers:
            if case.block.parts:
                found = sum(grown.get(part, 0.0) for part in ("io", "prepare", "lock"))
                out["data"].append((growth(case)["data"], found))
            continue
        took = case.block.planted[cause.place]
        if cause.in_data:
            # A wait is that only while it is blocked; queueing for a CPU after it is preparation's.
            for part in ("io", "lock"):
                if part == cause.part or part == "io":
                    out[part].append((took.blocked if part == cause.part else 0.0, grown.get(part, 0.0)))
            out["prepare"].append(
                (took.wall if cause.part == "prepare" else took.wall - took.blocked, grown.get("prepare", 0.0))
            )
        else:
            # What the machine took from the part as well, the stopwatch knows.
            true = growth(case).get(cause.part, took.wall)
            out[cause.part].append((true, grown.get(cause.part, 0.0)))
    return out


def slope(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the slope of found against planted, by least squares with an intercept."""
    planted, found = np.array(pairs).T
    return float(np.polyfit(planted, found, 1)[0])


def unattributed(blocks: Iterable[Block]) -> list[float]:
    """Return ``other.python`` as a share of the step (0..1) wherever nothing was planted there."""
    return [seconds(b.said)["python"] / b.said.breakdown.mean for b in blocks if "python" not in b.doses]
