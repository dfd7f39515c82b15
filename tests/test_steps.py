"""Steps are found in the records alone: which loader trains, where a step ends, what is no step."""

from __future__ import annotations

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
