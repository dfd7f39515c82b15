"""Start the user's command as the user would, watch it, stop it, and leave nothing of it behind."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from fasttrain_doctor import descendants, interrupts, redact
from fasttrain_doctor.descendants import TOKEN
from fasttrain_doctor.environment import TRACKERS, child_environment
from fasttrain_doctor.target import Command, parse_target
from fasttrain_doctor.tee import Tee
from fasttrain_doctor.terminal import InputForwarder, ResizeForwarder, open_terminal

__all__ = ["TRACKERS", "Child", "Command", "Streams", "child_environment", "parse_target"]

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_DRAIN = 2.0  # seconds for the last output after the last process has gone


@dataclass(frozen=True, slots=True)
class Streams:
    """Where the script's output goes: always to the logs; to a sink as well where one is given.

    ``terminals`` says which of its standard streams (input, output, error) are terminals for the script; by default
    those that are terminals for us.
    """

    stdout_log: Path
    stderr_log: Path
    stdout: BinaryIO | None = None
    stderr: BinaryIO | None = None
    terminals: tuple[bool, bool, bool] | None = None


class Child:
    """The user's command as a process of its own session, with all that descends from it.

    Use as a context manager: on leaving, by whatever way, nothing of it runs any more. Should this process itself be
    killed, a watchdog does the same and puts the user's files back.

    Args:
        command: what to run.
        env: its whole environment, from ``child_environment``; carries the run's token.
        streams: logs and sinks.
        cwd: its working directory; ours by default.
        run_dir: the run directory, whose journal the watchdog completes when we are killed.
    """

    def __init__(
        self,
        command: Command,
        env: Mapping[str, str],
        streams: Streams,
        *,
        cwd: Path | None = None,
        run_dir: Path | None = None,
    ) -> None:
        self.command = command
        self._env = dict(env)
        self._token = env[TOKEN]
        self._streams = streams
        self._cwd = cwd
        self._run_dir = run_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._tees: list[Tee] = []
        self._input: InputForwarder | None = None
        self._resize: ResizeForwarder | None = None
        self._masters: list[int] = []
        self._pids: set[int] = set()
        self._segments: set[str] = set()
        self._own: set[int] = set()  # children of ours before this one
        self._stopped = False

    def start(self) -> Self:
        """Start the command.

        Raises:
            OSError: the program cannot be executed, or there is no process or descriptor left.
        """
        adopt_orphans()
        self._own = set(descendants.adopted())
        self._watchdog = _start_watchdog(self._token, self._run_dir)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise
        assert self._process is not None
        self._pids.add(self._process.pid)
        self._tell_watchdog(f"pid {self._process.pid}\n")
        return self

    def _launch(self) -> None:
        kinds = self._streams.terminals or (os.isatty(0), os.isatty(1), os.isatty(2))
        like = next((fd for fd in (1, 2, 0) if os.isatty(fd)), 0)
        reads: list[int] = []
        gives: list[int] = []
        for terminal in kinds[1:]:
            read, give = open_terminal(like) if terminal else os.pipe()
            reads.append(read)
            gives.append(give)
            if terminal:
                self._masters.append(read)
        stdin = 0
        opened = list(gives)
        if kinds[0]:
            # One terminal for input and output, as users have it; a separate one when the output is redirected.
            if kinds[1] or kinds[2]:
                typed, stdin = (reads[0], gives[0]) if kinds[1] else (reads[1], gives[1])
            else:
                typed, stdin = open_terminal(like)
                self._masters.append(typed)
                opened.append(stdin)
            typed = os.dup(typed)
        controlling = stdin if kinds[0] else next((g for g, t in zip(gives, kinds[1:], strict=True) if t), None)
        try:
            self._process = subprocess.Popen(
                self.command.argv,
                stdin=stdin,
                stdout=gives[0],
                stderr=gives[1],
                cwd=self._cwd,
                env=self._env,
                start_new_session=True,
                # Runs between fork and exec: one system call, no lock. Only with a terminal.
                preexec_fn=None if controlling is None else lambda: fcntl.ioctl(controlling, termios.TIOCSCTTY, 0),  # noqa: PLW1509
            )
        finally:
            for fd in opened:
                os.close(fd)
            secrets = redact.secret_values(self._env)
            logs = (self._streams.stdout_log, self._streams.stderr_log)
            sinks = (self._streams.stdout, self._streams.stderr)
            for read, log, sink in zip(reads, logs, sinks, strict=True):
                tee = Tee(read, log, sink, lambda line: redact.redact_bytes(line, secrets))
                tee.start()
                self._tees.append(tee)
        if kinds[0]:
            self._input = InputForwarder(0, typed)
            self._input.start()
        self._resize = ResizeForwarder(like, self._masters)
        self._resize.start()

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the command itself; torchrun's ranks have others (see ``processes``)."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status (negative: the signal that ended it), or None while it runs."""
        return None if self._process is None else self._process.returncode

    @property
    def log_failures(self) -> tuple[str, ...]:
        """Why a log is incomplete; empty when it is not."""
        return tuple(tee.failed for tee in self._tees if tee.failed)

    def poll(self) -> int | None:
        """Return the exit status, or None while the command runs."""
        return None if self._process is None else self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the command to end.

        Args:
            timeout: seconds; None waits for ever.

        Returns:
            The exit status, or None when the time is over first.
        """
        assert self._process is not None, "not started"
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def processes(self) -> list[int]:
        """Return the living processes of the command, itself first; remembers them for the final cleaning."""
        found = [p.pid for p in self._find()]
        self._segments |= descendants.segments(found)
        return found

    def _find(self) -> list[descendants.Process]:
        if self._process is not None:
            self._process.poll()
        spare = {*self._own, *(() if self._watchdog is None else (self._watchdog.pid,))}
        # Daemons that cleared their environment came to us when their parents ended.
        found = descendants.members(self._token, {*self._pids, *descendants.adopted()}, spare)
        self._pids.update(p.pid for p in found)
        return found

    def kill_all(self, grace: float = 2.0) -> list[int]:
        """End the command and everything that descends from it; stopped processes included.

        Args:
            grace: seconds between asking (SIGTERM) and killing (SIGKILL).

        Returns:
            Processes that would not go (in an uninterruptible wait); normally none.
        """
        self.processes()
        left = descendants.end(self._find, grace)
        self._reap()
        descendants.remove_segments(self._segments, self._pids | self._reported())
        return [p.pid for p in left]

    def _reap(self) -> None:
        """Collect the orphans that became our children."""
        for pid in self._pids:
            if self._process is not None and pid == self._process.pid:
                self._process.poll()
                continue
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # its own parent collected it
                continue

    def _reported(self) -> set[int]:
        """Return the processes that the probe wrote records of: some came and went unseen by us."""
        folder = Path(self._env.get("FASTTRAIN_DOCTOR_DIR", ""))
        return {int(f.stem) for f in folder.glob("*.rec") if f.stem.isdigit()} if folder.is_dir() else set()

    def stop(self, grace: float = 2.0) -> int | None:
        """End everything, take in the last output, hand the terminal back. Can be called again.

        Returns:
            The exit status of the command, None when it never started.
        """
        if self._stopped:
            return self.returncode
        self._stopped = True
        with interrupts.deferred():
            if self._process is not None:
                self.kill_all(grace)
            for tee in self._tees:
                tee.join(_DRAIN)
            if self._input is not None:
                self._input.stop()
            if self._resize is not None:
                self._resize.stop()
            self._dismiss_watchdog()
        return self.returncode

    def drain(self, timeout: float = _DRAIN) -> bool:
        """Wait until the ended script's output has all been passed on; True when it has."""
        deadline = time.monotonic() + timeout
        for tee in self._tees:
            tee.join(max(0.0, deadline - time.monotonic()))
        return not any(tee.is_alive() for tee in self._tees)

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog is None or self._watchdog.stdin is None:
            return
        try:
            self._watchdog.stdin.write(line.encode())
            self._watchdog.stdin.flush()
        except OSError:  # someone ended it; the context manager still cleans up
            return

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is None or self._watchdog.stdin is None:
            return
        self._tell_watchdog("bye\n")
        try:
            self._watchdog.stdin.close()
            self._watchdog.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self._watchdog.kill()
            self._watchdog.wait()


def adopt_orphans() -> bool:
    """Make this process the parent of every descendant whose own parent ends; False where the kernel cannot."""
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):  # not Linux
        return False


def _start_watchdog(token: str, run_dir: Path | None) -> subprocess.Popen[bytes]:
    folder = Path(__file__).parent
    words = [sys.executable, "-I", "-S", str(folder / "watchdog.py"), str(folder), token]
    if run_dir is not None:
        words.append(str(run_dir.absolute()))
    env = {name: value for name, value in os.environ.items() if name != TOKEN}
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd="/",
        start_new_session=True,
    )
