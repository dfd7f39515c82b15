"""The step as a report shows it: bars to one scale, phases, timeline, hottest lines, operators. Pure."""

from __future__ import annotations

from fasttrain_doctor.diagnosis import Diagnosis, OperatorFacts, StepTime
from fasttrain_doctor.reports import words
from fasttrain_doctor.reports.loader_parts import line_table
from fasttrain_doctor.reports.shown import Bar, Fact, Segment, Table, Timeline

_OPERATORS_SHOWN = 8


def reason(diagnosis: Diagnosis, what: str, otherwise: str = "no reason was recorded") -> str:
    """Return why ``what`` was not measured."""
    for entry in diagnosis.not_measured:
        if entry.what.lower() == what.lower():
            return entry.why
    for entry in diagnosis.not_measured:
        if what.lower() in entry.what.lower().replace(",", " ").split():
            return entry.why
    return otherwise


def phase_parts(diagnosis: Diagnosis) -> list[tuple[str, float]]:
    """Return the measured parts of the step in order; reads and preparation are one part where not told apart."""
    phases = diagnosis.phases or {}
    parts = [(name, value) for name in words.PHASES if (value := phases.get(name)) is not None]
    if diagnosis.data is not None and phases.get("io") is None and phases.get("prepare") is None:
        parts.insert(0, ("data", diagnosis.data))
    return parts


def bars(diagnosis: Diagnosis) -> tuple[Bar, ...]:
    """Return the measured step, its floor and the step with the tuned plan, on the scale of the longest."""
    step = diagnosis.step
    if step is None or step.mean <= 0:
        return ()
    parts = phase_parts(diagnosis)
    mean = words.seconds(step.mean)
    wanted = [("as it is", step.mean, parts, _how_step(diagnosis))]
    if diagnosis.floor is not None:
        how = (
            "the same steps with one cached batch handed out again and again: what is left when data cost nothing; "
            f"at most {words.times(diagnosis.floor.ceiling)} from the data side"
        )
        wanted.append(("floor", diagnosis.floor.step, [("floor", diagnosis.floor.step)], how))
    if (tuned := diagnosis.tuned) is not None:
        seconds, how = tuned.step, "measured in the fresh runs that confirmed the plan"
        if seconds is None:
            seconds, how = step.mean / tuned.speedup.mid, f"{mean} divided by the confirmed {tuned.speedup.mid:.2f}x"
        wanted.append(("tuned", seconds, [("tuned", seconds)], how))
    longest = max(seconds for _, seconds, _, _ in wanted)
    return tuple(
        Bar(label, words.seconds(seconds), seconds / longest, _segments(diagnosis, pieces, how), how)
        for label, seconds, pieces, how in wanted
    )


def _segments(diagnosis: Diagnosis, parts: list[tuple[str, float]], how: str) -> tuple[Segment, ...]:
    total = sum(value for _, value in parts)
    shares = words.shares([value for _, value in parts])
    return tuple(
        Segment(
            key=name,
            label=name,
            seconds=value,
            width=value / total if total > 0 else 0.0,
            text=words.seconds(value),
            share=share,
            how=_how_phase(diagnosis, name) if name in words.PHASE_MEANING else how,
        )
        for (name, value), share in zip(parts, shares, strict=True)
    )


def _how_step(diagnosis: Diagnosis) -> str:
    steps = diagnosis.steps
    clock = {"device": "the device's clock", "host": "the host's clock", None: "an unknown clock"}[diagnosis.clock]
    return (
        f"mean of {words.count(steps.measured, 'step')} after {words.count(steps.warmup, 'warm-up step')}, on {clock}"
        if steps
        else f"mean, on {clock}"
    )


def _how_phase(diagnosis: Diagnosis, name: str) -> str:
    note = "; inferred, not seen directly" if name in diagnosis.inferred else ""
    return f"{words.PHASE_MEANING[name]} ({_how_step(diagnosis)}{note})"


def rest(diagnosis: Diagnosis) -> tuple[Fact, ...]:
    """Return what a step is made of in three parts, which is what speaks for leaving it alone."""
    parts = dict(phase_parts(diagnosis))
    groups = {
        "computing": ("forward", "backward", "optimizer"),
        "data": ("data", "io", "prepare", "h2d"),
        "all else": ("other",),
    }
    measured = {said: [parts[n] for n in names if n in parts] for said, names in groups.items()}
    present = {said: sum(values) for said, values in measured.items() if values}
    shares = words.shares(list(present.values()))
    return tuple(
        Fact(
            said,
            share,
            f"{words.seconds(present[said])} of each step: {', '.join(n for n in groups[said] if n in parts)}",
        )
        for said, share in zip(present, shares, strict=True)
    )


def phase_table(diagnosis: Diagnosis) -> Table | None:
    """Return the phases, the parts of ``other`` and work hidden behind compute, as a table."""
    if diagnosis.step is None:
        return None
    parts = dict(phase_parts(diagnosis))
    shares = dict(zip(parts, words.shares(list(parts.values())), strict=True))
    hidden = diagnosis.hidden or {}
    rows, widths = [], []
    total = sum(parts.values())
    for name in (("data",) if "data" in parts else ()) + words.PHASES:
        behind = hidden.get(name)
        rows.append(
            (
                name,
                words.seconds(parts[name]) if name in parts else "not measured",
                shares.get(name, ""),
                words.seconds(behind) if behind else "",
                words.PHASE_MEANING[name] if name in parts else reason(diagnosis, name),
            )
        )
        widths.append(parts.get(name, 0.0) / total if total > 0 else 0.0)
    for name, value in (diagnosis.other or {}).items():
        if value:
            rows.append((f"other: {name}", words.seconds(value), "", "", ""))
            widths.append(0.0)
    return Table("Phases", ("phase", "per step", "share", "hidden", "what it is"), tuple(rows), tuple(widths))


def timeline(diagnosis: Diagnosis) -> Timeline | None:
    """Return every step of the window with its kind; an outlier took over 1.5 times the steps' 90th percentile."""
    step, values = diagnosis.step, diagnosis.step_seconds
    if step is None or not values:
        return None
    warmup = diagnosis.steps.warmup if diagnosis.steps else 0
    limit = 1.5 * step.p90
    kinds = ["warm-up" if i < warmup else "outlier" if v > limit else "steady" for i, v in enumerate(values)]
    outliers = kinds.count("outlier")
    said = f" {words.count(outliers, 'step')} took more than 1.5 times that." if outliers else ""
    return Timeline(
        seconds=tuple(values),
        kinds=tuple(kinds),
        mean=step.mean,
        caption=f"Mean {words.seconds(step.mean)}, median {words.seconds(step.median)}; four in five steps took "
        f"{words.seconds(step.p10)} to {words.seconds(step.p90)}.{said} {_warmup_words(warmup)}",
    )


def _warmup_words(warmup: int) -> str:
    if not warmup:
        return ""
    return f"Left out of the means, as warm-up: the first {words.count(warmup, 'step')}."


def hot_lines(diagnosis: Diagnosis) -> Table | None:
    """Return the lines of the loop that cost a step most."""
    found = diagnosis.loop.hot_lines if diagnosis.loop else None
    return line_table("Hottest lines of the loop", found, "per step") if found else None


def operators(diagnosis: Diagnosis) -> tuple[Table, ...]:
    """Return the costliest operators of each phase."""
    by_phase: dict[str, list[OperatorFacts]] = {}
    for operator in diagnosis.operators or ():
        by_phase.setdefault(operator.phase, []).append(operator)
    order = [*words.PHASES, *sorted(set(by_phase) - set(words.PHASES))]
    return tuple(_operator_table(phase, by_phase[phase], diagnosis.step) for phase in order if phase in by_phase)


def _operator_table(phase: str, found: list[OperatorFacts], step: StepTime | None) -> Table:
    top = sorted(found, key=lambda operator: -operator.seconds)[:_OPERATORS_SHOWN]
    longest = top[0].seconds
    rows = tuple(
        (
            operator.name,
            words.seconds(operator.seconds),
            words.share(operator.seconds / step.mean) if step and step.mean > 0 else "",
            f"{operator.calls:g}",
            operator.device,
        )
        for operator in top
    )
    head = ("operator", "per step", "of the step", "calls", "on")
    return Table(phase, head, rows, tuple(o.seconds / longest if longest else 0.0 for o in top))
