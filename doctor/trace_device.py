"""The device's side of a trace: what a steady window of its time went to, and why it stood idle.

For a window of length L: L = busy + idle, busy = compute ∪ communication ∪ copies, and
L = compute + comm_exposed + copy_exposed + idle, where comm_exposed is communication outside compute and copy_exposed
is copying outside both. Compute is every kernel that does not communicate, and memory sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fasttrain_doctor.evidence import Device
from fasttrain_doctor.trace_columns import Bools, Ints, Kind, Trace
from fasttrain_doctor.trace_host import LOADER, main_thread, phases, ranges, steps, updates
from fasttrain_doctor.trace_idle import idle_by_reason
from fasttrain_doctor.trace_intervals import Intervals, union

COMM = r"nccl|rccl|mscclpp|deepep|nvshmem|cross_device_reduce|multimem_all|(one|two)_shot_all_reduce"
ATTENTION = r"flash|fmha|sdpa|attn|attention"
CONV = r"conv|dgrad|wgrad|winograd|implicit_gemm|nchwToNhwc|miopenSp"
MATMUL = r"gemm|gemv|cutlass|cublas|nvjet|splitK|Cijk_"
# Names that only kernels on tensor cores (MFMA on AMD) carry; other names may hide them, so the share is a lower bound.
TENSOR_CORE = r"h884|s1688|c1688|16816|hmma|xmma_|tensorop|tf32|wgmma|nvjet|sm90_|flash_|_bf16|e4m3|fp8|Cijk_.*_MI\d"
TO_DEVICE = r"HtoD|Host -> Device|(Pageable|Pinned|Managed|Unknown) -> Device"
SMALL = 10.0  # microseconds: about what a launch costs, so a shorter kernel cannot hide the next one's
LATE_FEW = 0.05  # share of device rows without a launch above which reasons are doubtful


@dataclass(frozen=True, slots=True)
class Timeline:
    """One device's window. Times in microseconds (sums over the window), bytes likewise, shares in 0..1."""

    device: int
    window: tuple[float, float]
    steps: int | None  # whole steps in the window; None where the trace marks none
    busy: float
    compute: float
    comm: float
    comm_exposed: float
    copy: float
    copy_exposed: float
    idle: float
    idle_by_reason: Mapping[str, float]
    loader_exposed: float  # the loader's ranges while the device did nothing
    h2d: float
    h2d_exposed: float
    h2d_bytes: Mapping[str, int]  # by kind of source: pageable, pinned, managed, unknown
    phases: Mapping[str, float]  # device time by what launched it; "comm" and "h2d" apart
    kernels: int
    tensor_core: float | None
    small_count: float | None
    small_time: float | None
    notes: tuple[str, ...] = field(default=())

    @property
    def length(self) -> float:
        """Length of the window in microseconds."""
        return self.window[1] - self.window[0]


def launches(trace: Trace) -> Ints:
    """Return for each row of the trace the runtime call that launched it (by correlation), or -1."""
    calls = np.flatnonzero((trace.kind == Kind.RUNTIME) & (trace.correlation >= 0))
    found = np.full(len(trace.kind), -1, dtype=np.int64)
    if not len(calls):
        return found
    calls = calls[np.lexsort((trace.start[calls], trace.correlation[calls]))]
    work = np.flatnonzero(trace.on_device & (trace.correlation >= 0))
    numbers = trace.correlation[calls]
    at = np.minimum(np.searchsorted(numbers, trace.correlation[work]), len(calls) - 1)
    known = numbers[at] == trace.correlation[work]
    found[work[known]] = calls[at[known]]
    return found


def timeline(trace: Trace) -> Timeline | None:
    """Analyse the device that the loop's thread drives; None where no device did anything."""
    work = trace.on_device
    if not work.any():
        return None
    device = _device(trace)
    rows = np.flatnonzero(work & (trace.device == device))
    launch = launches(trace)
    low, high, whole, notes = _window(trace, rows, launch)
    rows = rows[(trace.end[rows] > low) & (trace.start[rows] < high)]
    kind, start, end = trace.kind[rows], trace.start[rows], trace.end[rows]
    comm_row = (kind == Kind.KERNEL) & trace.holding(COMM)[rows]
    copy_row = kind == Kind.COPY

    def covered(which: Bools) -> Intervals:
        return union(start[which], end[which]).clip(low, high)

    compute, comm, copy = covered(~comm_row & ~copy_row), covered(comm_row), covered(copy_row)
    busy = covered(np.ones(len(rows), dtype=np.bool_))
    gaps = busy.gaps(low, high)
    not_compute = comm.minus(compute)
    to_device = copy_row & trace.holding(TO_DEVICE)[rows]
    h2d = covered(to_device)
    unlinked = float((launch[rows] < 0).mean()) if len(rows) else 0.0
    if unlinked > LATE_FEW:
        notes.append(
            f"{unlinked:.0%} of the device's rows have no launch in the trace: reasons for idling are doubtful"
        )
    kernels = np.flatnonzero((kind == Kind.KERNEL) & (start >= low) & (start < high))
    loader = ranges(trace, trace.on_host & trace.called(LOADER), main_thread(trace))
    return Timeline(
        device=device,
        window=(low, high),
        steps=whole,
        busy=busy.length,
        compute=compute.length,
        comm=comm.length,
        comm_exposed=not_compute.length,
        copy=copy.length,
        copy_exposed=copy.minus(compute).minus(comm).length,
        idle=gaps.length,
        idle_by_reason=idle_by_reason(trace, rows, launch[rows], gaps),
        loader_exposed=gaps.both(loader).length,
        h2d=h2d.length,
        h2d_exposed=h2d.minus(covered(kind == Kind.KERNEL)).length,
        h2d_bytes=_bytes(trace, rows[to_device & (start >= low)]),
        phases=_phases(trace, rows[(start >= low) & (start < high)], launch),
        kernels=len(kernels),
        tensor_core=_tensor_core(trace, rows[kernels]),
        small_count=float((end[kernels] - start[kernels] < SMALL).mean()) if len(kernels) else None,
        small_time=_small_time(end[kernels] - start[kernels]),
        notes=tuple(notes),
    )


def device_metrics(trace: Trace) -> Device | None:
    """Return the timeline as shares of its window; None where no device did anything."""
    line = timeline(trace)
    if line is None or line.length <= 0:
        return None
    of = line.length
    return Device(
        busy=line.busy / of,
        compute=line.compute / of,
        comm_exposed=line.comm_exposed / of,
        copy_exposed=line.copy_exposed / of,
        idle=line.idle / of,
        idle_by_reason={reason: time / of for reason, time in line.idle_by_reason.items()},
        h2d_exposed=line.h2d_exposed / of,
        h2d_pageable_bytes=line.h2d_bytes.get("pageable", 0),
        h2d_pinned_bytes=line.h2d_bytes.get("pinned", 0),
        tensor_core=line.tensor_core,
        small_kernels=line.small_count,
    )


def _device(trace: Trace) -> int:
    """Return the device that worked longest: the one the loop's thread drives wherever one process has one device."""
    work = trace.on_device
    devices = np.unique(trace.device[work]).tolist()
    return int(max(devices, key=lambda one: ranges(trace, work & (trace.device == one)).length))


def _window(trace: Trace, rows: Ints, launch: Ints) -> tuple[float, float, int | None, list[str]]:
    """Choose the steady window of a device's rows: (from, to, whole steps in it, caveats).

    A device step ends with the last activity launched in the host step. Kernels of the step before the recording are
    in the first, and the last is cut short, so three steps or more give the ends of the first to the last but one.
    """
    first, last = float(trace.start[rows].min()), float(trace.end[rows].max())
    marks = steps(trace)
    if not len(marks.start):
        note = "no steps are marked: the window runs from the first device activity to the last, start-up included"
        return first, last, updates(trace), [note]
    linked = rows[launch[rows] >= 0]
    called = trace.start[launch[linked]]
    ends: list[float] = []
    worked: list[tuple[float, float]] = []
    for low, high in zip(marks.start.tolist(), marks.end.tolist(), strict=True):
        inside = linked[(called >= low) & (called < high)]
        if len(inside):
            ends.append(float(trace.end[inside].max()))
            worked.append((low, high))
    if len(ends) >= 3 and ends[-2] > ends[0]:
        return ends[0], ends[-2], len(ends) - 2, []
    if len(ends) == 2 and ends[1] > ends[0]:
        return ends[0], ends[1], 1, ["only two steps were recorded: the window is the second, which may be cut short"]
    low, high = worked[0] if worked else (float(marks.start[0]), float(marks.end[0]))
    note = "only one step was recorded: start-up and the profiler's own start are in it"
    return min(first, low), max(last, high), 1, [note]


def _bytes(trace: Trace, rows: Ints) -> dict[str, int]:
    """Sum the bytes of copies by the kind of memory they came from."""
    found: dict[str, int] = {}
    for row in rows.tolist():
        name = trace.names[trace.name[row]].lower()
        kind = next((kind for kind in ("pageable", "pinned", "managed") if kind in name.partition("->")[0]), "unknown")
        found[kind] = found.get(kind, 0) + max(int(trace.bytes[row]), 0)
    return found


def _phases(trace: Trace, rows: Ints, launch: Ints) -> dict[str, float]:
    """Sum device time by what it was: communication, copies to the device, else the phase of the launching call."""
    took = trace.end[rows] - trace.start[rows]
    comm = (trace.kind[rows] == Kind.KERNEL) & trace.holding(COMM)[rows]
    h2d = (trace.kind[rows] == Kind.COPY) & trace.holding(TO_DEVICE)[rows]
    found = {"comm": float(took[comm].sum()), "h2d": float(took[h2d].sum())}
    rest = ~comm & ~h2d
    linked = rest & (launch[rows] >= 0)
    for phase, seconds in zip(phases(trace, launch[rows[linked]]), took[linked].tolist(), strict=True):
        found[phase.value] = found.get(phase.value, 0.0) + seconds
    found["unknown"] = float(took[rest & ~linked].sum())
    return {name: time for name, time in found.items() if time > 0}


def _tensor_core(trace: Trace, kernels: Ints) -> float | None:
    """Return the share of matrix, convolution and attention time in kernels whose name says tensor core."""
    if trace.capability is not None and trace.capability < (7, 0):
        return None
    heavy = kernels[trace.holding(f"{ATTENTION}|{CONV}|{MATMUL}")[kernels] & ~trace.holding(COMM)[kernels]]
    took = trace.end[heavy] - trace.start[heavy]
    if not took.sum() > 0:
        return None
    return float(took[trace.holding(TENSOR_CORE)[heavy]].sum() / took.sum())


def _small_time(took: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    return float(took[took < SMALL].sum() / took.sum()) if took.sum() > 0 else None
