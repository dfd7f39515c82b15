"""The host's side of a trace: steps, ranges with a meaning, which phase a moment on a thread belongs to, nesting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.trace_columns import Bools, Ints, Kind, Trace
from fasttrain_doctor.trace_intervals import Floats, Intervals, union

# `ftd::` are the deep pass's own markers.
STEP = r"(ProfilerStep|ftd::step)#\d+"
FORWARD = r"ftd::forward"
LOADER = r"enumerate\(Data(Loader|Pipe)\)#|ftd::data"
BACKWARD = r"autograd::engine::evaluate_function"
OPTIMIZER = r"Optimizer\.(step|zero_grad)#"
OPTIMIZER_STEP = r"Optimizer\.step#"
FRAME = rf"{STEP}|{FORWARD}|PyTorch Profiler|ftd::"  # markers round everything: no work of their own


@dataclass(frozen=True, slots=True)
class Steps:
    """Host steps in order, microseconds."""

    start: Floats
    end: Floats


def steps(trace: Trace) -> Steps:
    """Find the steps. A step's range may stand in the trace twice (on host and device): host rows count, once each."""
    rows = np.flatnonzero(trace.on_host & (trace.kind != Kind.RUNTIME) & trace.called(STEP))
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    rows = rows[np.sort(np.unique(trace.name[rows], return_index=True)[1])]
    start, end = trace.start[rows], trace.end[rows]
    # A range that the profiler opened and closed again with no step in it is none.
    work = np.sort(trace.start[trace.on_host & ~trace.called(FRAME)])
    held = np.searchsorted(work, end) > np.searchsorted(work, start)
    return Steps(start[held], end[held])


def updates(trace: Trace) -> int | None:
    """Count the updates where no steps are marked: those of the optimizer that stepped most. None: no optimizer."""
    rows = trace.on_host & (trace.kind != Kind.RUNTIME) & trace.called(OPTIMIZER_STEP)
    return int(np.bincount(trace.name[rows]).max()) if rows.any() else None


def main_thread(trace: Trace) -> int:
    """Return the thread that runs the loop: of the step marks, the loader, the optimizer, else of most operators."""
    for pattern in (STEP, LOADER, OPTIMIZER):
        rows = trace.on_host & (trace.kind != Kind.RUNTIME) & trace.called(pattern)
        if rows.any():
            return int(trace.thread[np.flatnonzero(rows)[0]])
    rows = trace.on_host & (trace.kind != Kind.RUNTIME)
    if not rows.any():
        rows = trace.on_host
    return int(np.bincount(trace.thread[rows]).argmax()) if rows.any() else -1


def loop_threads(trace: Trace) -> set[int]:
    """Return the threads the loop runs on: its own, and those of the backward engine, for which it waits."""
    engine = trace.thread[trace.on_host & trace.called(BACKWARD)]
    return {main_thread(trace), *np.unique(engine).tolist(), *backward_threads(trace)}


def ranges(trace: Trace, rows: Bools, thread: int | None = None) -> Intervals:
    """Merge rows, of one thread or of all, into a set of intervals."""
    if thread is not None:
        rows = rows & (trace.thread == thread)
    return union(trace.start[rows], trace.end[rows])


def backward_threads(trace: Trace) -> set[int]:
    """Return the threads that only run backward, in traces older than the engine's own ranges (August 2022)."""
    if (trace.on_host & trace.called(BACKWARD)).any():
        return set()
    ran = trace.on_host & trace.called(r"\w+Backward\d*$|torch::autograd::AccumulateGrad")
    return set(np.unique(trace.thread[ran]).tolist()) - {main_thread(trace)}


def phases(trace: Trace, rows: Ints) -> list[Phase]:
    """Return the phase each host row was started in: by the range that holds its start, on its own thread.

    A backward inside an optimizer's step (a closure) is backward; what no range holds is forward, loss included.
    """
    found = np.full(len(rows), list(Phase).index(Phase.FORWARD))
    marks = trace.on_host
    old = backward_threads(trace)
    start, thread = trace.start[rows], trace.thread[rows]
    by_weight = (
        (Phase.PREPARE, LOADER),
        (Phase.OPTIMIZER, OPTIMIZER),
        (Phase.FORWARD, FORWARD),
        (Phase.BACKWARD, BACKWARD),
    )
    wanted = [(list(Phase).index(phase), marks & trace.called(pattern)) for phase, pattern in by_weight]
    for one in np.unique(thread).tolist():
        here = np.flatnonzero(thread == one)
        if one in old:
            found[here] = list(Phase).index(Phase.BACKWARD)
            continue
        for number, ranged in wanted:
            inside = ranges(trace, ranged, one).contains(start[here])
            found[here[inside]] = number
    every = list(Phase)
    return [every[i] for i in found.tolist()]


def enclosing(trace: Trace, rows: Ints) -> Ints:
    """Return for each of ``rows`` (host rows) the position in ``rows`` of the innermost other row round it, or -1.

    Ends may lie a microsecond past the parent's in traces that store whole microseconds: a row belongs to the range in
    which it starts.
    """
    order = rows[np.lexsort((-trace.end[rows], trace.start[rows], trace.thread[rows]))]
    back = np.empty(len(trace.kind), dtype=np.int64)
    back[rows] = np.arange(len(rows))
    parents = np.full(len(rows), -1, dtype=np.int64)
    stack: list[tuple[float, int]] = []
    current = -1
    columns = zip(
        back[order].tolist(),
        trace.thread[order].tolist(),
        trace.start[order].tolist(),
        trace.end[order].tolist(),
        strict=True,
    )
    for at, thread, start, end in columns:
        if thread != current:
            stack.clear()
            current = thread
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack:
            parents[at] = stack[-1][1]
        stack.append((end, at))
    return parents
