"""Steps are found in the records alone: which loader trains, where a step ends, what is no step."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.records import Call, Kind
from fasttrain_doctor.steps import find_steps
from tests.records_made import Script, process, record


def test_no_update_no_steps() -> None:
    script = Script()
    for _ in range(5):
        script.batch()
        script.forward(flag=0)
    assert find_steps(script.process).steps == ()


@given(epochs=st.integers(1, 4), length=st.integers(1, 6), accumulate=st.integers(1, 4))
def test_a_step_is_one_optimizer_cycle(epochs: int, length: int, accumulate: int) -> None:
    script = Script()
    for _ in range(epochs):
        for _ in range(length):
            for k in range(accumulate):
                script.batch()
                script.forward()
                script.backward()
                if k == accumulate - 1:
                    script.update()
        script.batch(end=True)
        script.gap(50)
    found = find_steps(script.process)
    assert found.found_by == "loader"
    assert [s.batches for s in found.steps] == [accumulate] * (epochs * length)
    assert sum(s.first_of_epoch for s in found.steps) == epochs
    assert max(s.seconds for s in found.steps) < 0.02  # nothing of what lies between epochs


def test_a_short_last_group_is_a_step_of_fewer_batches() -> None:
    script = Script()
    for k in range(5):
        script.batch()
        script.forward()
        script.backward()
        if k in (3, 4):
            script.update()
    script.batch(end=True)
    assert [s.batches for s in find_steps(script.process).steps] == [4, 1]


@given(steps=st.integers(2, 12), critics=st.integers(1, 4))
def test_without_a_loader_the_cycle_of_optimizers_closes_a_step(steps: int, critics: int) -> None:
    script = Script()
    for _ in range(steps):
        for optimizer in [1] * critics + [2]:
            script.forward()
            script.backward()
            script.update(optimizer=optimizer)
    found = find_steps(script.process)
    assert (found.found_by, found.anchor, len(found.steps)) == ("optimizer", 2, steps - 1)
    assert {s.updates for s in found.steps} == {critics + 1}


def test_a_loader_that_is_no_longer_asked_gives_way_to_the_updates() -> None:
    script = Script()
    for _ in range(4):
        script.train()
    for _ in range(20):
        script.forward()
        script.backward()
        script.update()
    found = find_steps(script.process)
    assert found.found_by == "optimizer"
    assert len(found.steps) == 23


def test_evaluation_does_not_make_its_loader_a_training_one() -> None:
    script = Script()
    for _ in range(4):
        script.batch(loader=2)
        script.forward(flag=0)
        script.train()
    found = find_steps(script.process)
    assert (found.loaders, found.eval_loaders) == ((1,), (2,))


def test_a_teachers_forward_is_no_evaluation() -> None:
    script = Script()
    for _ in range(4):
        script.batch(loader=1)
        script.batch(loader=2, ms=3)
        script.forward(flag=Call.EVAL)
        script.forward()
        script.backward()
        script.update()
    assert find_steps(script.process).loaders == (2, 1)  # the one waited for most first


def test_requests_of_another_thread_are_no_borders() -> None:
    script = Script()
    for _ in range(6):
        script.forward()
        script.backward()
        script.update()
    ahead = [record(Kind.NEXT, t, t + 0.5, thread=2, a=7) for t in range(1, 20)]
    found = find_steps(process(script.records + ahead))
    assert (found.found_by, found.loaders, len(found.steps)) == ("optimizer", (7,), 5)


@pytest.mark.parametrize("pause", [0.0, 5.0, 5000.0])
def test_a_pause_is_not_part_of_a_steps_time(pause: float) -> None:
    script = Script()
    for _ in range(4):
        script.batch()
        script.pause(pause)
        script.forward()
        script.backward()
        script.update()
    assert [s.seconds for s in find_steps(script.process).steps] == pytest.approx([0.004] * 3)


def counted(epochs: int, validates: bool) -> Script:
    """Epochs of three counted batches, the loader begun anew for each and never asked for a fourth."""
    script = Script()
    for _ in range(epochs):
        script.records.append(record(Kind.ITERATOR, script.now, script.now + 0.1, a=1))
        script.gap(5)
        for _ in range(3):
            script.train()
        if validates:
            script.gap(2)
            script.batch(40, loader=2)
            script.forward(flag=Call.EVAL | Call.TRAINS)
    return script


@pytest.mark.parametrize("validates", [False, True])
def test_an_epoch_ends_where_its_loader_is_begun_anew_or_another_is_turned_to(validates: bool) -> None:
    found = find_steps(counted(4, validates).process)
    assert len(found.steps) == 11  # nothing follows the last
    assert [s.first_of_epoch for s in found.steps] == [True, False, False] * 3 + [True, False]
    assert max(s.seconds for s in found.steps) <= 0.006


def test_an_epoch_of_as_many_batches_as_the_loader_has_ends_where_another_is_turned_to() -> None:
    script = counted(4, validates=True)
    endless = [r for r in script.records if r.kind is not Kind.ITERATOR]
    facts = [{"fact": "loader", "id": 1, "length": 3}]
    known, unknown = (replace(process(endless), facts=tuple(f)) for f in (facts, []))
    assert max(s.seconds for s in find_steps(known).steps) <= 0.011
    assert max(s.seconds for s in find_steps(unknown).steps) > 0.04  # an evaluation within an epoch is a step's


def test_the_second_of_two_loaders_may_begin_anew_within_a_step() -> None:
    script = Script()
    for i in range(8):
        script.batch(loader=1)
        if i % 3 == 2:
            script.batch(loader=2, end=True)
        script.batch(loader=2)
        script.forward()
        script.backward()
        script.update()
    found = find_steps(script.process)
    assert [s.first_of_epoch for s in found.steps] == [True] + [False] * 6
    assert {s.batches for s in found.steps} == {1}


@pytest.mark.parametrize("thread", [1, 2])
def test_optimizers_that_step_in_hooks_of_a_backward_make_one_update_with_it(thread: int) -> None:
    """A device's own thread runs its hooks: the thread that trains is the one that called the backward."""
    script = Script()
    for _ in range(6):
        script.forward()
        start = script.now
        script.backward(4)
        script.records += [
            record(Kind.OPTIMIZER, start + k, start + k + 0.5, obj=k, thread=thread, flag=0) for k in (1, 2, 3)
        ]
        script.gap(1)
    found = find_steps(script.process)
    assert (found.found_by, found.thread, len(found.steps)) == ("optimizer", 1, 5)
    assert {s.updates for s in found.steps} == {3}
    assert [s.seconds for s in found.steps] == pytest.approx([0.006] * 5)  # from the end of a backward to the next


def test_an_update_that_a_scaler_skips_ends_a_step() -> None:
    script = Script()
    for i in range(8):
        script.batch()
        script.forward()
        script.backward()
        script.records.append(record(Kind.OPTIMIZER, script.now, script.now + 1, flag=int(i % 3 == 0)))
        script.gap(1)
    assert [s.batches for s in find_steps(script.process).steps] == [1] * 7


def test_what_finding_steps_takes_grows_as_their_number() -> None:
    script = Script()
    for _ in range(12_000):
        script.forward(0.01)
        script.backward(0.01)
        script.update(0.01)
    began = time.process_time()
    assert len(find_steps(script.process).steps) == 11_999
    assert time.process_time() - began < 3, "each against every other takes ten times that"
