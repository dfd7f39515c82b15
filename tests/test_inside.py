"""What is made public of the loader's inside and of the window: all there is, and for each null a reason."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fasttrain_doctor.case import Case
from fasttrain_doctor.diagnosis import LOOKED_AT, Diagnosis
from fasttrain_doctor.evidence import Evidence, HotLine, Look
from fasttrain_doctor.gather import Watched
from fasttrain_doctor.inside import hot_lines, pressure_facts
from fasttrain_doctor.loop_source import training_loop
from fasttrain_doctor.reports import console
from fasttrain_doctor.reports.view import view
from fasttrain_doctor.sampling import Sample
from fasttrain_doctor.schema import decode
from tests.evidence_samples import CPU, FETCHES, LOOK, evidences
from tests.test_epochs import three_epochs, understood


def case(watched: Watched | None = None, **fields: object) -> Case:
    return Case("t.py", ["python", "t.py"], "now", CPU, watched or understood(three_epochs()), **fields)


def reasons(diagnosis: Diagnosis) -> dict[str, str]:
    return {entry.what: entry.why for entry in diagnosis.not_measured}


def nulls(diagnosis: Diagnosis) -> set[str]:
    """The parts that are null, by the names under which their reasons stand."""
    loader, loop = diagnosis.loader, diagnosis.loop
    assert loader is not None
    assert loop is not None
    names = ("transforms", "hot_lines", "stages", "reads", "lock", "fetches")
    found = {name for name in names if getattr(loader, name) is None}
    found |= {name for name in ("pressure", "debug", "startup", "floor", "queued") if getattr(diagnosis, name) is None}
    return found | ({"loop.hot_lines"} if loop.hot_lines is None else set())


LOOKS = {
    "none": None,
    "of everything": LOOK,
    "without transforms": replace(LOOK, transforms=None, blocked_on_lock=None),
    "of no sample": Look(samples=0, steps=10),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_what_is_null_has_its_reason_and_what_is_there_has_none(look):
    diagnosis = case(look=look).diagnosis()
    told = {*LOOKED_AT, "fetches", "pressure", "debug", "startup", "queued"}
    assert nulls(diagnosis) - {"floor"} == set(reasons(diagnosis)) & told


def test_the_reason_why_there_was_no_look_stands_for_all_it_would_have_shown():
    slow = case()
    slow.missing("look", "two steps take 9.0 s")
    said = reasons(slow.diagnosis())
    assert {said[name] for name in ("look", *LOOKED_AT)} == {"two steps take 9.0 s"}


def test_a_window_without_the_end_of_an_epoch_says_so():
    assert "epoch" not in reasons(case().diagnosis())
    script = three_epochs()
    script.records = script.records[:20]
    assert reasons(case(understood(script)).diagnosis())["epoch"] == "no end of an epoch fell into the window"


def test_what_the_look_and_the_records_show_is_public(tmp_path: Path):
    source = tmp_path / "data.py"
    source.write_text("def f():\n    load(token='hf_abcdefghijklmnop')\n")
    look = replace(
        LOOK,
        transforms=(("Crop", 0.002), ("Flip", 0.001)),
        item_lines=(HotLine(str(source), 2, "f", 0.5), HotLine("gone.py", 7, "g", 0.1)),
        loop_lines=(HotLine("gone.py", 9, "main", 0.2),),
        opens=2.0,
        blocked_on_lock=0.25,
        lock_place="data.py:3",
    )
    watched = replace(understood(three_epochs()), fetches=FETCHES)
    first = watched.window.every[0].start
    samples = [Sample(t=first + i * 10_000_000, waiting_io=0.5) for i in range(9)]
    diagnosis = case(watched, look=look, samples=samples).diagnosis()
    loader, pressure = diagnosis.loader, diagnosis.pressure
    assert loader is not None
    assert [(t.name, t.seconds) for t in loader.transforms or ()] == [("Crop", 0.002), ("Flip", 0.001)]
    assert [h.code for h in loader.hot_lines or ()] == ["load(token='***')", None]
    assert (loader.reads.opens, loader.lock.share, loader.lock.place) == (2.0, 0.25, "data.py:3")
    assert loader.fetches.median == FETCHES.median
    assert diagnosis.loop.hot_lines[0].line == 9
    assert pressure.io == 0.5


WATCHED = understood(three_epochs())


def test_code_that_says_it_is_from_a_pipe_is_not_read_there(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    line = HotLine(str(tmp_path / "pipe"), 3, "f", 0.1)
    assert hot_lines([line])[0].code is None
    assert training_loop([[(line.file, line.line)]]) is None


@given(evidences(), st.floats(0, 1))
@settings(max_examples=60)
def test_whatever_was_seen_can_be_shown(evidence: Evidence, contention: float):
    watched = replace(WATCHED, fetches=evidence.fetches)
    made = case(watched, look=evidence.look).diagnosis()
    diagnosis = replace(made, pressure=pressure_facts(evidence.pressure), contention=contention)
    shown = view(diagnosis)
    assert max(len(line) for line in console.text(shown).splitlines()) <= 80
    for bar in (*shown.outside, *([shown.sample] if shown.sample else [])):
        assert sum(segment.width for segment in bar.segments) == pytest.approx(1)
    assert decode(json.loads(msgspec.json.encode(diagnosis))).loader == diagnosis.loader
