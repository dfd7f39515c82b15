"""From what processes saw to what is reported of it, and the waits for locks in the breakdown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fasttrain_doctor.evidence import OTHER_PARTS, STAGES, Breakdown, Phase
from fasttrain_doctor.look import FEWEST, Waits, look_of, waits_of, with_locks

LINE = ["/train.py", 7, "__getitem__", 0.5, 100]


def fact(**more):
    """One process's fact: 100 samples fetched in a second."""
    return {
        "main": False, "worker": 0, "loader": 1, "samples": 100, "fetches": 10, "fetch": 1.0, "sampled": 900,
        "known": True, "stages": dict.fromkeys(STAGES, 0.0), "lock": 0.0, "waits": {"io": 0.0, "lock": 0.0, "pool": 0.0},
        "lines": [], "locks": [], "loop_lines": [], "loop_lock": 0.0, "loop_locks": [], "transforms": [], "why": None,
        "opens": 0, "reads": [0, 0, 0],
    } | more  # fmt: skip


def stages(**seconds):
    return dict.fromkeys(STAGES, 0.0) | seconds


IDLE = fact(main=True, samples=0, fetch=0.0)


def test_seconds_are_per_sample_over_all_processes():
    facts = [IDLE, fact(stages=stages(read=0.2, item=0.4)), fact(samples=300, stages=stages(read=0.6))]
    look = look_of(facts, steps=10, samples_per_step=40.0)
    assert look.samples == 400
    assert look.stages["read"] == pytest.approx(0.8 / 400)
    assert look.stages["item"] == pytest.approx(0.4 / 400)


def test_what_the_training_process_does_for_samples_is_per_sample_handed_to_it():
    main = IDLE | {"stages": stages(transfer=0.2, sampler=0.1)}
    look = look_of([main, fact(stages=stages(transfer=0.1))], steps=10, samples_per_step=20.0)
    assert look.stages["transfer"] == pytest.approx(0.2 / 200 + 0.1 / 100)
    assert look.stages["sampler"] == pytest.approx(0.1 / 200)


def test_reading_is_not_known_where_the_kernel_does_not_say_what_threads_wait_in():
    assert look_of([IDLE, fact(known=False)], 10, None).stages["read"] is None


def test_nothing_is_said_of_samples_where_none_was_fetched():
    look = look_of([IDLE], steps=10, samples_per_step=None)
    assert set(look.stages.values()) == {None}
    assert (look.transforms, look.opens, look.read_bytes, look.blocked_on_lock) == (None, None, None, None)


def test_transforms_are_added_up_over_workers_in_the_order_of_their_first_call():
    one = [["transform", 0, "Crop", 0.2, 100, 20], ["transform", 1, "Flip", 0.1, 100, 10]]
    two = [["transform", 0, "Crop", 0.4, 100, 5]]
    look = look_of([IDLE, fact(transforms=one), fact(transforms=two)], 10, None)
    assert look.transforms == (("Crop", pytest.approx(0.003)), ("Flip", pytest.approx(0.0005)))


def test_transforms_are_null_for_all_where_one_could_not_be_timed():
    entry = ["transform", 0, "Crop", 0.2, 100, 20]
    assert look_of([IDLE, fact(transforms=[entry], why="no list")], 10, None).transforms is None


def test_lines_are_added_up_and_those_seen_too_seldom_are_not_named():
    seldom = ["/train.py", 9, "__getitem__", 0.9, 2]
    look = look_of([IDLE, fact(lines=[LINE, seldom]), fact(lines=[LINE, seldom])], 10, None)
    assert FEWEST == 5
    assert [(line.line, line.seconds) for line in look.item_lines] == [(7, pytest.approx(1.0 / 200))]


def test_the_loops_lines_are_the_training_process_alone_and_per_step():
    main = IDLE | {"loop_lines": [["/train.py", 20, "train", 0.5, 60]]}
    look = look_of([main, fact(loop_lines=[LINE])], steps=10, samples_per_step=None)
    assert [(line.place, line.seconds) for line in look.loop_lines] == [("/train.py:20", pytest.approx(0.05))]


def test_the_share_of_locks_is_of_all_blocked_time():
    waits = {"io": 0.1, "lock": 0.3, "pool": 0.2}
    look = look_of([IDLE, fact(waits=waits, lock=0.3, locks=[LINE])], 10, None)
    assert look.blocked_on_lock == pytest.approx(0.5)
    assert look.lock_place == "/train.py:7"
    seldom = [*LINE[:4], 2]
    assert look_of([IDLE, fact(waits=waits, lock=0.3, locks=[seldom])], 10, None).blocked_on_lock == 0


def test_reads_are_counted_per_sample():
    look = look_of([IDLE, fact(opens=200, reads=[300, 50_000, 10_000])], 10, None)
    assert (look.opens, look.read_calls, look.read_bytes, look.storage_bytes) == (2, 3, 500, 100)
    assert look_of([IDLE, fact(reads=None)], 10, None).read_bytes is None


BREAKDOWN = Breakdown(
    mean=0.1, median=0.1, p10=0.1, p90=0.1, measured=50, warmup=5, found_by="loader", batches_per_step=1,
    samples_per_step=32, clock="host",
    phases={Phase.IO: 0.04, Phase.PREPARE: 0.02, Phase.H2D: None, Phase.FORWARD: 0.01, Phase.BACKWARD: 0.01,
            Phase.OPTIMIZER: 0.01, Phase.OTHER: 0.01},
    data=0.06, other=dict.fromkeys(OTHER_PARTS) | {"python": 0.01},
    hidden={"io": None, "prepare": None, "h2d": None}, contention=0.0,
)  # fmt: skip


def total(b: Breakdown) -> float:
    return sum(seconds for seconds in b.phases.values() if seconds is not None)


@pytest.mark.parametrize(
    ("waits", "io", "prepare"),
    [
        (Waits(lock=0.5, io=0.0, loop=0.0), 0.01, 0.02),  # its holder slept: all of it passed for I/O
        (Waits(lock=0.3, io=0.6, loop=0.0), 0.036, 0.006),  # its holder computed: most of it passed for preparation
        (Waits(lock=1.0, io=0.0, loop=0.0), 0.0, 0.0),
        (Waits(lock=0.0, io=0.5, loop=0.0), 0.04, 0.02),
    ],
)
def test_waits_for_locks_leave_io_and_preparation_and_the_step_is_the_same(waits, io, prepare):
    b = with_locks(BREAKDOWN, waits)
    assert b.phases[Phase.IO] == pytest.approx(io)
    assert b.phases[Phase.PREPARE] == pytest.approx(prepare)
    assert b.data == pytest.approx(io + prepare)
    assert b.other["lock"] == pytest.approx(0.06 - io - prepare)
    assert b.phases[Phase.OTHER] == pytest.approx(0.01 + b.other["lock"])
    assert total(b) == pytest.approx(total(BREAKDOWN))


def test_what_a_batch_made_in_the_loop_waits_for_a_lock_is_no_read():
    made = replace(BREAKDOWN, inferred=("io", "prepare"))
    b = with_locks(made, Waits(lock=0.0, io=0.0, loop=0.004))
    assert b.other["lock"] == pytest.approx(0.004)
    assert b.phases[Phase.IO] == pytest.approx(BREAKDOWN.phases[Phase.IO] - 0.004)
    assert b.other["python"] == BREAKDOWN.other["python"]
    assert total(b) == pytest.approx(total(BREAKDOWN))


def test_what_the_loop_waits_for_a_lock_leaves_its_python():
    b = with_locks(BREAKDOWN, Waits(lock=0.0, io=0.0, loop=0.004))
    assert b.other["lock"] == pytest.approx(0.004)
    assert b.other["python"] == pytest.approx(0.006)
    assert b.phases == BREAKDOWN.phases


def test_no_lock_is_zero_once_looked_for_and_null_before():
    assert BREAKDOWN.other["lock"] is None
    assert with_locks(BREAKDOWN, Waits(0.0, 0.0, 0.0)).other["lock"] == 0


def test_where_io_and_preparation_cannot_be_told_apart_nothing_is_moved():
    blurred = replace(BREAKDOWN, phases={**BREAKDOWN.phases, Phase.IO: None, Phase.PREPARE: None})
    assert with_locks(blurred, Waits(0.5, 0.0, 0.0)).phases == blurred.phases


def test_hidden_work_is_no_wait_for_a_lock_either():
    b = replace(BREAKDOWN, hidden={"io": 0.03, "prepare": 0.01, "h2d": None})
    assert with_locks(b, Waits(0.5, 0.0, 0.0)).hidden["io"] == pytest.approx(0.01)


def test_waits_seen_too_seldom_are_none():
    often = fact(lock=0.2, waits={"io": 0.4, "lock": 0.2, "pool": 0.0}, locks=[LINE])
    assert waits_of([IDLE, often], 10) == Waits(lock=0.2, io=0.4, loop=0.0)
    assert waits_of([IDLE, often | {"locks": [[*LINE[:4], 3]]}], 10).lock == 0
