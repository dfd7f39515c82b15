"""What the user asks to run is understood as python itself would."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fasttrain_doctor.errors import Exit, UsageError
from fasttrain_doctor.launch import TRACKERS, child_environment, parse_target


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "pkg").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_gets_every_word_after_it(here: Path) -> None:
    command = parse_target(["train.py", "--budget", "3", "-m", "x"])
    assert command.argv == (sys.executable, "train.py", "--budget", "3", "-m", "x")
    assert (command.kind, command.stem, command.script) == ("script", "train", Path("train.py"))


def test_two_dashes_after_the_script_are_dropped_once(here: Path) -> None:
    assert parse_target(["train.py", "--", "--epochs", "--", "10"]).argv[2:] == ("--epochs", "--", "10")


def test_a_module_is_started_by_name(here: Path) -> None:
    command = parse_target(["-m", "pkg.train", "--lr", "1"])
    assert command.argv == (sys.executable, "-m", "pkg.train", "--lr", "1")
    assert command.stem == "train"


def test_a_program_is_started_as_it_stands(here: Path) -> None:
    command = parse_target(["--", "env", "A=1", "python", "train.py"])
    assert command.argv == ("env", "A=1", "python", "train.py")
    assert (command.kind, command.stem, command.script) == ("program", "train", Path("train.py"))


def test_another_interpreter_can_be_chosen(here: Path) -> None:
    assert parse_target(["train.py"], python=sys.executable).argv[0] == sys.executable
    with pytest.raises(UsageError) as error:
        parse_target(["train.py"], python="/no/such/python")
    assert error.value.slug == "python-missing"


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        ([], "no-target"),
        (["--"], "no-target"),
        (["-m"], "no-target"),
        (["missing.py"], "script-missing"),
        (["pkg"], "script-is-directory"),
        (["--", "no-such-program-here"], "program-missing"),
        (["-I", "train.py"], "isolated-python"),
        (["--", sys.executable, "-uES", "train.py"], "isolated-python"),
        (["--", sys.executable, "-X", "dev", "-I", "train.py"], "isolated-python"),
        (["--unknown", "train.py"], "no-target"),
    ],
)
def test_what_cannot_run_is_a_usage_error_with_a_name(here: Path, words: list[str], slug: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_target(words)
    assert error.value.slug == slug
    assert error.value.exit == Exit.USAGE


@pytest.mark.parametrize("words", [["train.py", "-I"], ["-c", "1", "-S"], ["-W", "ignore", "train.py", "-E"]])
def test_flags_of_the_script_are_not_flags_of_python(here: Path, words: list[str]) -> None:
    assert parse_target(["--", sys.executable, *words]).argv[1:] == tuple(words)


def test_an_unreadable_script_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything, so chmod shows nothing
    with pytest.raises(UsageError, match="permission"):
        parse_target(["train.py"])


def test_the_environment_differs_only_where_it_says(tmp_path: Path) -> None:
    base = {"PATH": "/bin", "WANDB_MODE": "online", "PYTHONPATH": "/mine"}
    env = child_environment(base, token="t", probe_dir=tmp_path, socket="@s")
    ours = {name for name in env if name.startswith("FASTTRAIN_DOCTOR_")}
    changed = {name for name in env if env[name] != base.get(name)}
    assert changed == ours | {"PYTHONPATH"} | (set(TRACKERS) - {"WANDB_MODE"})
    inject, mine = env["PYTHONPATH"].split(os.pathsep)
    assert (Path(inject).name, mine) == ("inject", "/mine")


def test_training_for_real_leaves_the_trackers_alone(tmp_path: Path) -> None:
    env = child_environment({}, token="t", probe_dir=tmp_path, mode="run")
    assert not set(TRACKERS) & set(env)
    assert os.pathsep not in env["PYTHONPATH"], "an empty entry would mean the current folder"
