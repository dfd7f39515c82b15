"""The summary on a terminal: 80 columns, colour only where it is a terminal and NO_COLOR is not set."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from fasttrain_doctor.diagnosis import LOOKED_AT
from fasttrain_doctor.reports.shown import Action, Fact, ReportView, Tried
from fasttrain_doctor.reports.trial_parts import STAGE_WORDS

WIDTH = 80
CONFIRMED = STAGE_WORDS["confirm"]
_RATIO_COLUMN = 54  # where a trial's speedup begins, when what was tried leaves room
_STYLES = {"verified": "green", "faster": "green", "slower": "yellow", "failed": "red", "changed-training": "yellow"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the summary; ``style`` is a rich style or empty."""

    text: str
    style: str = ""


def lines(view: ReportView, report: str | None = None) -> list[Line]:
    """Return the summary of ``view``; ``report`` is the path of the HTML report, when one was written."""
    out: list[Line] = []
    for alert in view.alerts:
        style = "bold red" if alert.grave else "yellow"
        out += _wrapped(f"{'error' if alert.grave else 'warning'}: {alert.title}", style)
        for item in alert.items:
            out += _wrapped(item, style, indent="  ")
        out.append(Line(""))
    out += _wrapped(view.headline, "bold")
    out += _wrapped(view.place, "dim", indent="  ") if view.place else []
    out += [Line(part) for part in _phases(view.phase_line)]
    for said in (view.floor_line, *view.inside_lines, *view.outside_lines):
        out += _wrapped(said, indent="  ", hang="    ") if said else []
    # The look stands for all it would have shown; most windows hold no end of an epoch, and short ones no reading at it.
    apart = {*LOOKED_AT, "epoch", "queued", *(fact.label for action in view.actions for fact in action.untried)}
    if absent := [fact for fact in view.not_measured if fact.label not in apart]:
        out += _wrapped(f"not measured: {_by_reason(absent)}", "dim", indent="  ")
    for action in view.actions:
        out += [Line(""), *_action(action)]
    if others := _others(view):
        out += [Line(""), Line("tried as well, though no finding names it:")]
        out += [line for tried in others for line in _tried(tried)]
    out += [Line(""), *_ending(view)]
    if report:
        out.append(Line(f"report: {report}"))  # one line, so that it can be clicked or copied
    return out


def text(view: ReportView, report: str | None = None) -> str:
    """Return the summary as plain text."""
    return "\n".join(line.text for line in lines(view, report)) + "\n"


def show(view: ReportView, file: IO[str], report: str | None = None) -> None:
    """Print the summary to ``file``."""
    from rich.text import Text

    from fasttrain_doctor.reports.printing import Console

    console = Console(file=file, soft_wrap=True, highlight=False, markup=False, emoji=False)
    for line in lines(view, report):
        console.print(Text(line.text, style=line.style if console.is_terminal else ""))


def _phases(parts: tuple[str, ...]) -> list[str]:
    if not parts:
        return []
    whole = f"  {' | '.join(parts)}   ms"
    if len(whole) <= WIDTH:
        return [whole]
    data = sum(part.split()[0] in {"data", "io", "prepare", "h2d"} for part in parts)
    return [f"  {' | '.join(parts[:data])}", f"  {' | '.join(parts[data:])}   ms"]


def _action(action: Action) -> list[Line]:
    out = _wrapped(f"{action.code} {action.rule}: {action.message}", "bold", hang="  ")
    for tried in action.tried:
        out += _tried(tried)
    if action.untried:
        out += _wrapped(f"= not tried: {_by_reason(action.untried)}", "dim", indent="  ", hang="    ")
    return out


def _by_reason(facts: Sequence[Fact]) -> str:
    """Word what is absent with its reason, each reason once."""
    named: dict[str, list[str]] = {}
    for fact in facts:
        named.setdefault(fact.text, []).append(fact.label)
    return "; ".join(f"{', '.join(names)} ({why})" if why else ", ".join(names) for why, names in named.items())


def _others(view: ReportView) -> list[Tried]:
    """Return the comparisons that no finding shows."""
    shown = {fix for action in view.actions for tried in action.tried for fix in tried.fixes}
    return [t for t in view.trials if t.interval is not None and t.stage != CONFIRMED and not shown & set(t.fixes)]


def _tried(tried: Tried) -> list[Line]:
    style = _STYLES.get(tried.key, "")
    left = f"  = {tried.verdict}: {tried.what}"
    if tried.interval is None:
        why = f": {tried.note}" if tried.note else ""
        return _wrapped(f"= {tried.verdict}: {tried.what}{why}", style, indent="  ", hang="    ")
    if len(left) < _RATIO_COLUMN:
        out = [Line(f"{left:<{_RATIO_COLUMN}}{tried.speedup}", style)]
    else:
        out = _wrapped(left.strip(), style, indent="  ", hang="    ")
        if len(out[-1].text) < _RATIO_COLUMN:
            out[-1] = Line(f"{out[-1].text:<{_RATIO_COLUMN}}{tried.speedup}", style)
        else:
            out.append(Line(f"{'':<{_RATIO_COLUMN}}{tried.speedup}", style))
    return out + (_wrapped(tried.note, "dim", indent="    ") if tried.note else [])


def _ending(view: ReportView) -> list[Line]:
    plan = view.plan
    if plan is None and view.tone == "broken" and view.alerts:
        out: list[Line] = []  # the alert at the top has said it
    elif plan is None:
        out = _wrapped(view.verdict, "bold", hang="  ")
    elif plan.confirmed:
        over = next((f"; {fact.text} {fact.label}" for fact in plan.facts if fact.label.startswith("over ")), "")
        out = _wrapped(f"tuned: {plan.speedup}, {plan.note}{over}", "bold green", hang="  ")
    else:
        out = _wrapped(f"candidate, not confirmed: {'; '.join(plan.lines)}", "bold yellow", hang="  ")
        out += _wrapped(f"{plan.speedup}; {plan.note}", "yellow", indent="  ")
    if view.next_command:
        out += _wrapped(f"next: {view.next_command}", hang="  ")
    return out


def _wrapped(said: str, style: str = "", *, indent: str = "", hang: str | None = None) -> list[Line]:
    printable = "".join(c if c.isprintable() else "?" for c in said)  # names must not steer the terminal
    wrapped = textwrap.wrap(
        printable, WIDTH, initial_indent=indent, subsequent_indent=indent if hang is None else hang,
        break_on_hyphens=False,
    )  # fmt: skip
    return [Line(part, style) for part in wrapped]
