"""The command line: what is ours and what is the script's, how each ending looks, and that help helps."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest

from fasttrain_doctor import cli
from fasttrain_doctor.cli_ending import ending
from fasttrain_doctor.cli_parts import ScriptCommand, duration
from fasttrain_doctor.errors import DoctorError, NothingMeasured, ScriptFailed, UsageError
from fasttrain_doctor.evidence import Effect

from .link_tree import ROOT

VERBS = ("diagnose", "apply", "run", "report", "explain", "check", "runs", "restore", "demo")


@dataclass
class Asked:
    """Stands in for the work behind the commands and notes what it was asked to do."""

    target: list[str] | None = None
    options: Any = None
    code: int = 0
    diagnosis: None = None
    run: None = None
    error: DoctorError | None = None
    calls: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def exit(self) -> int:
        return self.code


@pytest.fixture
def asked(monkeypatch) -> Asked:
    from fasttrain_doctor import api

    noted = Asked()

    def diagnose(target, options):
        noted.target, noted.options = target, options
        return noted

    def train(target, python):
        noted.target, noted.options = target, python
        return noted.code

    monkeypatch.setattr(api, "diagnose", diagnose)
    monkeypatch.setattr(api, "train", train)
    return noted


def words(line: str) -> list[str]:
    return line.split()


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("train.py", "train.py"),
        ("train.py --epochs 10", "train.py --epochs 10"),
        ("train.py -- --epochs 10", "train.py -- --epochs 10"),
        ("train.py --help", "train.py --help"),
        ("train.py -m mode -h", "train.py -m mode -h"),
        ("--budget 3m train.py --budget 9", "train.py --budget 9"),
        ("--budget=3m train.py x", "train.py x"),
        ("--json --quiet train.py", "train.py"),
        ("-m pkg.train --lr 0.1", "-m pkg.train --lr 0.1"),
        ("--steps 5 -m pkg.train --json", "-m pkg.train --json"),
        ("-mpkg.train --lr 0.1", "-m pkg.train --lr 0.1"),
        ("-- torchrun --nproc-per-node 2 train.py", "-- torchrun --nproc-per-node 2 train.py"),
        ("--no-trials -- python -u train.py", "-- python -u train.py"),
        ("", ""),
    ],
)
def test_our_options_come_first_and_the_rest_is_the_scripts_verbatim(asked, line, target):
    assert cli.main(["diagnose", *words(line)]) == 0
    assert asked.target == words(target)


def test_every_option_reaches_the_diagnosis(asked):
    line = (
        "--python py3 --out here --budget 3m --no-trials --allow exact --timeout 20s --steps 7 --max-workers 0 "
        "--json --quiet train.py"
    )
    assert cli.main(["diagnose", *words(line)]) == 0
    got = asked.options
    assert (got.python, got.out, got.budget, got.trials, got.allow) == ("py3", Path("here"), 180.0, False, Effect.EXACT)
    assert (got.timeout, got.steps, got.max_workers, got.json, got.quiet) == (20.0, 7, 0, True, True)


def test_the_defaults(asked):
    assert cli.main(["diagnose", "train.py"]) == 0
    got = asked.options
    assert (got.python, got.out, got.budget, got.trials, got.allow) == (None, None, None, True, Effect.PRECISION)
    assert (got.steps, got.max_workers, got.json, got.quiet) == (None, None, False, False)
    assert got.timeout > 0


@pytest.mark.parametrize("code", [0, 1, 3, 130])
def test_the_exit_code_is_the_outcomes(asked, code):
    asked.code = code
    assert cli.main(["diagnose", "train.py"]) == code
    assert cli.main(["run", "train.py"]) == code


def test_what_kept_a_script_from_being_measured_is_said_and_decides_the_exit_code(asked, capsys):
    asked.error, asked.code = NothingMeasured("no-loop", "train.py: no training loop"), 3
    assert cli.main(["diagnose", "train.py"]) == 3
    assert capsys.readouterr().err == "fasttrain-doctor: error[no-loop]: train.py: no training loop\n"


def test_run_takes_a_target_as_diagnose_does(asked):
    cli.main(["run", "--python", "py3", "-m", "pkg.train", "--python", "x"])
    assert (asked.target, asked.options) == (["-m", "pkg.train", "--python", "x"], "py3")


def test_one_of_our_options_after_the_script_draws_a_hint(asked, capsys):
    cli.main(["diagnose", "train.py", "--no-trials", "--epochs", "3"])
    assert asked.options.trials
    error = capsys.readouterr().err
    assert error == "hint: `--no-trials` was passed on to train.py; options of fasttrain-doctor come before it\n"


@pytest.mark.parametrize("line", ["train.py --epochs 3", "train.py --help", "train.py -- --json", "-- torchrun --json"])
def test_what_is_plainly_the_scripts_draws_none(asked, capsys, line):
    cli.main(["diagnose", *words(line)])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("3m", 180), ("1.5h", 5400), ("1h30m", 5400), ("2M", 120)]
)
def test_a_duration(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "soon", "-3m", "3 m", "m", "3d", "nan", "inf"])
def test_no_duration(text):
    with pytest.raises(click.BadParameter, match="expected a time such as"):
        duration(text)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bogus", "no such command 'bogus'"),
        ("train.py", "train.py is not a command; did you mean: fasttrain-doctor diagnose train.py"),
        ("diagnose --bogus train.py", "no such option '--bogus'"),
        ("diagnose --steps 0 train.py", "invalid value for '--steps'"),
        ("diagnose --steps", "option '--steps' requires an argument"),
        ("diagnose --budget soon train.py", "expected a time such as 90s, 3m or 1h, got 'soon'"),
        ("diagnose --allow all train.py", "'all' is not one of 'exact'"),
        ("apply one two", "got unexpected extra argument"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(capsys, line, said):
    assert cli.main(words(line)) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert said.lower() in error.lower()
    assert error.startswith("fasttrain-doctor: error[usage]: ")
    assert error.count("\n") == 1
    assert "--help" in error


def test_no_command_shows_the_help(capsys):
    assert cli.main([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_a_screen(capsys, verb):
    assert cli.main([*words(verb), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") and not line.startswith("Usage") for line in lines), "a summary was cut off"


def test_the_help_in_the_readme_is_the_programs(capsys):
    cli.main(["--help"])
    assert capsys.readouterr().out in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_the_examples_in_the_help_parse(capsys, verb):
    cli.main([*words(verb), "--help"])
    lines = map(str.strip, capsys.readouterr().out.splitlines())
    examples = [line.partition("   ")[0].split()[1:] for line in lines if line.startswith("fasttrain-doctor ")]
    for name, *rest in examples:
        cli.cli.commands[name].make_context(name, rest)
    assert examples or verb in ("check", "runs", "restore", "demo")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("slug", "message"), 2),
        (ScriptFailed("slug", "message"), 1),
        (NothingMeasured("slug", "message"), 3),
        (DoctorError("slug", "message"), 5),
    ],
)
def test_an_explained_ending_has_its_slug_and_its_code(capsys, error, code):
    with ending() as end:
        raise error
    assert end.code == code
    assert capsys.readouterr().err == "fasttrain-doctor: error[slug]: message\n"


def test_an_interrupt_is_130(capsys):
    with ending() as end:
        raise KeyboardInterrupt
    assert end.code == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_fault_of_ours_is_one_line_and_a_file(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123")
    with ending() as end:
        raise ValueError("two\nlines and 0123456789abcdef0123")
    assert end.code == 5
    error = capsys.readouterr().err
    assert error.startswith("fasttrain-doctor: error[internal]: ValueError: two lines and ***")
    assert error.count("\n") == 1
    (file,) = tmp_path.iterdir()
    assert str(file) in error
    text = file.read_text()
    assert "Traceback" in text
    assert "0123456789abcdef0123" not in text
    assert file.stat().st_mode & 0o077 == 0


def test_a_reader_that_leaves_is_no_error(tmp_path):
    code = (
        "import os, sys; from fasttrain_doctor.cli import main\n"
        "left, right = os.pipe(); os.close(left); os.dup2(right, 1); sys.exit(main(['explain', 'IO001']))"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_pipe_of_ours_that_breaks_is_one(capsys):
    with ending() as end:
        raise BrokenPipeError("control socket")
    assert end.code == 5
    assert "control socket" in capsys.readouterr().err


def test_the_version(capsys):
    assert cli.main(["--version"]) == 0
    from fasttrain_doctor import __version__

    assert capsys.readouterr().out == f"fasttrain-doctor {__version__}\n"


def test_script_commands_know_where_our_options_end():
    command = cli.cli.commands["diagnose"]
    assert isinstance(command, ScriptCommand)
    assert command.split(["--steps", "3", "--json", "a.py", "--json"]) == (
        ["--steps", "3", "--json"],
        ["a.py", "--json"],
    )
