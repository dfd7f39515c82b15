"""Pages are found by every name they go by, and shown to suit where they go."""

from __future__ import annotations

import io

import pytest

from fasttrain_doctor import cli, explain
from fasttrain_doctor.reports import page


def test_every_page_is_found_by_each_of_its_names():
    everything = explain.pages()
    assert {"bottleneck", "fix"} == {entry.kind for entry in everything}
    for entry in everything:
        assert explain.find(entry.name) == entry
        assert explain.find(entry.name.replace("-", "_").upper()) == entry
        assert entry.text().startswith(f"# {entry.name}")
        if entry.code:
            assert explain.find(entry.code.lower()) == entry


def test_names_are_told_apart():
    names = [name for entry in explain.pages() for name in (entry.name, entry.code) if name]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("asked_for", "said"),
    [
        ("input-wait-oi", "did you mean input-wait-io"),
        ("IO01", "did you mean"),
        ("xyzzy", "all names: fasttrain-doctor explain"),
    ],
)
def test_an_unknown_name_draws_the_nearest(capsys, asked_for, said):
    assert cli.main(["explain", asked_for]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fasttrain-doctor: error[unknown-name]: nothing is called '{asked_for}'; ")
    assert said in error


def test_explain_without_a_name_lists_all_in_80_columns(capsys):
    assert cli.main(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(entry.name in listed for entry in explain.pages())
    assert max(map(len, listed.splitlines())) <= 80


def test_a_page_is_markdown_in_a_pipe_and_laid_out_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text = "# name\n\n## What it measures\n\nsome *text*\n"
    pipe, terminal = io.StringIO(), io.StringIO()
    terminal.isatty = lambda: True
    page.show(text, pipe)
    page.show(text, terminal)
    assert pipe.getvalue() == text
    assert "some" in terminal.getvalue()
    assert "##" not in terminal.getvalue()
