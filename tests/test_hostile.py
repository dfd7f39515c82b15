"""Scripts, machines and users that do their worst: a message with its slug, the right code, nothing left, files as before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from fasttrain_doctor import journal
from fasttrain_doctor.probe import commands, segments
from fasttrain_doctor.probe.loop import Loop
from tests.conftest import Doctor, environment

# Four samples a step that wait 1 ms each; BEFORE runs first, EACH after every step.
LOOP = """
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Points(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.randn(8)
BEFORE
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), 1e-2)
step = 0
for epoch in range(50):
    for x in DataLoader(Points(), batch_size=4):
        loss = model(x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        step += 1
        EACH
"""


def loop(before: str = "", each: str = "pass") -> str:
    return LOOP.replace("BEFORE", textwrap.dedent(before)).replace("EACH", each)


def living(mark: str) -> list[int]:
    """The processes that carry HOSTILE=mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            carries = f"HOSTILE={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            continue
        if carries and not dead:
            found.append(int(folder.name))
    return found


def gone(mark: str) -> bool:
    deadline = time.monotonic() + 10
    while living(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not living(mark)


@pytest.mark.parametrize(("script", "code", "slug", "said"), [
    ("import ctypes; ctypes.string_at(0)", 1, "script-failed", "killed by SIGSEGV"),
    ("raise SystemExit('no data')", 1, "script-failed", "no data"),
    ("x = (", 1, "script-failed", "SyntaxError"),
    ("", 3, "no-torch", "without importing torch"),
    ("import time; time.sleep(99)", 3, "timeout", "--timeout"),
])  # fmt: skip
def test_a_script_that_never_trains_is_explained(doctor: Doctor, script: str, code: int, slug: str, said: str) -> None:
    result = doctor(script, options=("--no-trials", "--json", "--timeout", "2s"), env={"HOSTILE": str(doctor.folder)})
    assert result.code == code
    assert f"error[{slug}]" in result.stderr
    assert said in result.stderr
    assert json.loads(result.stdout)["status"] == "failed", "standard output is JSON alone"
    assert gone(str(doctor.folder))


def test_the_traceback_of_a_script_that_was_kept_quiet_is_shown(doctor: Doctor) -> None:
    result = doctor("import torch\nimport nothing_of_this_name", options=("--no-trials", "--json", "--quiet"))
    assert result.code == 1
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in result.stderr


def test_a_script_that_fails_while_it_is_profiled_has_been_measured(doctor: Doctor) -> None:
    result = doctor(loop(each="if step == 62: os.abort()"))
    assert result.code == 0, result.stderr
    assert result.diagnosis.step is not None
    assert any("killed by SIGABRT" in why for why in result.diagnosis.degraded), result.diagnosis.degraded


def test_a_daemon_that_hides_ends_with_the_script(doctor: Doctor) -> None:
    hides = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "300"], {"HOSTILE": os.environ["HOSTILE"]})
        os._exit(0)
    os.wait()
    """
    mark = str(doctor.folder)
    assert doctor(loop(before=hides, each="if step == 20: sys.exit()"), env={"HOSTILE": mark}).code == 0
    assert gone(mark)


def test_an_impatient_user_finds_everything_as_before(doctor: Doctor) -> None:
    (doctor.folder / "ckpt").write_text("epoch 100")
    (doctor.folder / "train.py").write_text(loop(each="open('ckpt', 'w').write(str(step)); open('new', 'w').close()"))
    mark = str(doctor.folder)
    process = doctor.start("diagnose", "train.py", env={"HOSTILE": mark})
    assert process.stderr is not None
    while "watching it" not in (line := process.stderr.readline()):
        assert line, "the script was never watched"
    time.sleep(0.5)
    while process.poll() is None:  # again and again: once is enough
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.2)
    assert process.returncode == 130
    assert "error[interrupted]" in process.stderr.read()
    assert gone(mark)
    assert (doctor.folder / "ckpt").read_text() == "epoch 100"
    assert not (doctor.folder / "new").exists()
    (info,) = doctor.folder.glob(".fasttrain-doctor/runs/*-train/run.json")
    assert json.loads(info.read_text())["status"] == "interrupted"


def test_a_run_that_the_script_removes_is_named(doctor: Doctor) -> None:
    result = doctor(loop(before="import shutil; shutil.rmtree('.fasttrain-doctor')", each="if step == 20: sys.exit()"))
    assert result.code == 5
    assert "error[run-removed]" in result.stderr


def test_neither_a_name_that_is_no_text_nor_an_ascii_terminal_matters(doctor: Doctor) -> None:
    name = os.fsdecode(b"tr\xffain.py")
    (doctor.folder / name).write_text(loop(each="if step == 20: sys.exit()"))
    ascii_only = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    result = doctor.command("diagnose", "--no-trials", name, env=ascii_only)
    assert result.code == 0, result.stderr
    assert result.diagnosis.step is not None


def test_what_a_script_puts_in_place_of_the_libraries_functions_is_not_used(doctor: Doctor) -> None:
    faster = (
        "import json; json.dumps = json.loads = lambda *a, **k: b'{}'; time.perf_counter_ns = time.time = lambda: 0"
    )
    result = doctor(loop(before=faster, each="if step == 20: sys.exit()"))
    assert result.code == 0, result.stderr
    assert result.diagnosis.step is not None
    assert not result.diagnosis.degraded


def test_a_run_that_cannot_be_made_leaves_none(doctor: Doctor) -> None:
    in_the_way = doctor.folder / ".fasttrain-doctor" / "runs" / "latest"
    in_the_way.mkdir(parents=True)
    result = doctor("")
    assert result.code == 5
    assert "error[output-unwritable]" in result.stderr
    assert [entry.name for entry in in_the_way.parent.iterdir()] == ["latest"]


def test_run_hands_a_schedulers_signal_to_the_script(doctor: Doctor) -> None:
    (doctor.folder / "fasttrain.toml").write_text('["train.py"]\neffect = "exact"\n')
    saves = "import signal, sys, time\nsignal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(9)))\n"
    (doctor.folder / "train.py").write_text(saves + "print('up', flush=True)\ntime.sleep(60)\n")
    process = doctor.start("run", "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(30) == 9
    assert process.stdout.read() == "saved\n"


@pytest.mark.parametrize(("words", "code", "said"), [
    ("explain IO001 >&- 2>&- <&-", 0, ""),
    ("explain IO001 2>&-", 0, ""),
    ("explain IO001 >/dev/full", 5, "error[disk-full]: standard output"),
    ("runs", 2, "error[folder-missing]"),
    ("diagnose train.py", 2, "error[folder-missing]"),
])  # fmt: skip
def test_streams_that_are_closed_or_full_and_folders_that_are_gone(
    tmp_path: Path, words: str, code: int, said: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    leave = "rmdir ../here; " if "folder-missing" in said else ""
    command = f"{leave}exec {sys.executable} -m fasttrain_doctor.cli {words}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=here, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr


def test_a_report_that_cannot_be_made_does_not_end_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def report(self) -> dict[str, object]:
            raise OSError(28, "No space left on device")

    loop = Loop(None)
    monkeypatch.setattr(loop, "program", Full())
    assert "No space left" in commands.reported(loop)["failed"]
    assert loop.program is None


def test_only_what_the_killed_left_in_shared_memory_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(segments, "_SHM", str(tmp_path))
    for name in ("torch_12_1_0", "torch_123_1_0", "torch_12", "sem.mp-12", "other_12_1"):
        (tmp_path / name).touch()
    segments.remove([12])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other_12_1", "sem.mp-12", "torch_12", "torch_123_1_0"]


def test_a_torn_journal_keeps_nothing_from_being_restored(tmp_path: Path) -> None:
    lines = (
        b'[1]\n"text"\n{"op": 5}\n\xff\n{"op": "zzz", "path": "/x"}\n{"op": "keep", "path": "/nowhere/x"}\n{"op": "ke'
    )
    (tmp_path / "journal.jsonl").write_bytes(lines)
    done = journal.restore(tmp_path)
    assert [path for path, _ in done.unprotected] == ["/nowhere/x"]
