"""Cuts one step of the training thread into labelled pieces that sum to it. Pure.

Every instant belongs to the innermost record that covers it; what no record covers is a gap, labelled by what came
before and what comes next. Blocked time inside a gap (wall time that the thread spent neither computing nor in a
hooked call) is a wait of the script's own and is kept apart from the computing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fasttrain_doctor.records import Call, Kind, Record, Span
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


def cut(
    step: Step,
    records: Sequence[Record],
    training: Sequence[int],
    before_forward: str | None,
    *,
    by_hand: bool = False,
) -> list[Piece]:
    """Cut a step into pieces in order of time.

    Args:
        step: the step.
        records: records of the training thread that overlap or touch it, ordered by start, outer before inner.
        training: numbers of the training loaders.
        before_forward: the label of what precedes a forward where the loop asks no loader, else None.
        by_hand: the update is the script's own and not seen: it is taken for what follows the last backward.
    """
    flat = _innermost(records, step.start, step.end)
    evaluation = _evaluation(records, step, training, before_forward is None)
    clocks = _clocks(records)
    pieces = [_label(p, flat, i, clocks, before_forward, by_hand) for i, p in enumerate(flat)]
    if evaluation is None:
        return pieces
    a, b = evaluation
    return [_inside(p, a, b) for p in pieces]


def _clocks(records: Sequence[Record]) -> dict[int, int]:
    """Return the thread's CPU time at each moment at which it was read."""
    out = {}
    for r in records:
        if r.cpu1:
            out[r.t0], out[r.t1] = r.cpu0, r.cpu1
    return out


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
        if r.t1 <= start or r.t0 >= end or r.kind in _NO_PIECE:
            continue
        while stack and stack[-1].t1 <= r.t0:
            upto(stack[-1].t1)
            stack.pop()
        if stack and stack[-1].kind is Kind.MARK:  # whatever ran within a pause is no step's
            continue
        upto(r.t0)
        stack.append(r)
    while stack:
        upto(stack[-1].t1)
        stack.pop()
    upto(end)
    return out


def _label(
    piece: Piece, flat: Sequence[Piece], i: int, clocks: Mapping[int, int], before_forward: str | None, by_hand: bool
) -> Piece:
    r = piece.record
    cpu = None
    if piece.t0 in clocks and piece.t1 in clocks:
        cpu = max(0, min(clocks[piece.t1] - clocks[piece.t0], piece.ns))
    if r is not None and r.kind is Kind.SPAN:
        return Piece(piece.t0, piece.t1, _SPANS.get(Span(r.flag), "python"), r, cpu)
    if r is not None and r.kind is not Kind.CLOSURE:
        return Piece(piece.t0, piece.t1, _PLAIN.get(r.kind, "python"), r, cpu)
    return Piece(piece.t0, piece.t1, _gap(flat, i, before_forward, by_hand), None, cpu)


_PLAIN = {
    Kind.NEXT: "data",
    Kind.FETCH: "data",
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.OPTIMIZER: "optimizer",
    Kind.GRADIENTS: "optimizer",
    Kind.UPDATE: "optimizer",
    Kind.COPY: "h2d",
    Kind.MARK: "pause",
}
_NO_PIECE = frozenset({Kind.ITERATOR, Kind.DEVICE, Kind.ITEMS, Kind.BETWEEN})
_TELLING = frozenset({Kind.NEXT, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER})
_COMPUTING = _TELLING - {Kind.NEXT}
_SCALING = 3  # autograd nodes
_ENDING = frozenset({Kind.OPTIMIZER, Kind.BACKWARD})  # what a batch has been used up after


def _neighbour(flat: Sequence[Piece], i: int, way: int, kinds: frozenset[Kind], looking: bool) -> Record | None:
    """Return the nearest record of these kinds; forwards without gradients only where ``looking``.

    The optimizer whose closure the piece is part of is none of its neighbours.
    """
    closure = flat[i].record
    j = i + way
    while 0 <= j < len(flat):
        r = flat[j].record
        if r is not None and r.kind in kinds and (looking or r.kind is not Kind.FORWARD or r.flag & Call.GRAD):
            around = closure is not None and r.t0 <= closure.t0 and closure.t1 <= r.t1
            if not around:
                return r
        j += way
    return None


def _gap(flat: Sequence[Piece], i: int, before_forward: str | None, by_hand: bool) -> str:
    """Label what no record covers by what came before it and what comes next.

    ``zero_grad``, clipping, copies, spans and pauses say nothing of it. The loss lies between forward and backward, where
    the next batch may be fetched as well; a model without modules between its batch and its backward. Where no loader is
    asked, the next batch is made before a forward, or after one that gave the loss itself.
    """
    asks = before_forward is None
    updated = _update_by_hand(flat, i)
    if updated is not None:
        before_forward = "made" if updated and before_forward == "python" else before_forward
        if not updated:
            return "python"
    before = _neighbour(flat, i, -1, _TELLING if asks else _COMPUTING, asks)  # where none is asked, others evaluate
    after = _neighbour(flat, i, 1, _TELLING, asks)
    computes = _neighbour(flat, i, 1, _COMPUTING, asks)
    trained = before is not None and before.kind is Kind.FORWARD
    if before_forward == "made" and before is not None and after is not None and _loss_is_there(before, after):
        return "made"
    if computes is not None and computes.kind is Kind.BACKWARD:
        at_it = after is computes and (before is None or before.kind is not Kind.BACKWARD)
        if at_it or trained:
            return "loss"
    if before is not None and trained and before.flag & Call.GRAD and asks and after is None:
        return "loss"  # the step ends before the backward: the next batch is fetched first
    if by_hand and before is not None and before.kind is Kind.BACKWARD and (after is None or after.kind is Kind.NEXT):
        return "update"
    if after is None or after.kind is not Kind.FORWARD:
        return "python"
    if trained:
        return "loss"
    if before_forward is not None and (before is None or before.kind in _ENDING):
        return before_forward
    return "python"


def _update_by_hand(flat: Sequence[Piece], i: int) -> bool | None:
    """Return whether an update by hand lies before a gap, False where it lies after it, None where there is none."""
    for pieces, lies_before in ((reversed(flat[:i]), True), (iter(flat[i + 1 :]), False)):
        near = (p.record for p in pieces if p.record is not None and p.record.kind in _TELLING | {Kind.UPDATE})
        found = next(near, None)
        if found is not None and found.kind is Kind.UPDATE and found.flag:
            return lies_before
    return None


def _loss_is_there(before: Record, after: Record) -> bool:
    """Whether a forward gave the loss and next to nothing is computed from it before its backward: scaled, at most."""
    gave = before.kind is Kind.FORWARD and before.flag & Call.LOSS
    return bool(gave) and after.kind is Kind.BACKWARD and after.c - before.c <= _SCALING


def _evaluation(records: Sequence[Record], step: Step, training: Sequence[int], asks: bool) -> tuple[int, int] | None:
    """Return where evaluation ran inside a step, from its first to its last sign.

    Where a loader is asked: requests of other loaders, and forwards without gradients after the update. Where none is,
    the step begins with the update: models that train but run in evaluation mode, before the training's own forward.
    """
    inside = [r for r in records if step.start <= r.t0 < step.end]
    calls = [r for r in inside if r.kind is Kind.FORWARD]
    looks = [r for r in calls if not r.flag & Call.GRAD]
    if asks:
        updated = max((r.t1 for r in inside if r.kind is Kind.OPTIMIZER), default=step.start)
        looks = [r for r in looks if r.t0 >= updated]
    else:
        trains = min((r.t0 for r in calls if r.flag & Call.GRAD and r.flag & Call.TRAINS), default=step.end)
        looks = [r for r in looks if r.flag & Call.EVAL and r.flag & Call.TRAINS and r.t0 < trains]
    others = [r for r in inside if r.kind is Kind.NEXT and r.a not in training]
    signs = [*looks, *others]
    if not signs:
        return None
    return min(r.t0 for r in signs), max(r.t1 for r in signs)


def waits(piece: Piece, blocked: int | None = None) -> int:
    """Return the ns of a gap that the script waited in, 0 where it is no more than the scheduler's doing.

    Args:
        piece: the gap.
        blocked: ns of it in which its thread was blocked, where that is known better than by its CPU time.
    """
    if piece.cpu is None:
        return 0
    idle = piece.ns - piece.cpu if blocked is None else blocked
    return idle if idle > max(_WAIT_SHARE * piece.ns, _WAIT_NS) else 0


def overlapping(records: Sequence[Record], steps: Sequence[Step]) -> list[list[Record]]:
    """Return for each step the records that overlap it or end where it starts; both are ordered by time."""
    out: list[list[Record]] = [[] for _ in steps]
    first = 0
    for r in records:
        while first < len(steps) and steps[first].end <= r.t0:
            first += 1
        j = first
        while j < len(steps) and steps[j].start <= r.t1:
            out[j].append(r)
            j += 1
    return out


def gaps_between(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return the intervals between consecutive steps that belong to none: ends of epochs."""
    return [(a.end, b.start) for a, b in pairwise(steps) if b.start > a.end]
