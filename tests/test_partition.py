"""A step is cut into pieces that sum to it, each labelled by what covers it or lies around it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.partition import Piece, cut, overlapping, waits
from fasttrain_doctor.records import Call, Kind, Record, Span
from fasttrain_doctor.steps import Step, find_steps
from tests.records_made import MS, TRAINING, Script, record

KINDS = [k for k in Kind if k not in (Kind.ITERATOR, Kind.DEVICE)]


def labels(pieces: list[Piece]) -> dict[str, float]:
    out: Counter[str] = Counter()
    for p in pieces:
        out[p.label] += p.ns
    return {label: ns / MS for label, ns in out.items()}


def middle(script: Script) -> dict[str, float]:
    """What the second of three or more steps consists of, in ms."""
    found = find_steps(script.process)
    before = None if found.found_by in ("loader", "backward") else "made"
    records = overlapping(script.process.records, found.steps)[1]
    return labels(cut(found.steps[1], records, found.loaders, before))


@st.composite
def nested(draw: st.DrawFn) -> list[Record]:
    """Calls of one thread: any two are apart or one is inside the other."""
    out: list[Record] = []

    def fill(start: int, end: int, depth: int) -> None:
        points = sorted(draw(st.lists(st.integers(start, end), max_size=6, unique=True)))
        for a, b in zip(points[::2], points[1::2], strict=False):
            kind, flag = draw(st.sampled_from(KINDS)), draw(st.integers(0, 6))
            flag = max(1, min(flag, 6)) if kind is Kind.SPAN else 1 if kind is Kind.MARK else flag
            out.append(Record(kind, flag, 1, draw(st.integers(0, 2)), a, b, a, b, draw(st.integers(0, 2)), 0, 0))
            if depth:
                fill(a, b, depth - 1)

    fill(0, 1000, 2)
    return sorted(out, key=lambda r: (r.t0, -r.t1))


@given(nested(), st.integers(0, 500), st.integers(1, 500), st.sampled_from([None, "made", "data"]))
def test_pieces_cover_the_step_once(records: list[Record], start: int, length: int, before: str | None) -> None:
    step = Step(start, start + length, 0, 1, 1)
    pieces = cut(step, overlapping(records, [step])[0], [1], before)
    assert pieces[0].t0 == step.start
    assert pieces[-1].t1 == step.end
    assert all(a.t1 == b.t0 for a, b in pairwise(pieces))
    assert all(p.ns > 0 and p.label and p.label != "gap" for p in pieces)
    assert all(p.cpu is None or 0 <= p.cpu <= p.ns for p in pieces)


def test_a_plain_step() -> None:
    script = Script()
    for _ in range(4):
        script.batch(4)
        script.gap(1)
        script.zero(0.5)
        script.forward(3)
        script.gap(2)  # the loss
        script.backward(5)
        script.update(2)
        script.gap(1)
    assert middle(script) == pytest.approx(
        {"data": 4, "python": 2, "optimizer": 2.5, "forward": 3, "loss": 2, "backward": 5}
    )


def test_the_loss_is_the_loss_also_before_zero_grad_and_around_the_next_batch() -> None:
    script = Script()
    for _ in range(5):
        script.forward(3)
        script.gap(2)
        script.batch(4)
        script.gap(1)
        script.zero(0.5)
        script.backward(5)
        script.update(2)
    assert middle(script)["loss"] == pytest.approx(3)


def test_a_batch_made_in_the_loop_lies_between_the_update_and_the_forward() -> None:
    script = Script()
    for _ in range(4):
        script.gap(3)
        script.zero(0.5)
        script.gap(1)
        script.forward(2)
        script.backward(2)
        script.update(2)
    assert middle(script) == pytest.approx({"made": 4, "optimizer": 2.5, "forward": 2, "backward": 2})


@pytest.mark.parametrize(("nodes", "label"), [(1, "made"), (9, "loss")])
def test_after_a_forward_that_gave_the_loss_the_next_batch_is_made(nodes: int, label: str) -> None:
    """Unless much is still computed from it: a penalty on the weights, say."""
    script = Script()
    for _ in range(4):
        script.forward(2, flag=TRAINING | Call.LOSS)
        script.gap(3)
        script.records.append(record(Kind.BACKWARD, script.now, script.now + 2, c=nodes))
        script.gap(2)
        script.update(2)
    assert middle(script) == pytest.approx({label: 3, "optimizer": 2, "forward": 2, "backward": 2})


def test_an_update_made_by_hand_lies_between_the_scripts_own_and_the_next_batch() -> None:
    script = Script()
    for _ in range(4):
        script.forward(2)
        script.backward(2)
        script.gap(1)
        script.records.append(record(Kind.UPDATE, script.now, script.now + 3, flag=1))
        script.gap(3)
        script.gap(4)
    found = find_steps(script.process)
    pieces = cut(found.steps[1], overlapping(script.process.records, found.steps)[1], [], "python")
    assert labels(pieces) == pytest.approx({"python": 1, "optimizer": 3, "made": 4, "forward": 2, "backward": 2})


def test_an_update_by_hand_that_is_not_seen_is_taken_for_what_follows_the_backward() -> None:
    script = Script()
    for _ in range(4):
        script.batch()
        script.forward(2)
        script.backward(2)
        script.gap(3)
    found = find_steps(script.process)
    records = overlapping(script.process.records, found.steps)[1]
    assert labels(cut(found.steps[1], records, found.loaders, None, by_hand=True))["update"] == pytest.approx(3)
    assert "update" not in labels(cut(found.steps[1], records, found.loaders, None))


def test_evaluation_after_the_update_is_no_forward() -> None:
    script = Script()
    for _ in range(4):
        script.train()
        script.gap(1)
        for _ in range(2):
            script.batch(5, loader=2)
            script.forward(5, flag=Call.EVAL | Call.TRAINS)
        script.gap(1)
    assert middle(script) == pytest.approx(
        {"data": 1, "forward": 1, "backward": 1, "optimizer": 1, "eval": 20, "python": 2}
    )


def test_what_runs_in_a_closure_is_not_the_optimizers() -> None:
    script = Script()
    for _ in range(4):
        script.batch(1)
        start = script.now
        script.gap(1)
        inner = script.now
        script.gap(2)
        script.forward(3)
        script.backward(3)
        script.gap(2)
        script.records.append(record(Kind.CLOSURE, inner, script.now))
        script.gap(4)
        script.records.append(record(Kind.OPTIMIZER, start, script.now))
    assert middle(script) == pytest.approx({"data": 1, "optimizer": 5, "python": 4, "forward": 3, "backward": 3})


def test_whatever_runs_in_a_pause_is_the_pauses() -> None:
    script = Script()
    for _ in range(4):
        script.train()
        start = script.now
        script.pause(10)
        script.records.append(record(Kind.SPAN, start + 2, start + 4, flag=Span.GC))
    assert middle(script)["pause"] == pytest.approx(10)


@given(ns=st.integers(1, 10**9), cpu=st.integers(0, 10**9))
def test_a_wait_is_never_more_than_the_gap(ns: int, cpu: int) -> None:
    assert 0 <= waits(Piece(0, ns, "loss", None, min(cpu, ns))) <= ns
    assert waits(Piece(0, ns, "loss", None, None)) == 0
