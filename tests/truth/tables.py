"""Figures as text: two confusion matrices and a table of measures with their goals, in markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.truth import measures
from tests.truth.blocks import Block
from tests.truth.causes import CAUSES, LOUD
from tests.truth.measures import Case, Named
from tests.truth.running import CALM

FRAMEWORKS = ("lightning", "transformers")


@dataclass(frozen=True)
class Figure:
    """One measure: what was found, and the goal it is held to."""

    what: str
    found: str
    goal: str
    met: bool


def row(cells: Iterable[str]) -> str:
    """Return one row of a markdown table."""
    return "| " + " | ".join(cells) + " |"


def matrix(matrix: Mapping[tuple[str, str], int]) -> str:
    """Return a confusion matrix: a row for each cause, a column for each answer; the most frequent answer is bold."""
    names = [c.name for c in CAUSES if any(cause == c.name for cause, _ in matrix)]
    answers = list(dict.fromkeys(c.answer for c in CAUSES))
    seen = {answer for _, answer in matrix}
    columns = [a for a in answers if a in seen] + sorted(seen - set(answers))
    lines = [row(["planted", *columns]), row(["---", *(["---:"] * len(columns))])]
    for name in names:
        counts = [matrix.get((name, answer), 0) for answer in columns]
        most = max(counts)
        lines.append(row([name, *(f"**{n}**" if n == most else str(n) if n else "" for n in counts)]))
    return "\n".join(lines)


def listed(matrix: Mapping[tuple[str, str], int]) -> str:
    """Return which rules named each cause and how often, for matrices that are mostly empty."""
    lines = [row(["planted", "rule that names it (cases)"]), row(["---", "---"])]
    for cause in CAUSES:
        counts = {answer: n for (name, answer), n in matrix.items() if name == cause.name}
        if counts:
            told = ", ".join(
                f"`{rule}` {n}" if rule != measures.NONE else f"nothing {n}"
                for rule, n in sorted(counts.items(), key=lambda e: -e[1])
            )
            lines.append(row([cause.name, told]))
    return "\n".join(lines)


def figures(blocks: Sequence[Block], single: Sequence[Case], double: Sequence[Case]) -> list[Figure]:
    """Return every measure of a run."""
    named, loud = measures.by_attribution(single), measures.by_finding(single)
    both, pairs = measures.both_named(double)
    out = [_share("primary cause named right", named, 0.97)]
    if pairs:
        out.append(
            Figure("both of two causes named", f"{both} of {pairs} ({both / pairs:.1%})", "≥ 90 %", both >= 0.9 * pairs)
        )
    out.append(_share(f"named by the rule that gained most, from {LOUD:.0%} of the step on", loud, 0.97))
    errors = {phase: np.abs(found) for phase, found in measures.share_errors(blocks).items()}
    if errors:
        pooled = np.concatenate(list(errors.values()))
        out += [
            _points("mean error of a phase's share", float(pooled.mean()), 2),
            _points("95th percentile of it", float(np.percentile(pooled, 95)), 5),
            _points("io against prepare, mean error", float(np.mean([*errors["io"], *errors["prepare"]])), 3),
        ]
    every = measures.planted_pairs(single)
    for part, pairs_found in [*every.items(), ("all parts", [pair for found in every.values() for pair in found])]:
        slope = measures.slope(pairs_found)
        out.append(
            Figure(f"slope of found against planted, {part}", f"{slope:.3f}", "1.00 ± 0.05", abs(slope - 1) <= 0.05)
        )
    plain = [b for b in blocks if b.script.family not in FRAMEWORKS]
    for what, chosen in (
        ("not attributed, mean", plain),
        (
            "not attributed where the machine was calm",
            [b for b in plain if b.stray is not None and b.stray < CALM * b.said.breakdown.mean],
        ),
        ("a framework's own Python, mean", [b for b in blocks if b.script.family in FRAMEWORKS]),
    ):
        shares = measures.unattributed(chosen)
        if shares:
            mean = float(np.mean(shares))
            goal = "≤ 2 % of the step" if what.startswith("not") else "no goal: it is Python between phases"
            out.append(Figure(what, f"{mean:.1%}", goal, mean <= 0.02 or what.startswith("a ")))
    return out


def _share(what: str, named: Named, goal: float) -> Figure:
    return Figure(
        what,
        f"{named.right} of {named.of} ({named.share:.1%})",
        f"≥ {goal:.0%}".replace("%", " %"),
        named.share >= goal,
    )


def _points(what: str, found: float, goal: float) -> Figure:
    return Figure(what, f"{found:.2f} points", f"≤ {goal:g} points", found <= goal)


def measured(found: Sequence[Figure]) -> str:
    """Return the table of measures."""
    lines = [row(["measure", "found", "goal", ""]), row(["---", "---", "---", "---"])]
    return "\n".join([*lines, *(row([f.what, f.found, f.goal, "" if f.met else "missed"]) for f in found)])
