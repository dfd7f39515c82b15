"""The command line: what is ours and what is the script's, how each ending looks, and that help helps."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest

from fasttrain_doctor import cli, explain
from fasttrain_doctor.cli_ending import ending
from fasttrain_doctor.cli_parts import ScriptCommand, duration
from fasttrain_doctor.errors import DoctorError, NothingMeasured, ScriptFailed, UsageError
from fasttrain_doctor.evidence import Effect
from fasttrain_doctor.reports import page

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


# explain


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


# check, runs


def test_check_tells_of_this_machine(doctor):
    said = doctor.command("check")
    assert said.code == 0, said.stderr
    assert "CPU cores" in said.stdout
    facts = json.loads(doctor.command("check", "--json").stdout)
    assert 0 < facts["machine"]["cores"] <= facts["machine"]["logical_cores"] == os.cpu_count()
    assert isinstance(facts["limits"], list)


def test_runs_are_listed_newest_first_and_broken_ones_by_what_is_wrong(doctor):
    assert doctor.command("runs").stdout == "no runs here; start with: fasttrain-doctor diagnose train.py\n"
    from fasttrain_doctor.run import create_run

    kept = doctor.folder / "kept"
    first = create_run(kept, "train.py").run
    second = create_run(kept, "other.py").run
    first.info_file.write_text("{")
    header, *rows = doctor.command("runs", "--out", str(kept)).stdout.splitlines()
    assert header.split() == ["RUN", "STATUS", "STEP", "TUNED"]
    statuses = {row.split()[0]: row.split()[1] for row in rows}
    assert statuses == {first.id: "corrupt", second.id: "running"}


@pytest.mark.parametrize("verb", ["report", "restore", "apply"])
def test_a_run_that_is_not_there_is_a_usage_error(doctor, verb):
    said = doctor.command(verb, "nonsense")
    assert said.code == 2
    assert said.stderr.startswith("fasttrain-doctor: error[run-missing]: nonsense")


# the demo


def test_the_demo_says_what_to_install(monkeypatch, capsys):
    from fasttrain_doctor import demo

    monkeypatch.setattr(demo, "NEEDS", {"no_such_module": "torchvision"})
    assert cli.main(["demo"]) == 2
    error = capsys.readouterr().err
    assert "error[demo-needs-vision]" in error
    assert "pip install 'fasttrain-doctor[vision]'" in error


def test_the_demos_photos_are_real_jpeg_files_and_the_same_every_time(tmp_path):
    from PIL import Image

    from fasttrain_doctor.demo import make_images

    made = make_images.make(tmp_path / "a", count=8)
    assert made.files == 8
    make_images.make(tmp_path / "b", count=8)
    files = sorted((tmp_path / "a").rglob("*.jpg"))
    assert sum(file.stat().st_size for file in files) == made.bytes
    for file in files:
        with Image.open(file) as image:
            image.load()
            assert image.format == "JPEG"
            assert image.size in make_images.SIZES
        assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes()


def test_the_demos_script_trains_and_learns(tmp_path, monkeypatch):
    from fasttrain_doctor import demo

    monkeypatch.setattr("fasttrain_doctor.demo.make_images.SCENE", (1100, 800))
    demo.prepare(tmp_path)
    done = subprocess.run(
        [sys.executable, "train.py", "--epochs", "2", "--image-size", "32"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "480 photos of 4 kinds, training on cpu" or "cuda" in lines[0]
    assert float(lines[-1].rpartition(" ")[2]) > 0.4  # four kinds: chance is 0.25
    assert (tmp_path / "checkpoint.pt").exists()


@pytest.mark.parametrize("keep", [True, False])
def test_the_demo_leaves_the_run_and_takes_its_photos_along(monkeypatch, keep):
    from fasttrain_doctor import demo

    monkeypatch.setattr(demo, "prepare", lambda folder: (folder / demo.PHOTOS).mkdir())
    before = Path.cwd()
    with demo.place(keep=keep):
        folder = Path.cwd()
        (folder / ".fasttrain-doctor").mkdir()
    assert Path.cwd() == before
    assert (folder / ".fasttrain-doctor").is_dir()
    assert (folder / demo.PHOTOS).is_dir() == keep


def test_script_commands_know_where_our_options_end():
    command = cli.cli.commands["diagnose"]
    assert isinstance(command, ScriptCommand)
    assert command.split(["--steps", "3", "--json", "a.py", "--json"]) == (
        ["--steps", "3", "--json"],
        ["a.py", "--json"],
    )
