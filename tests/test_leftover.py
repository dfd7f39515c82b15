"""A doctor that was killed: the next command puts the user's files back, and leaves a living one alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from fasttrain_doctor import leftover
from fasttrain_doctor.run import Run, create_run


def cut_off(folder: Path) -> Run:
    """Make a run as a kill leaves it: a file changed, its original kept, nothing restored."""
    run = create_run(folder / "runs", "train.py").run
    work = folder / "work"
    work.mkdir(exist_ok=True)
    model = work / "model.pt"
    model.write_text("original")
    code = (
        "import sys; from fasttrain_doctor.probe import guard; guard.install(sys.argv[1]); "
        "open(sys.argv[2], 'w').write('changed')"
    )
    subprocess.run([sys.executable, "-c", code, str(run.folder), str(model)], check=True)
    assert model.read_text() == "changed"
    return run


def test_what_a_killed_run_changed_is_put_back_by_the_next_command(tmp_path: Path) -> None:
    run = cut_off(tmp_path)
    [(restored, done)] = leftover.put_back(tmp_path / "runs")
    assert restored == run
    assert (tmp_path / "work" / "model.pt").read_text() == "original"
    assert len(done.put_back) == 1
    assert json.loads(run.info_file.read_text())["status"] == "interrupted"
    assert leftover.put_back(tmp_path / "runs") == []


def test_a_run_that_died_with_nothing_to_put_back_is_no_longer_running(tmp_path: Path) -> None:
    run = create_run(tmp_path / "runs", "train.py").run
    with leftover.owned(run):
        pass
    assert leftover.put_back(tmp_path / "runs") == []
    assert json.loads(run.info_file.read_text())["status"] == "interrupted"


def test_a_run_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    run = cut_off(tmp_path)
    code = (
        "import sys, time; from pathlib import Path; from fasttrain_doctor import leftover; from fasttrain_doctor.run import Run\n"
        "with leftover.owned(Run(Path(sys.argv[1]))): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(run.folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert leftover.put_back(tmp_path / "runs") == []
        assert (tmp_path / "work" / "model.pt").read_text() == "changed"
    finally:
        holder.kill()
        holder.wait()
    deadline = time.monotonic() + 10
    while not leftover.put_back(tmp_path / "runs") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "work" / "model.pt").read_text() == "original"
