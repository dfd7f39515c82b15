"""A run's directory: made private, written whole, found again, and refused by name when it cannot be read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from fasttrain_doctor import run as runs
from fasttrain_doctor import writing
from fasttrain_doctor.errors import DoctorError, Exit
from fasttrain_doctor.reports.json import dumps
from fasttrain_doctor.reports.saved import save

from .samples import FAILED, SUCCESS


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _finished(**changes):
    writer = runs.create_run(None, "train.py")
    writer.diagnosis(dumps(replace(SUCCESS, **changes)))
    writer.status("complete")
    return writer.run


def test_a_new_run_is_private_and_ignored_by_git(project):
    run = runs.create_run(None, "src/train.py", ["python", "src/train.py"]).run

    assert run.folder.parent == project / ".fasttrain-doctor" / "runs"
    assert run.id.endswith("-train")
    assert run.folder.stat().st_mode & 0o777 == 0o700
    assert (project / ".fasttrain-doctor").stat().st_mode & 0o777 == 0o700
    assert (project / ".fasttrain-doctor" / ".gitignore").read_text() == "*\n"
    assert (project / ".fasttrain-doctor" / "runs" / "latest").resolve() == run.folder
    assert run.info().command == ["python", "src/train.py"]
    assert run.info().status == "running"


def test_out_chooses_the_folder_and_leaves_what_is_in_it_alone(project):
    (project / "results").mkdir(mode=0o755)
    run = runs.create_run(project / "results", "train.py").run

    assert run.folder.parent == project / "results"
    assert (run.folder / ".gitignore").read_text() == "*\n"
    assert not (project / "results" / ".gitignore").exists()
    assert (project / "results").stat().st_mode & 0o777 == 0o755
    assert not (project / ".fasttrain-doctor").exists()


def test_two_runs_within_a_second_do_not_share_a_folder():
    first, second = (runs.create_run(None, "train.py").run for _ in range(2))
    assert first.folder != second.folder
    assert runs.load() == second


@pytest.mark.parametrize(
    ("script", "stem"),
    [
        ("a/b/train.py", "train"),
        ("pkg.train", "train"),
        ("../../etc/passwd", "passwd"),
        ("träin $(rm).py", "tr_in___rm"),
        ("...", "script"),
        ("", "script"),
    ],
)
def test_the_folders_name_is_safe_whatever_the_script_is_called(script, stem):
    assert runs.create_run(None, script).run.id.split("-", 2)[2].partition(".")[0] == stem


def test_load_takes_the_latest_an_id_the_beginning_of_one_a_path_or_a_file_in_it():
    old, new = _finished(), _finished()
    assert runs.load() == new
    assert runs.load(old.id) == old
    assert runs.load(old.folder) == old
    assert runs.load(str(old.diagnosis_file)) == old
    assert runs.load(old.folder.parent) == new


def test_load_says_when_a_beginning_fits_several_runs():
    first = _finished()
    _finished()
    with pytest.raises(DoctorError, match="begins 2 runs' names") as caught:
        runs.load(first.id[:8])
    assert caught.value.slug == "run-ambiguous"


def test_latest_survives_the_removal_of_the_run_it_points_at():
    old, new = _finished(), _finished()
    subprocess.run(["rm", "-r", str(new.folder)], check=True)
    assert runs.load() == old


@pytest.mark.parametrize("target", [None, "20260101", "nowhere/at/all"])
def test_a_missing_run_is_a_usage_error(target):
    with pytest.raises(DoctorError) as caught:
        runs.load(target)
    assert caught.value.slug == "run-missing"
    assert caught.value.exit == Exit.USAGE


def test_a_folder_that_is_no_run_is_refused(project):
    (project / "src").mkdir()
    with pytest.raises(DoctorError, match="not a run directory"):
        runs.load("src")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}', "\x00\xff", '{"schema": 1, "tool": 3}'])
def test_a_corrupt_run_is_refused(content):
    run = _finished()
    run.info_file.write_bytes(content.encode("latin-1"))
    with pytest.raises(DoctorError) as caught:
        runs.load()
    assert caught.value.slug == "run-corrupt"
    assert caught.value.exit == Exit.OURS


@pytest.mark.parametrize("content", ["", '{"schema": 1}', dumps(SUCCESS)[:-400]])
def test_a_corrupt_diagnosis_is_refused(content):
    run = _finished()
    run.diagnosis_file.write_text(content)
    with pytest.raises(DoctorError) as caught:
        run.diagnosis()
    assert caught.value.slug == "run-corrupt"


def test_a_newer_run_is_refused_by_its_version():
    run = _finished()
    run.info_file.write_text(json.dumps({"schema": 40, "tool": "7.1.0"}))
    with pytest.raises(DoctorError, match=r"written by fasttrain-doctor 7\.1\.0") as caught:
        runs.load()
    assert caught.value.slug == "run-newer"


def test_a_run_without_a_diagnosis_says_how_far_it_got():
    run = runs.create_run(None, "train.py").run
    with pytest.raises(DoctorError, match="the run is running") as caught:
        run.diagnosis()
    assert caught.value.slug == "run-unfinished"


def test_the_diagnosis_comes_back_whole():
    run = _finished()
    assert run.diagnosis() == SUCCESS
    assert run.info().status == "complete"


def test_frames():
    run = _finished()
    steps, trials = run.steps_frame(), run.trials_frame()

    assert list(steps.columns) == ["step", "seconds", "warmup"]
    assert len(steps) == 67
    assert steps.warmup.sum() == 7
    assert steps[~steps.warmup].seconds.mean() == pytest.approx(0.118, rel=0.05)
    assert len(trials) == len(SUCCESS.trials)
    assert trials.iloc[0].mid == 2.41
    assert trials.mid.isna().sum() == 1


def test_frames_of_a_run_that_measured_nothing_are_empty():
    writer = runs.create_run(None, "train.py")
    writer.diagnosis(dumps(FAILED))
    assert len(writer.run.steps_frame()) == 0
    assert list(writer.run.trials_frame().columns)[:2] == ["stage", "settings"]


def test_samples_leave_out_a_line_cut_off_by_a_kill():
    run = _finished()
    run.samples_file.write_text('{"t": 1.0}\n{"t": 2.0}\n{"t": 3')
    assert run.samples() == [{"t": 1.0}, {"t": 2.0}]


def test_runs_are_listed_newest_first_the_corrupt_ones_too(project):
    old, new = _finished(), _finished()
    old.info_file.write_text("{")
    (project / ".fasttrain-doctor" / "runs" / "stray").mkdir()
    assert runs.list_runs() == [new, old]
    assert runs.list_runs(project / "nowhere") == []


def test_an_unwritable_place_is_explained():
    with pytest.raises(DoctorError, match="cannot be written") as caught:
        runs.create_run(runs.Path("/proc/nothing/here"), "train.py")
    assert caught.value.slug == "output-unwritable"
    assert caught.value.exit == Exit.OURS


def test_a_file_in_the_place_of_the_folder_is_explained(project):
    (project / "results").write_text("mine")
    with pytest.raises(DoctorError, match=r"results: cannot be written"):
        runs.create_run(project / "results", "train.py")
    assert (project / "results").read_text() == "mine"


def test_a_full_disk_leaves_the_old_file_whole_and_nothing_half_written(project, monkeypatch):
    place = project / "diagnosis.json"
    writing.write_whole(place, "old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(DoctorError, match="no space left") as caught:
        writing.write_whole(place, "new")

    assert caught.value.slug == "disk-full"
    assert caught.value.exit == Exit.OURS
    assert place.read_text() == "old"
    assert [entry.name for entry in project.iterdir()] == ["diagnosis.json"]


def test_a_real_limit_on_the_size_of_files_is_explained(project):
    code = (
        "import resource, signal, pathlib\n"
        "from fasttrain_doctor.writing import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n    write_whole(pathlib.Path('big'), b'x' * 100_000)\n"
        "except Exception as error:\n    print(error.slug)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=project, check=True)
    assert done.stdout == "disk-full\n"
    assert list(project.iterdir()) == []


def test_reading_a_run_loads_neither_torch_nor_pandas():
    code = "import sys, fasttrain_doctor.run\nprint(sorted({'torch', 'pandas', 'plotly', 'optuna'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_saving_leaves_the_json_the_report_and_the_ending():
    writer = runs.create_run(None, "train.py")
    saved = save(writer, SUCCESS)
    assert saved.verdict.startswith("train.py trains 2.62x as fast")
    assert runs.load().diagnosis() == saved
    assert runs.load().info().status == "complete"
    assert saved.verdict in writer.run.report.read_text()
