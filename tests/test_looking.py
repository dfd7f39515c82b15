"""When the parent looks inside, for how long, and what it says where it could not."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from fasttrain_doctor import looking
from fasttrain_doctor.tuners.bench import SessionEnded

from .test_look_facts import BREAKDOWN, IDLE


class Work:
    """As much of a diagnosis as the stage needs."""

    def __init__(self, folder, step=0.01, left=170.0):
        self.said, self.reasons = [], {}
        breakdown = SimpleNamespace(mean=step, samples_per_step=32)
        watched = SimpleNamespace(breakdown=breakdown, loader_fact=None, process=SimpleNamespace(pid=7))
        self.case = SimpleNamespace(watched=watched, look=None, missing=self.reasons.setdefault)
        self.progress = SimpleNamespace(say=self.said.append)
        self.writer = SimpleNamespace(run=SimpleNamespace(probe=folder))
        self.left = lambda: left

    def patience(self):
        return 10.0


class Session:
    """Answers one command; a script that has ended did so without an error."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []
        self.child = SimpleNamespace(wait=lambda seconds: 0)

    def ask(self, command, timeout):
        self.asked.append(command)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(("left", "seconds"), [(170.0, 2.0), (10.0, 0.4)])
def test_a_look_takes_two_seconds_or_less_where_the_budget_is_tight(tmp_path, left, seconds):
    session = Session({"failed": "no"})
    looking.look(Work(tmp_path, left=left), session)
    assert session.asked == [{"do": "look", "steps": 30, "seconds": pytest.approx(seconds)}]


def test_steps_too_slow_for_it_are_not_looked_into(tmp_path):
    work, session = Work(tmp_path, step=3.0), Session({})
    looking.look(work, session)
    assert not session.asked
    assert work.reasons == {"look": "two steps take 6.0 s, and the look had 4.0 s"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (SessionEnded("the script ended"), "the script ended"),
        ({"failed": "OSError: no room"}, "OSError: no room"),
        ({"steps": 30}, "the process that trains wrote nothing of it"),
    ],
)
def test_what_stood_in_the_way_is_said(tmp_path, answer, reason):
    work = Work(tmp_path)
    looking.look(work, Session(answer))
    assert work.reasons == {"look": reason}
    assert work.case.look is None


def test_one_ranks_inside_is_not_told_as_anothers(tmp_path):
    (tmp_path / "8.jsonl").write_text(json.dumps({"fact": "look", "pid": 8, "parent": None, **IDLE}) + "\n")
    work = Work(tmp_path)
    looking.look(work, Session({"steps": 10}))
    assert work.reasons == {"look": "only one rank can be looked into, and it is not the slowest"}


@pytest.mark.parametrize(("steps", "reasons"), [(12, {}), (2, {"look": "the script ended"})])
def test_of_a_script_that_ends_in_it_counts_what_was_seen_until_then(tmp_path, monkeypatch, steps, reasons):
    fact = {"fact": "look", "pid": 7, "parent": None, **IDLE, "steps": steps}
    (tmp_path / "7.jsonl").write_text(json.dumps(fact) + "\n")
    work = Work(tmp_path)
    work.case.watched.breakdown = BREAKDOWN
    monkeypatch.setattr(looking, "replace", lambda watched, breakdown: SimpleNamespace(breakdown=breakdown))
    looking.look(work, Session(SessionEnded("the script ended")))
    assert work.reasons == reasons
    assert (work.case.look.steps if work.case.look else None) == (None if reasons else steps)


def test_what_was_seen_and_the_waits_for_locks_are_put_into_the_case(tmp_path, monkeypatch):
    fact = {
        "fact": "look",
        "pid": 7,
        "parent": None,
        **IDLE,
        "loop_lock": 0.04,
        "loop_locks": [["/t.py", 3, "f", 0.04, 9]],
    }
    (tmp_path / "7.jsonl").write_text(json.dumps(fact) + "\n")
    work = Work(tmp_path)
    work.case.watched.breakdown = BREAKDOWN
    monkeypatch.setattr(looking, "replace", lambda watched, breakdown: SimpleNamespace(breakdown=breakdown))
    looking.look(work, Session({"steps": 10}))
    assert not work.reasons
    assert work.case.look.steps == 10
    assert work.case.watched.breakdown.other["lock"] == pytest.approx(0.004)
