"""The summary on a terminal, for each way a run may end, as golden text."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fasttrain_doctor.reports import console
from fasttrain_doctor.reports.view import view

from .samples import SAMPLES, SUCCESS

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", SAMPLES)
def test_the_summary_is_the_golden_text(name):
    said = console.text(view(SAMPLES[name]), "runs/latest/report.html")
    golden = GOLDEN / f"console-{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(said)
    assert said == golden.read_text(), "UPDATE_GOLDEN=1 pytest writes it anew; look at what changed"


@pytest.mark.parametrize("name", SAMPLES)
def test_it_fits_80_columns(name):
    assert max(len(line) for line in console.text(view(SAMPLES[name])).splitlines()) <= 80


def test_a_changed_file_heads_the_summary():
    first, second, *_ = console.text(view(SAMPLES["unprotected"])).splitlines()
    assert first == "error: files of yours were changed and could not be put back"
    assert "/data/cache/index.db" in second


def test_names_cannot_steer_the_terminal():
    said = console.text(view(replace(SUCCESS, script="\x1b[2Jtrain.py\x07")))
    assert "\x1b" not in said
    assert "?[2Jtrain.py?" in said


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _shown(file, monkeypatch, **environment):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    console.show(view(SUCCESS), file)
    return file.getvalue()


def test_colour_on_a_terminal(monkeypatch):
    assert "\x1b[1;32mtuned: 2.62x" in _shown(_Terminal(), monkeypatch)


def test_no_colour_where_no_color_is_set(monkeypatch):
    assert "\x1b[1;32m" not in _shown(_Terminal(), monkeypatch, NO_COLOR="1")
    assert "32m" not in _shown(_Terminal(), monkeypatch, NO_COLOR="1")


def test_plain_text_in_a_pipe(monkeypatch):
    assert _shown(io.StringIO(), monkeypatch) == console.text(view(SUCCESS))
