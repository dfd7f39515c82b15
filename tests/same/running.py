"""Runs a script twice in the same folder, by itself and under the probe, and says what differs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fasttrain_doctor.launch import Streams, parse_target
from fasttrain_doctor.recorded import read_probe
from fasttrain_doctor.tuners.bench import SessionEnded
from fasttrain_doctor.tuners.session import Session, Setup
from tests.conftest import environment

SCRIPTS = Path(__file__).parent / "scripts"
Watch = Literal["observe", "look"]
_OLD = 10**18  # ns: when the files beside the script were last changed


@dataclass(frozen=True)
class Case:
    """How a script is started. ``words`` are what python gets, the script among them; ``files`` lie beside it."""

    name: str
    words: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    terminal: bool = False
    watch: Watch = "observe"
    several: bool = False  # processes that print, in whatever order

    @property
    def command(self) -> list[str]:
        """The words as ``diagnose`` takes them: a script, ``-m NAME``, or ``--`` and a program."""
        if self.words[0] == "-m" and self.words[1] != "torch.distributed.run":
            return list(self.words)
        return ["--", sys.executable, *self.words] if self.words[0].startswith("-") else list(self.words)


@dataclass(frozen=True)
class Outcome:
    """What a run left behind: its status, what it printed, and the files of its folder with their contents and times."""

    code: int | None
    stdout: str
    stderr: str
    files: Mapping[str, str]

    def differences(self, other: Outcome) -> list[str]:
        """Return what is not the same in the other: one line each."""
        found = [] if self.code == other.code else [f"status {self.code} -> {other.code}"]
        for name, mine, its in (("stdout", self.stdout, other.stdout), ("stderr", self.stderr, other.stderr)):
            left, right = mine.splitlines(), its.splitlines()
            found += [f"{name} - {line}" for line in left if line not in right]
            found += [f"{name} + {line}" for line in right if line not in left]
            if mine != its and not found:
                found.append(f"{name}: the same lines in another order, number or with other ends")
        names = sorted({*self.files, *other.files})
        return found + [f"file {n}" for n in names if self.files.get(n) != other.files.get(n)]


def compare(case: Case, folder: Path) -> tuple[Outcome, list[str], list[str]]:
    """Run a case both ways.

    Returns:
        What it did by itself, what was different when watched, and what the probe noted as lost.
    """
    alone = by_itself(case, folder / "at")
    watched, degraded = under_the_probe(case, folder / "at", folder / "run")
    if case.several:
        alone, watched = (replace(each, stdout=_lines(each.stdout)) for each in (alone, watched))
    return alone, alone.differences(watched), degraded


def _lay_out(case: Case, folder: Path) -> None:
    """Make the folder anew, with the scripts, the case's files and a checkpoint that must stay as it is."""
    if folder.exists():
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    texts = {path.name: path.read_text() for path in SCRIPTS.glob("*.py")} | {"data.csv": "1,2\n"} | dict(case.files)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        os.utime(folder / name, ns=(_OLD, _OLD))


def _files(folder: Path) -> dict[str, str]:
    out = {}
    for path in folder.rglob("*"):
        if path.is_file():
            info = path.stat()
            when = info.st_mtime_ns if info.st_mtime_ns == _OLD else "changed"
            digest = "" if path.suffix == ".pyc" else hashlib.sha256(path.read_bytes()).hexdigest()
            out[str(path.relative_to(folder))] = f"{digest} {oct(info.st_mode)} {when}"
    return out


def _environment(case: Case, folder: Path) -> dict[str, str]:
    """Return the user's environment; a PYTHONPATH of theirs is a folder beside the script."""
    env = environment({"PYTHONHASHSEED": "0", **case.env})
    env.pop("PYTHONPATH", None)
    if "PYTHONPATH" in case.env:
        env["PYTHONPATH"] = str(folder / case.env["PYTHONPATH"])
    return env


def by_itself(case: Case, folder: Path) -> Outcome:
    """Run a case without the doctor, in a session of its own as the doctor would start it."""
    _lay_out(case, folder)
    words = [sys.executable, *case.words]
    env = _environment(case, folder)
    if case.terminal:
        code, text = _on_a_terminal(words, env, folder)
        return Outcome(code, text, "", _files(folder))
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=folder, env=env, stdout=pipe, stderr=pipe, start_new_session=True) as started:
        try:
            stdout, stderr = started.communicate(timeout=170)
        except subprocess.TimeoutExpired:
            # A launcher takes its ranks along, which are in sessions of their own.
            os.killpg(started.pid, signal.SIGTERM)
            raise
    return Outcome(started.returncode, stdout.decode(), stderr.decode(), _files(folder))


def _on_a_terminal(words: list[str], env: Mapping[str, str], folder: Path) -> tuple[int, str]:
    """Run a command on a pseudo-terminal; returns its status and what it wrote, line ends as the script wrote them."""
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.chdir(folder)
            os.execve(words[0], words, dict(env))
        finally:
            os._exit(127)
    data = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # every end of the script's side is closed
            break
        if not chunk:
            break
        data += chunk
    os.close(master)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), _lines(data.decode())


def _lines(text: str) -> str:
    """Return a terminal's lines in order: which of two streams was shown first is not theirs to say."""
    return "\n".join(sorted(text.replace("\r\n", "\n").split("\n")))


def under_the_probe(case: Case, folder: Path, run_dir: Path) -> tuple[Outcome, list[str]]:
    """Run a case watched to its own end; with ``look`` through a look inside after a few observed steps."""
    _lay_out(case, folder)
    probe = run_dir / "probe"
    probe.mkdir(parents=True)
    terminals = (case.terminal,) * 3
    streams = Streams(run_dir / "out", run_dir / "err", terminals=terminals)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        setup = Setup(parse_target(case.command), run_dir, probe, streams, _environment(case, folder))
        session = stack.enter_context(Session(setup))
        if session.hello(90) is not None:
            with contextlib.suppress(SessionEnded):
                if case.watch == "look":
                    session.ask({"do": "observe", "steps": 4, "seconds": 0}, 60)
                    answer = session.ask({"do": "look", "steps": 10, "seconds": 0.2}, 60)
                    assert answer.get("done") == "look", answer
                session.ask({"do": "observe", "steps": 10**9, "seconds": 0}, 160)
        code = session.child.wait(60)
        session.child.drain()
    files = {n: what for n, what in _files(folder).items() if not n.startswith("run/")}
    stdout, stderr = ((run_dir / name).read_bytes().decode() for name in ("out", "err"))
    if case.terminal:
        stdout, stderr = _lines(stdout + stderr), ""
    return Outcome(code, stdout, stderr, files), read_probe(probe).degraded()
