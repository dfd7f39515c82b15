"""The summary on a terminal: 80 columns, colour only where it is a terminal and NO_COLOR is not set."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import IO

from fasttrain_doctor.reports.shown import Action, ReportView, Tried

WIDTH = 80
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
    out += _wrapped(view.floor_line, indent="  ") if view.floor_line else []
    if view.not_measured:
        said = "; ".join(f"{fact.label} ({fact.text})" for fact in view.not_measured)
        out += _wrapped(f"not measured: {said}", "dim", indent="  ")
    for action in view.actions:
        out += [Line(""), *_action(action)]
    out += [Line(""), *_ending(view)]
    if report:
        out.append(Line(f"report: {report}"))  # one line, so that it can be clicked or copied
    return out


def text(view: ReportView, report: str | None = None) -> str:
    """Return the summary as plain text."""
    return "\n".join(line.text for line in lines(view, report)) + "\n"


def show(view: ReportView, file: IO[str], report: str | None = None) -> None:
    """Print the summary to ``file``."""
    from rich.console import Console
    from rich.text import Text

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
        out += _wrapped(f"= not tried: {', '.join(action.untried)}", "dim", indent="  ", hang="    ")
    return out


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
