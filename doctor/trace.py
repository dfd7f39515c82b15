"""Kineto traces: read one, and say what its operators and its device's time went to.

`read` gives columns; `operators` and `device_metrics` are what the deep pass adds to the evidence. Times are
microseconds inside the ``trace_*`` modules, as in the files, and seconds from here on.
"""

from __future__ import annotations

import numpy as np

from fasttrain_doctor.evidence import Operator, Phase
from fasttrain_doctor.trace_columns import Bools, Ints, Kind, Trace
from fasttrain_doctor.trace_device import COMM, TO_DEVICE, Timeline, device_metrics, launches, timeline
from fasttrain_doctor.trace_host import FRAME, enclosing, phases, steps, updates
from fasttrain_doctor.trace_intervals import Floats, Intervals
from fasttrain_doctor.trace_read import read

__all__ = ["Timeline", "Trace", "device_metrics", "operators", "read", "timeline"]

TOP = 10  # operators a phase


def operators(trace: Trace, top: int = TOP) -> list[Operator]:
    """Return the ``top`` operators of each phase by own time, largest first; seconds and calls per step.

    Where a device worked, time is the device's, under the operator that launched it; otherwise it is the CPU's, without
    what the operators it called took. Only whole steps count, where the trace marks steps.
    """
    line = timeline(trace)
    if line is None:
        return _on_cpu(trace, top)
    rows = np.flatnonzero(trace.on_device & (trace.device == line.device))
    rows = rows[(trace.start[rows] >= line.window[0]) & (trace.start[rows] < line.window[1])]
    return _on_device(trace, rows, line.steps or 1, top)


def _work(trace: Trace) -> Bools:
    """Operators proper: no markers, no engine or loader ranges, which only hold others."""
    wrapper = trace.called(rf"{FRAME}|autograd::engine::evaluate_function|Optimizer\.|enumerate\(Data")
    found: Bools = (trace.kind == Kind.OP) & ~wrapper
    return found


def _on_cpu(trace: Trace, top: int) -> list[Operator]:
    # Annotations take part in the nesting, so that an operator's own time ends where a wrapped range begins.
    rows = np.flatnonzero(trace.on_host & (trace.kind != Kind.RUNTIME) & ~trace.called(FRAME))
    if not len(rows):
        return []
    parents = enclosing(trace, rows)
    took = trace.end[rows] - trace.start[rows]
    child = parents >= 0
    own = np.maximum(took - np.bincount(parents[child], took[child], minlength=len(rows)), 0.0)
    marks = steps(trace)
    counted = _work(trace)[rows]
    if len(marks.start):
        counted &= Intervals(marks.start, marks.end).contains(trace.start[rows])
    names = [trace.names[i] for i in trace.name[rows[counted]].tolist()]
    split = phases(trace, rows[counted])
    return _top(split, names, own[counted], len(marks.start) or updates(trace) or 1, "cpu", top)


def _on_device(trace: Trace, rows: Ints, per: int, top: int) -> list[Operator]:
    launch = launches(trace)
    calls = np.unique(launch[rows][launch[rows] >= 0])
    host = np.flatnonzero(_work(trace) | np.isin(np.arange(len(trace.kind)), calls))
    parents = enclosing(trace, host)
    outer = np.full(len(trace.kind), -1, dtype=np.int64)
    outer[host] = np.where(parents >= 0, host[parents], -1)
    runtime = trace.kind == Kind.RUNTIME
    by = np.where(launch[rows] >= 0, outer[launch[rows]], -1)
    for _ in range(4):  # a driver call inside a runtime call inside the operator
        nested = (by >= 0) & runtime[by]
        if not nested.any():
            break
        by[nested] = outer[by[nested]]
    names = [trace.names[i] for i in np.where(by >= 0, trace.name[by], trace.name[rows]).tolist()]
    split = [Phase.OTHER] * len(rows)
    linked = np.flatnonzero(launch[rows] >= 0)
    for at, phase in zip(linked.tolist(), phases(trace, launch[rows[linked]]), strict=True):
        split[at] = phase
    comm, h2d = trace.holding(COMM)[rows], trace.holding(TO_DEVICE)[rows] & (trace.kind[rows] == Kind.COPY)
    for at in np.flatnonzero(comm).tolist():
        split[at] = Phase.OTHER
    for at in np.flatnonzero(h2d).tolist():
        split[at] = Phase.H2D
    return _top(split, names, trace.end[rows] - trace.start[rows], per, "cuda", top)


def _top(split: list[Phase], names: list[str], took: Floats, per: int, device: str, top: int) -> list[Operator]:
    sums: dict[tuple[Phase, str], tuple[float, int]] = {}
    for phase, name, time in zip(split, names, took.tolist(), strict=True):
        total, calls = sums.get((phase, name), (0.0, 0))
        sums[phase, name] = (total + time, calls + 1)
    made = [Operator(phase, name, t * 1e-6 / per, n / per, device) for (phase, name), (t, n) in sums.items() if t > 0]
    made.sort(key=lambda one: (-one.seconds, one.name))
    return [one for phase in Phase for one in [o for o in made if o.phase is phase][:top]]
