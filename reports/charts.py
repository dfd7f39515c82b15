"""Charts as plotly figures in plain data, drawn by the script in the report. Pure.

A colour written ``$name`` is the CSS variable ``--name`` of the theme in use. Names from the user's code are escaped:
plotly reads a few tags in labels.
"""

from __future__ import annotations

from html import escape
from typing import Any

from fasttrain_doctor.reports.shown import Chart, ReportView, Tried

Figure = dict[str, Any]

_CURVE_COLOURS = ("$c-forward", "$c-io", "$c-prepare", "$c-h2d", "$c-optimizer", "$c-backward", "$c-other", "$ink")
_LABEL = 34  # characters of a trial's name beside its chart


def charts(view: ReportView) -> dict[str, Figure]:
    """Return the figures a report draws, by the id of the element that holds each."""
    figures: dict[str, Figure] = {}
    if view.timeline is not None:
        figures["chart-timeline"] = _timeline(view)
    measured = [(i, trial) for i, trial in enumerate(view.trials, 1) if trial.interval is not None]
    if measured:
        figures["chart-trials"] = _trials(measured, view.noise)
        figures["chart-best"] = _best(view.trials)
    forecast = [(i, trial) for i, trial in measured if trial.expected_ratio is not None]
    if forecast:
        figures["chart-expected"] = _expected(forecast)
    for chart in view.hardware:
        figures[f"chart-hardware-{chart.key}"] = _hardware(chart)
    return figures


def _timeline(view: ReportView) -> Figure:
    line = view.timeline
    assert line is not None
    traces: list[Figure] = []
    for kind, colour, symbol in (
        ("warm-up", "$muted", "circle-open"),
        ("steady", "$c-forward", "circle"),
        ("outlier", "$bad", "diamond"),
    ):
        at = [i for i, found in enumerate(line.kinds) if found == kind]
        if at:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": kind, "x": at,
                    "y": [line.seconds[i] * 1e3 for i in at],
                    "marker": {"color": colour, "size": 6, "symbol": symbol},
                    "hovertemplate": f"step %{{x}}, {kind}<br>%{{y:.4g}} ms<extra></extra>",
                }
            )  # fmt: skip
    mean = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": line.mean * 1e3, "y1": line.mean * 1e3,
        "line": {"color": "$ink", "width": 1, "dash": "dot"},
    }  # fmt: skip
    layout = _layout("step", "ms", height=280)
    layout["yaxis"]["rangemode"] = "tozero"
    layout["shapes"] = [mean]
    return {"data": traces, "layout": layout}


def _trials(trials: list[tuple[int, Tried]], noise: float | None) -> Figure:
    names = [f"{number}. {_short(' + '.join(trial.fixes))}" for number, trial in trials]
    dots_x = [ratio for _, trial in trials for ratio in trial.ratios]
    dots_y = [name for name, (_, trial) in zip(names, trials, strict=True) for _ in trial.ratios]
    spans = [trial.interval for _, trial in trials if trial.interval is not None]
    colours = [
        "$good" if t.key in {"faster", "verified"} else "$bad" if t.key == "slower" else "$muted" for _, t in trials
    ]
    traces: list[Figure] = [
        {
            "type": "scatter", "mode": "markers", "name": "one pair", "x": dots_x, "y": dots_y,
            "marker": {"color": "$c-forward", "size": 7, "opacity": 0.45},
            "hovertemplate": "one pair<br>%{x:.3f}x<extra></extra>",
        },
        {
            "type": "scatter", "mode": "markers", "name": "speedup, 95% interval", "x": [s.mid for s in spans], "y": names,
            "marker": {"color": colours, "size": 10, "symbol": "line-ns-open", "line": {"width": 3, "color": colours}},
            "error_x": {
                "type": "data", "symmetric": False, "array": [s.high - s.mid for s in spans],
                "arrayminus": [s.mid - s.low for s in spans], "color": "$ink", "thickness": 1.5, "width": 5,
            },
            "customdata": [[s.low, s.high, escape(t.what)] for s, (_, t) in zip(spans, trials, strict=True)],
            "hovertemplate": "%{customdata[2]}<br>%{x:.2f}x (%{customdata[0]:.2f} to %{customdata[1]:.2f})<extra></extra>",
        },
    ]  # fmt: skip
    layout = _layout("speedup", "", height=110 + 34 * len(trials))
    layout["xaxis"] |= {"ticksuffix": "x", "type": "log", "nticks": 6, "tickangle": 0}
    layout["yaxis"] |= {"autorange": "reversed", "automargin": True, "type": "category"}
    layout["shapes"] = [_upright(1.0)] + ([_band(noise)] if noise else [])
    return {"data": traces, "layout": layout}


def _best(trials: tuple[Tried, ...]) -> Figure:
    spent, best, x, y = 0.0, 1.0, [0.0], [1.0]
    for trial in trials:
        spent += trial.cost
        if trial.total is not None and trial.key in {"faster", "verified"} and trial.stage != "confirmation":
            best = max(best, trial.total)
        x.append(spent)
        y.append(best)
    trace = {
        "type": "scatter", "mode": "lines+markers", "name": "best so far", "x": x, "y": y,
        "line": {"color": "$good", "shape": "hv", "width": 2}, "marker": {"size": 6},
        "hovertemplate": "after %{x:.0f} s of trials<br>%{y:.2f}x<extra></extra>",
    }  # fmt: skip
    layout = _layout("time spent on trials (s)", "best so far", height=240)
    layout["yaxis"]["ticksuffix"] = "x"
    return {"data": [trace], "layout": layout}


def _expected(trials: list[tuple[int, Tried]]) -> Figure:
    expected = [trial.expected_ratio for _, trial in trials if trial.expected_ratio is not None]
    measured = [trial.interval.mid for _, trial in trials if trial.interval is not None]
    ends = [min(expected + measured) * 0.95, max(expected + measured) * 1.05]
    traces = [
        {
            "type": "scatter", "mode": "lines", "name": "as forecast", "x": ends, "y": ends,
            "line": {"color": "$muted", "width": 1, "dash": "dot"}, "hoverinfo": "skip",
        },
        {
            "type": "scatter", "mode": "markers", "name": "trial", "x": expected, "y": measured,
            "text": [f"{number}. {_short(trial.what)}" for number, trial in trials],
            "marker": {"color": "$c-forward", "size": 10},
            "hovertemplate": "%{text}<br>expected %{x:.2f}x, measured %{y:.2f}x<extra></extra>",
        },
    ]  # fmt: skip
    layout = _layout("expected", "measured", height=300)
    layout["xaxis"]["ticksuffix"] = layout["yaxis"]["ticksuffix"] = "x"
    return {"data": traces, "layout": layout}


def _hardware(chart: Chart) -> Figure:
    traces = [
        {
            "type": "scatter", "mode": "lines", "name": escape(curve.name), "x": list(curve.times),
            "y": list(curve.values), "line": {"color": _CURVE_COLOURS[i % len(_CURVE_COLOURS)], "width": 1.5},
            "hovertemplate": f"%{{x:.1f}} s<br>%{{y:.4g}} {chart.unit}<extra>{escape(curve.name)}</extra>",
        }
        for i, curve in enumerate(chart.curves)
    ]  # fmt: skip
    layout = _layout("seconds", chart.unit, height=230)
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": traces, "layout": layout}


def _layout(x: str, y: str, height: int) -> Figure:
    axis = {"gridcolor": "$line", "zerolinecolor": "$line", "linecolor": "$line", "title": {"standoff": 8}}
    return {
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "$muted", "size": 12},
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"color": "$ink"}},
        "hoverlabel": {"bgcolor": "$card", "bordercolor": "$line", "font": {"color": "$ink"}},
        "xaxis": {**axis, "title": {"text": x, "standoff": 8}},
        "yaxis": {**axis, "title": {"text": y, "standoff": 8}},
    }


def _upright(x: float) -> Figure:
    return {
        "type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x, "line": {"color": "$muted", "width": 1},
    }  # fmt: skip


def _band(noise: float) -> Figure:
    return {
        "type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": 1 / (1 + noise), "x1": 1 + noise, "layer": "below",
        "fillcolor": "$line", "line": {"width": 0},
    }  # fmt: skip


def _short(name: str) -> str:
    return escape(name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…")
