"""The script runs as without us, and nothing of it is left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain_doctor import descendants
from fasttrain_doctor.launch import Child, Streams, child_environment, parse_target

FOREVER = "import time\nwhile True: time.sleep(0.05)\n"

# A script with the children that real ones have: a forked worker, a stopped one, one in a session of its own that
# ignores SIGTERM (torchrun's ranks), and an orphan without our environment whose parent has gone.
FAMILY = """
import os, signal, subprocess, sys, time
def sleep():
    while True: time.sleep(0.05)
if os.fork() == 0: sleep()
stopped = os.fork()
if stopped == 0: sleep()
os.kill(stopped, signal.SIGSTOP)
subprocess.Popen([sys.executable, "-c", "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "open('deaf', 'w').close(); [time.sleep(0.05) for _ in iter(int, 1)]"], start_new_session=True)
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0: sleep()
    os._exit(0)
os.waitpid(middle, 0)
while not os.path.exists('deaf'): time.sleep(0.01)
print("ready", flush=True)
sleep()
"""


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait for a condition; generous, as machines that test are busy."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


class Stage:
    """A folder with a script, and what is needed to start it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = f"test-{os.getpid()}-{folder.name}"
        self.out, self.err = io.BytesIO(), io.BytesIO()

    def child(self, source: str, *words: str, terminals: tuple[bool, bool, bool] = (False, False, False)) -> Child:
        (self.folder / "train.py").write_text(source)
        command = parse_target([str(self.folder / "train.py"), *words])
        env = child_environment(os.environ, token=self.token, probe_dir=self.folder / "probe")
        streams = Streams(self.folder / "out.log", self.folder / "err.log", self.out, self.err, terminals)
        return Child(command, env, streams, cwd=self.folder)

    def living(self) -> list[int]:
        return [p.pid for p in descendants.members(self.token)]

    def wait_for(self, word: bytes) -> None:
        assert until(lambda: word in self.out.getvalue()), self.err.getvalue().decode()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_output_arguments_folder_and_status_are_the_scripts_own(stage: Stage) -> None:
    source = (
        "import os, sys\nprint(sys.argv[1:], os.getcwd())\nsys.stderr.write('no newline at end')\n"
        "sys.stdout.buffer.write(b'\\xff\\r50%\\r')\nsys.exit(7)\n"
    )
    with stage.child(source, "--lr", "1e-3") as child:
        assert child.wait(60) == 7
    assert stage.out.getvalue() == f"['--lr', '1e-3'] {stage.folder}\n".encode() + b"\xff\r50%\r"
    assert (stage.folder / "out.log").read_bytes() == stage.out.getvalue()
    assert (stage.folder / "err.log").read_bytes() == stage.err.getvalue() == b"no newline at end"


def test_secrets_pass_through_but_are_not_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct-horse-battery")
    with stage.child("import os\nprint('using', os.environ['MY_API_KEY'])\n") as child:
        child.wait(60)
    assert b"correct-horse-battery" in stage.out.getvalue()
    assert (stage.folder / "out.log").read_bytes() == b"using ***\n"


def test_where_we_have_a_terminal_the_script_has_one(stage: Stage) -> None:
    source = (
        "import os, sys\nprint(*[os.isatty(fd) for fd in (0, 1, 2)], os.ttyname(1) == os.ttyname(0), flush=True)\n"
        "os.close(os.open('/dev/tty', os.O_RDWR))\n"
    )
    with stage.child(source, terminals=(True, True, False)) as child:
        assert child.wait(60) == 0, (stage.folder / "err.log").read_text()
    assert stage.out.getvalue() == b"True True False True\n", "and line ends are left to the real terminal"


def test_a_reader_that_has_gone_does_not_stop_the_script(stage: Stage) -> None:
    read, write = os.pipe()
    os.close(read)
    sink = os.fdopen(write, "wb", buffering=0)
    (stage.folder / "train.py").write_text("for i in range(20000): print('line', i)\n")
    env = child_environment(os.environ, token=stage.token, probe_dir=stage.folder)
    streams = Streams(stage.folder / "o", stage.folder / "e", sink, None, (False, False, False))
    with Child(parse_target([str(stage.folder / "train.py")]), env, streams) as child:
        assert child.wait(60) == 0
    assert (stage.folder / "o").read_bytes().endswith(b"line 19999\n")


def test_a_log_that_cannot_be_written_does_not_stop_the_script(stage: Stage) -> None:
    (stage.folder / "out.log").mkdir()
    with stage.child("print('x' * 200000)\n") as child:
        assert child.wait(60) == 0
        child.drain()
        assert child.log_failures
    assert len(stage.out.getvalue()) == 200001


def test_stopping_ends_the_whole_family(stage: Stage) -> None:
    with stage.child(FAMILY) as child:
        stage.wait_for(b"ready")
        assert len(child.processes()) == 5
        assert child.poll() is None
        assert child.wait(timeout=0.01) is None
        assert child.kill_all(grace=0.2) == []
        assert stage.living() == []
        assert child.returncode == -signal.SIGTERM


def test_an_exception_in_us_leaves_nothing_behind(stage: Stage) -> None:
    def interrupted() -> None:
        with stage.child(FAMILY):
            stage.wait_for(b"ready")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stage.living() == []


def test_children_that_outlive_the_script_end_with_it(stage: Stage) -> None:
    with stage.child(FAMILY) as child:
        stage.wait_for(b"ready")
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
        assert stage.living(), "its children are still there"
    assert stage.living() == []


LAUNCHER = """
import os, sys
from pathlib import Path
from fasttrain_doctor.launch import Child, Streams, child_environment, parse_target
folder = Path(sys.argv[1])
env = child_environment(os.environ, token=sys.argv[2], probe_dir=folder / "probe")
streams = Streams(folder / "out.log", folder / "err.log", sys.stdout.buffer, None, (False, False, False))
if len(sys.argv) > 3:
    env["FASTTRAIN_DOCTOR_GUARD"] = sys.argv[3]
run = Path(sys.argv[3]) if len(sys.argv) > 3 else None
with Child(parse_target([str(folder / "train.py")]), env, streams, cwd=folder, run_dir=run) as child:
    child.wait()
"""


@pytest.fixture
def launcher(stage: Stage) -> subprocess.Popen[bytes]:
    (stage.folder / "train.py").write_text(FAMILY)
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(stage.folder), stage.token], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_killing_us_leaves_nothing_running(stage: Stage, launcher: subprocess.Popen[bytes]) -> None:
    launcher.kill()
    launcher.wait()
    assert until(lambda: not stage.living())
    assert until(lambda: not _watchdogs(stage.token)), "and the watchdog goes when it has done its work"


def test_killing_us_puts_the_users_files_back(stage: Stage) -> None:
    run = stage.folder / "run"
    run.mkdir()
    (stage.folder / "ckpt").write_text("epoch 100")
    source = "open('ckpt', 'w').write('1'); open('new', 'w').close(); print('ready', flush=True)\n" + FOREVER
    (stage.folder / "train.py").write_text(source)
    words = [sys.executable, "-c", LAUNCHER, str(stage.folder), stage.token, str(run)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait()
    assert until(lambda: not _watchdogs(stage.token))
    assert (stage.folder / "ckpt").read_text() == "epoch 100"
    assert not (stage.folder / "new").exists()
    assert not stage.living()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_us_leaves_nothing_running(
    stage: Stage, launcher: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    launcher.send_signal(number)
    launcher.wait()
    assert until(lambda: not stage.living())
    assert until(lambda: not _watchdogs(stage.token))


def _watchdogs(token: str) -> list[int]:
    found = []
    for pid in descendants.table():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"watchdog.py" in words and token.encode() in words:
            found.append(pid)
    return found


def test_only_shared_memory_of_the_runs_dead_processes_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (
        f"torch_{dead.pid}_1_0",
        f"torch_{os.getpid()}_2_0",
        "torch_999999_3_0",
        "sem.mp-ours",
        "sem.mp-other",
    ):
        (tmp_path / name).touch()
    removed = descendants.remove_segments({"sem.mp-ours"}, {dead.pid, os.getpid()}, folder=tmp_path)
    assert removed == ["sem.mp-ours", f"torch_{dead.pid}_1_0"]


def test_segments_in_use_are_known_by_what_is_mapped() -> None:
    from multiprocessing import shared_memory

    segment = shared_memory.SharedMemory(name=f"torch_{os.getpid()}_test_0", create=True, size=4096)
    try:
        assert segment.name in descendants.segments([os.getpid()])
    finally:
        segment.close()
        segment.unlink()
