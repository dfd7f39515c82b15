"""Whatever a script does to files that existed, they come back as they were; what it made is moved out of the way."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fasttrain_doctor.journal import Restored, pending, restore
from fasttrain_doctor.snapshot import Changed, changes, now, saved_to, snapshot

PRELUDE = "import os\nfrom fasttrain_doctor.probe import guard\nguard.install(os.environ['RUN'])\n"


class Project:
    """A user's folder with files that must not be lost, and a run directory outside of it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "project"
        self.run = folder / "run"
        self.run.mkdir()
        (self.home / "out" / "deep").mkdir(parents=True)
        for name, text in {"ckpt.pt": "epoch 100", "log.txt": "line 1\n", "out/a": "A", "out/deep/b": "B"}.items():
            (self.home / name).write_text(text)
            os.utime(self.home / name, ns=(10**18, 10**18 + 123))
        (self.home / "ckpt.pt").chmod(0o640)
        (self.home / "last.pt").symlink_to("ckpt.pt")
        self.before = self.state()

    def state(self) -> dict[str, tuple[object, ...]]:
        """Everything that restoring promises: names, types, contents, modes and times of files."""
        found: dict[str, tuple[object, ...]] = {}
        for path in sorted(self.home.rglob("*")):
            info = path.lstat()
            name = str(path.relative_to(self.home))
            if path.is_symlink():
                found[name] = ("link", os.readlink(path))
            elif path.is_dir():
                found[name] = ("dir", stat.S_IMODE(info.st_mode))
            else:
                found[name] = (path.read_bytes(), stat.S_IMODE(info.st_mode), info.st_mtime_ns)
        return found

    def execute(self, source: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "RUN": str(self.run)}
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + source],
            cwd=self.home,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done

    def journal(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.run / "journal.jsonl").read_text().splitlines()]

    def is_as_before(self) -> bool:
        assert self.state() == self.before
        return True


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


CHANGES = {
    "overwrite": "open('ckpt.pt', 'w').write('epoch 1')",
    "append": "open('log.txt', 'a').write('line 2')",
    "in place": "f = open('ckpt.pt', 'r+b'); f.write(b'X'); f.close()",
    "pathlib": "from pathlib import Path; Path('ckpt.pt').write_text('new'); Path('out/new').write_text('n')",
    "os.open": "fd = os.open('log.txt', os.O_WRONLY | os.O_APPEND); os.write(fd, b'more')",
    "through a link": "open('last.pt', 'w').write('epoch 1')",
    "replace a link": "os.remove('last.pt'); open('last.pt', 'w').write('a file now')",
    "new link": "os.remove('last.pt'); os.symlink('log.txt', 'last.pt')",
    "delete": "os.remove('ckpt.pt'); os.unlink('log.txt')",
    "delete, then make again": "os.remove('ckpt.pt'); open('ckpt.pt', 'w').write('1'); open('ckpt.pt', 'a').write('2')",
    "save, then rename": "open('c.tmp', 'w').write('1'); os.replace('c.tmp', 'ckpt.pt'); open('ckpt.pt', 'a').write('2')",
    "rename away": "os.rename('ckpt.pt', 'old.pt'); open('old.pt', 'a').write('x'); open('ckpt.pt', 'w').write('1')",
    "rename over": "os.rename('ckpt.pt', 'log.txt'); open('log.txt', 'r+').write('x')",
    "rotate": "os.rename('log.txt', 'l1'); os.rename('l1', 'l2'); open('l2', 'w').write(''); open('log.txt', 'w').write('')",
    "truncate": "os.truncate('log.txt', 1)",
    "chmod": "os.chmod('ckpt.pt', 0o400); os.utime('log.txt', (1, 1))",
    "chmod, then write": "os.chmod('ckpt.pt', 0o600); open('ckpt.pt', 'w').write('1')",
    "rmtree": "import shutil; shutil.rmtree('out')",
    "rmtree, then make again": "import shutil; shutil.rmtree('out'); os.makedirs('out/new'); open('out/a', 'w').write('1')",
    "rename a folder": "os.rename('out', 'kept_out'); open('kept_out/a', 'a').write('1'); open('kept_out/new', 'w')",
    "rename a folder, make another": "os.rename('out', 'o2'); os.mkdir('out'); open('out/a', 'w').write('1')",
    "checkpoint folder": "os.makedirs('t/x'); open('t/x/m', 'w'); os.rename('t', 'checkpoint-1'); open('checkpoint-1/y', 'w')",
    "copy over": "import shutil; shutil.copy('log.txt', 'ckpt.pt'); shutil.copytree('out', 'out2'); shutil.move('log.txt', 'm')",
    "hard link": "os.link('ckpt.pt', 'best.pt'); open('best.pt', 'a').write('x')",
    "another folder": "os.chdir('out'); open('a', 'w').write('1'); open('deep/../new', 'w').write('1')",
    "bytes": "open(b'ckpt.pt', 'w').write('1'); open(os.fsencode('n\\udcff'), 'w').write('1')",
    "relative to a descriptor": "d = os.open('out', os.O_RDONLY); os.remove('a', dir_fd=d); os.mkdir('n', dir_fd=d)",
    "sqlite": "import sqlite3; c = sqlite3.connect('s.db'); c.execute('create table t (x)'); c.commit(); c.close()",
    "forked": "pid = os.fork()\nif pid == 0:\n    open('ckpt.pt', 'w').write('1'); os._exit(0)\nos.waitpid(pid, 0)",
    "threads": (
        "import threading\nts = [threading.Thread(target=lambda i=i: open('ckpt.pt', 'a').write(str(i))) for i in range(8)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]"
    ),
    "two processes": (
        "import subprocess, sys\nopen('ckpt.pt', 'w').write('1')\nsubprocess.run([sys.executable, '-c', "
        '\'import os; from fasttrain_doctor.probe import guard; guard.install(os.environ["RUN"]);'
        ' open("ckpt.pt", "a").write("2"); open("n", "w")\'], check=True)'
    ),
}


@pytest.mark.parametrize("source", CHANGES.values(), ids=CHANGES)
def test_every_change_is_undone(project: Project, source: str) -> None:
    project.execute(source)
    changed = project.state() != project.before
    result = restore(project.run)
    assert changed
    assert project.is_as_before()
    assert result.unprotected == ()
    assert not pending(project.run)
    assert restore(project.run) == Restored(), "and once is enough"


@pytest.mark.parametrize("source", CHANGES.values(), ids=CHANGES)
def test_what_the_script_made_can_be_discarded(project: Project, source: str) -> None:
    project.execute(source)
    restore(project.run, discard=True)
    assert project.is_as_before()


def test_discarding_deletes_nothing_that_the_script_did_not_make(project: Project) -> None:
    project.execute(
        "os.makedirs('new/tmp'); open('new/mine', 'w'); open('new/tmp/x', 'w'); os.rename('new/tmp', 'new/ckpt')\n"
        "open('top', 'w'); open('ckpt.pt', 'w').write('1')\n"
    )
    (project.home / "new" / "of the user").write_text("dear")
    restore(project.run, discard=True)
    assert project.is_as_before()
    kept = [path for path in (project.run / "created").rglob("*") if path.is_file()]
    assert [path.read_text() for path in kept] == ["dear"]


def test_failing_operations_fail_as_without_us(project: Project) -> None:
    source = (
        "for act in (lambda: open('no/such/file', 'w'), lambda: open('out', 'w'), lambda: open('ckpt.pt', 'x'),"
        " lambda: os.remove('none'), lambda: os.rename('none', 'ckpt.pt'), lambda: os.mkdir('out'), lambda: os.rmdir('out')):\n"
        "    try: act()\n    except OSError as e: print(type(e).__name__)\n"
    )
    kinds = "FileNotFoundError IsADirectoryError FileExistsError FileNotFoundError FileNotFoundError FileExistsError OSError"
    assert project.execute(source).stdout.split() == kinds.split()
    assert project.is_as_before()
    restore(project.run)
    assert project.is_as_before()


def test_what_was_written_over_an_original_is_not_lost(project: Project) -> None:
    project.execute("open('ckpt.pt', 'w').write('epoch 1'); os.mkdir('new'); open('new/f', 'w').write('f')")
    result = restore(project.run)
    created = project.run / "created" / "1" / project.home.relative_to("/")
    assert (created / "ckpt.pt").read_text() == "epoch 1"
    assert (created / "new" / "f").read_text() == "f"
    assert result.moved == (str(project.home / "new"),)
    assert result.put_back == (str(project.home / "ckpt.pt"),)


def test_trial_after_trial_starts_equal(project: Project) -> None:
    for trial in (1, 2, 3):
        done = project.execute(
            "print(os.path.exists('resume.pt')); open('resume.pt', 'w'); open('ckpt.pt', 'a').write('x')"
        )
        assert done.stdout == "False\n"
        restore(project.run)
        assert project.is_as_before()
        assert (project.run / "created" / str(trial)).is_dir()


def test_a_large_checkpoint_is_kept_without_copying_it(project: Project) -> None:
    with (project.home / "ckpt.pt").open("wb") as big:
        big.truncate(5 << 30)  # beyond what is copied
    inode = (project.home / "ckpt.pt").stat().st_ino
    project.execute("open('ckpt.pt', 'wb').write(b'1'); open('ckpt.pt', 'ab').write(b'2')")
    info = (project.home / "ckpt.pt").stat()
    assert (info.st_size, stat.S_IMODE(info.st_mode)) == (2, 0o640)
    assert restore(project.run).unprotected == ()
    info = (project.home / "ckpt.pt").stat()
    assert (info.st_size, info.st_ino) == (5 << 30, inode)


def test_a_file_too_large_to_copy_is_named_if_it_changed(project: Project) -> None:
    for name in ("data.bin", "other.bin"):
        with (project.home / name).open("wb") as big:
            big.truncate(3 << 30)
    project.execute("open('data.bin', 'r+b').write(b'1'); open('other.bin', 'r+b').close()")
    assert restore(project.run).unprotected == ((str(project.home / "data.bin"), "larger than 2 GiB"),)


def test_data_made_and_read_before_training_stays_results_go(project: Project) -> None:
    project.execute(
        "os.makedirs('data/raw'); open('data/raw/1', 'w').write('d'); open('data/raw/2', 'w').write('d')\n"
        "open('cache', 'w').write('c'); open('cache').read(); open('data/raw/1').read()\n"
        "os.mkdir('runs'); open('runs/events', 'w').write('e'); open('config', 'w').write('e')\n"
        "import time; time.sleep(0.05); guard.loop_began(); time.sleep(0.05)\n"
        "open('data/late', 'w').write('late'); open('runs/ckpt', 'w'); open('runs/ckpt').read(); open('config').read()\n"
    )
    result = restore(project.run)
    left = {str(Path(p).relative_to(project.home)) for p in result.left}
    assert left == {"data/raw/1", "data/raw/2", "cache"}
    assert not (project.home / "data" / "late").exists()
    assert not (project.home / "runs").exists()
    assert not (project.home / "config").exists()


def test_caches_and_our_own_files_are_nobodys(project: Project, tmp_path: Path) -> None:
    project.execute(
        "open(os.environ['RUN'] + '/probe.rec', 'w')\nopen('/dev/null', 'w')\n"
        "os.makedirs('__pycache__'); open('__pycache__/m.pyc', 'w')\nopen('/proc/self/comm', 'w').write('x')\n"
    )
    assert project.journal() == []
    assert (project.run / "probe.rec").exists()


def test_killed_while_running_then_restored(project: Project) -> None:
    source = (
        "open('ckpt.pt', 'w').write('half'); os.remove('log.txt'); open('new', 'w').write('n')\n"
        "print('ready', flush=True)\nimport time\nwhile True: time.sleep(0.05)\n"
    )
    env = {**os.environ, "RUN": str(project.run)}
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + source], cwd=project.home, env=env, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    assert process.wait() == -signal.SIGKILL
    with (project.run / "journal.jsonl").open("a") as journal:
        journal.write('{"op": "keep", "pa')  # torn by the kill
    assert pending(project.run)
    restore(project.run)
    assert project.is_as_before()


@pytest.mark.parametrize("step", range(9))
def test_restoring_that_is_killed_is_completed_by_the_next(
    project: Project, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.execute(
        "import shutil; open('ckpt.pt', 'a').write('1'); shutil.rmtree('out'); os.rename('log.txt', 'l'); os.mkdir('new')\n"
        "os.remove('last.pt'); open('new/x', 'w'); open('out', 'w')\n"
    )

    class Killed(BaseException):
        pass

    left = step

    def dying(original):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "rename", "unlink", "mkdir", "hardlink_to"):
            patch.setattr(Path, name, dying(getattr(Path, name)))
        patch.setattr(shutil, "copy2", dying(shutil.copy2))
        with pytest.raises(Killed):
            restore(project.run)
    assert pending(project.run)
    restore(project.run)
    assert project.is_as_before()
    assert not pending(project.run)


def test_what_cannot_be_put_back_is_said_and_tried_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.execute("open('ckpt.pt', 'w').write('1'); open('log.txt', 'w').write('1')")

    def full(self: Path, target: Path) -> Path:
        if target.name == "ckpt.pt":
            raise OSError(28, "No space left on device")
        return original(self, target)

    original = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        result = restore(project.run)
    assert [path for path, _ in result.unprotected] == [str(project.home / "ckpt.pt")]
    assert result.put_back == (str(project.home / "log.txt"),)
    assert pending(project.run)
    assert restore(project.run).unprotected == ()
    assert project.is_as_before()


def test_protection_that_fails_lets_the_script_go_on_and_says_so(project: Project) -> None:
    done = project.execute(
        "from fasttrain_doctor.probe import keeping\n"
        "def full(*_): raise OSError(28, 'No space left on device')\n"
        "keeping.copy = full\nopen('ckpt.pt', 'w').write('1'); print(open('ckpt.pt').read())\n"
    )
    assert done.stdout == "1\n"
    ((path, why),) = restore(project.run).unprotected
    assert path == str(project.home / "ckpt.pt")
    assert "No space left" in why


LIBRARIES = {
    "numpy": "import numpy as np; np.save('ckpt.pt', np.zeros(3)); np.zeros(9).tofile('log.txt'); np.save('ckpt.pt', 1)",
    "torch": (
        "import torch; torch.save({'w': torch.zeros(3)}, 'ckpt.pt'); torch.save(1, 'new.pt')\n"
        "torch.save(torch.zeros(2), 'log.txt', _use_new_zipfile_serialization=False)\n"
        "torch.jit.script(torch.nn.Linear(1, 1)).save('out/a'); torch.jit.save(torch.jit.script(torch.nn.ReLU()), 'out/deep/b')"
    ),
    "safetensors": "import torch, safetensors.torch as s; s.save_file({'w': torch.zeros(3)}, 'ckpt.pt')",
    "h5py": "import h5py; h5py.File('ckpt.pt', 'w').close(); h5py.File('new.h5', 'a').close()",
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_that_write_for_themselves(project: Project, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    project.execute(LIBRARIES[library])
    assert project.state() != project.before
    assert restore(project.run).unprotected == ()
    assert project.is_as_before()


def test_a_change_that_nothing_saw_is_found_by_comparing(project: Project) -> None:
    before = snapshot([project.home])
    project.execute(
        "open('out/new', 'w'); open('ckpt.pt', 'w').write('1'); os.system('echo 1 > out/a; echo 1 > out/c; rm log.txt')"
    )
    result = restore(project.run)
    found = changes(before, now(before), result.put_back)
    home = project.home
    assert found == [
        Changed(str(home / "log.txt"), "removed"),
        Changed(str(home / "out/a"), "changed"),
        Changed(str(home / "out/c"), "created"),
    ]
    folders = saved_to(project.run)
    assert {str(home / "out"), str(home)} <= set(folders.folders)
    assert Changed(str(home / "out/a"), "changed") in changes(folders, now(folders), result.put_back)


def test_a_snapshot_is_bounded_and_leaves_environments_alone(tmp_path: Path) -> None:
    for name in (".git", "site-packages", "x"):
        (tmp_path / name).mkdir()
        for i in range(5):
            (tmp_path / name / str(i)).touch()
    assert len(snapshot([tmp_path]).files) == 5
    few = snapshot([tmp_path], most=3)
    assert (len(few.files), few.complete) == (3, False)
    (tmp_path / "x" / "9").touch()
    assert changes(few, now(few)) == []


def test_unrelated_events_cost_next_to_nothing(project: Project) -> None:
    source = (
        "import sys, timeit\nr = timeit.repeat(lambda: sys.audit('some.event', 1), number=20000, repeat=7)\n"
        "print(min(r) / 20000 * 1e9)\n"
    )
    assert float(project.execute(source).stdout) < 5_000, (
        "nanoseconds; a fraction of a microsecond where nothing else runs"
    )
