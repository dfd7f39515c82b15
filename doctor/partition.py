"""Cuts one step of the training thread into labelled pieces that sum to it. Pure.

Every instant belongs to the innermost record that covers it; what no record covers is a gap, labelled by what came
before and what comes next. Blocked time inside a gap (wall time that the thread spent neither computing nor in a
hooked call) is a wait of the script's own and is kept apart from the computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fasttrain_doctor.records import Kind, Mark, Record, Span
from fasttrain_doctor.steps import Step

_SPANS = {
    Span.SYNC: "sync",
    Span.CHECKPOINT: "checkpoint",
    Span.LOGGING: "logging",
    Span.COLLECTIVE: "collective",
    Span.GC: "gc",
    Span.LOCK: "lock",
}
# A gap between forward and backward is the loss: its blocked part is a wait of the script's only when it is more than
# the scheduler's doing.
_WAIT_SHARE = 0.2
_WAIT_NS = 500_000


@dataclass(frozen=True, slots=True)
class Piece:
    """``label`` is a phase or a part of ``other`` (see ``evidence``), "data" (to be split by the loader) or "gap".

    ``cpu`` is the thread's CPU time in it, None where unknown; ``record`` the covering one.
    """

    t0: int
    t1: int
    label: str
    record: Record | None = None
    cpu: int | None = None

    @property
    def ns(self) -> int:
        """Wall time."""
        return self.t1 - self.t0


def cut(step: Step, records: Sequence[Record], training: Sequence[int], by_loader: bool) -> list[Piece]:
    """Cut a step into pieces in order of time.

    Args:
        step: the step.
        records: records of the training thread that overlap it, ordered by start, outer before inner.
        training: numbers of the training loaders.
        by_loader: whether batches come from a loader; if not, what precedes the first forward is data preparation.
    """
    flat = _innermost(records, step.start, step.end)
    evaluation = _evaluation(records, step, training)
    pieces = [_label(p, flat, i, by_loader) for i, p in enumerate(flat)]
    if evaluation is None:
        return pieces
    a, b = evaluation
    return [_inside(p, a, b) for p in pieces]


def _inside(piece: Piece, a: int, b: int) -> Piece:
    if piece.t0 >= a and piece.t1 <= b and piece.label != "pause":
        return Piece(piece.t0, piece.t1, "eval", piece.record, piece.cpu)
    return piece


def _innermost(records: Sequence[Record], start: int, end: int) -> list[Piece]:
    """Split [start, end] so that each piece has one innermost covering record, or none."""
    out: list[Piece] = []
    stack: list[Record] = []
    at = start

    def upto(time: int) -> None:
        nonlocal at
        time = min(max(time, start), end)
        if time > at:
            top = stack[-1] if stack else None
            out.append(Piece(at, time, "", top))
            at = time

    for r in records:
        if r.t1 <= start or r.t0 >= end or r.kind in (Kind.ITERATOR, Kind.DEVICE):
            continue
        while stack and stack[-1].t1 <= r.t0:
            upto(stack[-1].t1)
            stack.pop()
        upto(r.t0)
        stack.append(r)
    while stack:
        upto(stack[-1].t1)
        stack.pop()
    upto(end)
    return out


def _label(piece: Piece, flat: Sequence[Piece], i: int, by_loader: bool) -> Piece:
    r = piece.record
    label = "gap"
    if r is not None:
        if r.kind is Kind.SPAN:
            label = _SPANS.get(Span(r.flag), "python")
        elif r.kind is Kind.OPTIMIZER:
            label = _in_optimizer(piece, flat, i)
        else:
            label = _PLAIN.get(r.kind, "python")
        if label != "gap":
            return Piece(piece.t0, piece.t1, label, r, _cpu(r) if r.t0 == piece.t0 and r.t1 == piece.t1 else None)
    before, after = _neighbour(flat, i, -1), _neighbour(flat, i, 1)
    return Piece(piece.t0, piece.t1, _gap(before, after, by_loader), None, _gap_cpu(before, after, piece))


_PLAIN = {
    Kind.NEXT: "data",
    Kind.FETCH: "data",
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.ZERO_GRAD: "optimizer",
    Kind.COPY: "h2d",
    Kind.MARK: "pause",
}


def _in_optimizer(piece: Piece, flat: Sequence[Piece], i: int) -> str:
    """Label a part of ``optimizer.step`` that no inner call covers: with a closure, the first part is a framework's."""
    inner = [p for p in flat if p.record is not None and p.record.kind is Kind.BACKWARD]
    r = piece.record
    assert r is not None
    if not any(r.t0 <= p.t0 and p.t1 <= r.t1 for p in inner):
        return "optimizer"
    before = _neighbour(flat, i, -1)
    if before is not None and before.kind is Kind.BACKWARD:
        return "optimizer"
    return "gap"


def _neighbour(flat: Sequence[Piece], i: int, way: int) -> Record | None:
    """Return the nearest record that says what the script was doing; spans and gc say nothing of that."""
    j = i + way
    while 0 <= j < len(flat):
        r = flat[j].record
        told = r is not None and r.kind is not Kind.SPAN and not (r.kind is Kind.MARK and r.flag == Mark.CONTROL)
        if told and not (r is flat[i].record and r is not None and r.kind is Kind.OPTIMIZER):
            return r
        j += way
    return None


def _gap(before: Record | None, after: Record | None, by_loader: bool) -> str:
    if after is not None:
        if after.kind is Kind.BACKWARD:
            return "loss" if before is None or before.kind is not Kind.BACKWARD else "python"
        if before is not None and before.kind is Kind.FORWARD and after.kind is Kind.FORWARD:
            return "loss"
        if not by_loader and after.kind in (Kind.FORWARD, Kind.ZERO_GRAD) and _starts(before):
            return "made"
    return "python"


def _starts(before: Record | None) -> bool:
    return before is None or before.kind in (Kind.OPTIMIZER, Kind.ZERO_GRAD)


def _cpu(r: Record) -> int | None:
    return r.cpu1 - r.cpu0 if r.cpu1 else None


def _gap_cpu(before: Record | None, after: Record | None, piece: Piece) -> int | None:
    """CPU time of a gap from the clocks of its neighbours, where both touch it."""
    if before is None or after is None or not before.cpu1 or not after.cpu1:
        return None
    if before.t1 != piece.t0 or after.t0 != piece.t1:
        return None
    return max(0, min(after.cpu0 - before.cpu1, piece.ns))


def _evaluation(records: Sequence[Record], step: Step, training: Sequence[int]) -> tuple[int, int] | None:
    """Return where evaluation ran inside a step: from its first to its last sign after the update."""
    inside = [r for r in records if step.start <= r.t0 < step.end]
    updated = max((r.t1 for r in inside if r.kind is Kind.OPTIMIZER), default=step.start)
    signs = [
        r
        for r in inside
        if (r.kind is Kind.NEXT and r.a not in training) or (r.kind is Kind.FORWARD and not r.flag and r.t0 >= updated)
    ]
    if not signs or not any(r.kind is Kind.FORWARD for r in signs):
        return None
    return min(r.t0 for r in signs), max(r.t1 for r in signs)


def waits(piece: Piece) -> int:
    """Return the ns of a gap that the script waited in, 0 where it is no more than the scheduler's doing."""
    if piece.cpu is None:
        return 0
    blocked = piece.ns - piece.cpu
    return blocked if blocked > max(_WAIT_SHARE * piece.ns, _WAIT_NS) else 0


def overlapping(records: Sequence[Record], steps: Sequence[Step]) -> list[list[Record]]:
    """Return for each step the records that overlap it; both are ordered by time."""
    out: list[list[Record]] = [[] for _ in steps]
    first = 0
    for r in records:
        while first < len(steps) and steps[first].end <= r.t0:
            first += 1
        j = first
        while j < len(steps) and steps[j].start < r.t1:
            out[j].append(r)
            j += 1
    return out


def gaps_between(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return the intervals between consecutive steps that belong to none: ends of epochs."""
    return [(a.end, b.start) for a, b in pairwise(steps) if b.start > a.end]
