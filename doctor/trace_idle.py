"""Why a device stood idle: each gap is laid at the door of what ended it late.

A gap is ended by an activity that some host call launched. Until that call began, the host was late, and what the host
did meanwhile (on the launching thread, the loop's, and the backward engine's, for which the loop waits) is the reason; from then on the work was queued, and the reason
is on the device's side.
"""

from __future__ import annotations

import numpy as np

from fasttrain_doctor.trace_columns import Ints, Kind, Trace
from fasttrain_doctor.trace_host import FRAME, LOADER, OPTIMIZER_STEP, loop_threads, main_thread, ranges
from fasttrain_doctor.trace_intervals import Intervals, union

LATENCY = 10.0  # microseconds between call and start that a launch takes by itself; more is a dependency or a switch

SYNC = r"(cuda|hip|cu)\w*Synchronize$|(cuda|hip)Memcpy$|hipMemcpyWithStream$|aten::(item|_local_scalar_dense|nonzero)$"
ALLOCATOR = (
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostFree|HostRegister|HostUnregister)|cuMem(Alloc|Free|Create|Map|Unmap|Release)"
)
COPY = r"(cuda|hip|cu)Memcpy"

REASONS = (
    "loader",  # the loop waited for its next batch
    "sync",  # it waited for a result of the device
    "allocator",  # it allocated or freed device memory in the driver
    "copy",  # it sat in a copy call
    "optimizer",  # it ran the optimizer's own Python
    "dispatch",  # it ran operators, slower than the device
    "python",  # it ran something the trace does not show
    "latency",  # a launch on its way
    "wait",  # the work was queued, and waited on the device
    "graph",  # likewise, inside a graph
    "unlinked",  # the trace does not say what launched the next work
)


def idle_by_reason(trace: Trace, rows: Ints, launch: Ints, gaps: Intervals) -> dict[str, float]:
    """Split the gaps between device ``rows`` (``launch``: the row of each one's call, or -1) by reason, microseconds."""
    found = dict.fromkeys(REASONS, 0.0)
    if not len(gaps.start):
        return found
    order = np.argsort(trace.start[rows], kind="stable")
    at = np.searchsorted(trace.start[rows][order], gaps.end)
    # A gap that nothing ends (at the window's end) is the host's, on the loop's thread.
    ended = at < len(rows)
    by = np.where(ended, launch[order[np.minimum(at, len(rows) - 1)]], -1)
    called = np.where(by >= 0, trace.start[by], gaps.end)
    late_end = np.clip(called, gaps.start, gaps.end)
    queued = gaps.end - late_end
    graph = trace.holding(r"GraphLaunch")[by] & (by >= 0)
    quick = queued < LATENCY
    found["latency"] = float(queued[quick].sum())
    found["graph"] = float(queued[~quick & graph].sum())
    found["wait"] = float(queued[~quick & ~graph].sum())
    unknown = ended & (by < 0)
    main = main_thread(trace)
    # A thread that sits in the loader launches nothing: so much is known of these.
    open_ = union(gaps.start[unknown], gaps.end[unknown])
    rest = open_.minus(ranges(trace, trace.on_host & (trace.kind != Kind.RUNTIME) & trace.called(LOADER), main))
    found["loader"], found["unlinked"] = open_.length - rest.length, rest.length
    thread, loop = np.where(by >= 0, trace.thread[by], main), loop_threads(trace)
    for one in np.unique(thread[~unknown]).tolist():
        here = (thread == one) & ~unknown
        late = union(gaps.start[here], late_end[here])
        for reason, time in _host(trace, late, {one, *loop}).items():
            found[reason] += time
    return found


def _host(trace: Trace, late: Intervals, threads: set[int]) -> dict[str, float]:
    """Split intervals in which the host was late by what ``threads`` did, first match first."""
    theirs = trace.on_host & np.isin(trace.thread, list(threads))
    call = theirs & (trace.kind == Kind.RUNTIME)
    op = theirs & (trace.kind != Kind.RUNTIME)
    classes = (
        ("loader", op & trace.called(LOADER)),
        ("sync", theirs & trace.called(SYNC)),
        ("allocator", call & trace.called(ALLOCATOR)),
        ("copy", call & trace.called(COPY)),
        ("optimizer", op & trace.called(OPTIMIZER_STEP)),
        ("dispatch", op & ~trace.called(FRAME)),
    )
    found: dict[str, float] = {}
    for reason, rows in classes:
        rest = late.minus(ranges(trace, rows))
        found[reason] = late.length - rest.length
        late = rest
    return found | {"python": late.length}
