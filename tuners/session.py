"""One watched process of the user's script, and the line over which its loop is paused, driven and stopped.

One JSON object a line. The child connects at its first step border and says hello; between commands its loop is paused,
so that whoever drives it is ordinary sequential code::

    {"hello": {"pid", "rank", "world"}}
    {"do": "observe", "steps", "seconds"}          -> {"done": "observe", "steps", "seconds", "step_seconds"}
    {"do": "border", "anchor"}                     -> {"done": "border"}
    {"do": "look", "steps", "seconds"}             -> like observe; what was seen is in the processes' facts
    {"do": "profile", "steps", "path"}             -> {"done": "profile", "path"}
    {"do": "block", "arm", "plan", "replay", "steps", "seconds", "warm"}
                                                   -> {"done": "block", ..., "start", "touched"}
    {"do": "run", "steps", "seconds", "warm"}      -> like observe, nothing recorded
    {"do": "losses"}                               -> {"done": "losses", "losses"}   kept where a plan was installed
    {"do": "close", "arm"} | {"do": "stop"} | {"do": "free"}

Any command may be answered by ``{"failed": reason}``. End of file: the other side has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fasttrain_doctor import interrupts
from fasttrain_doctor.launch import Child, Command, Streams, child_environment
from fasttrain_doctor.tuners.bench import SessionEnded
from fasttrain_doctor.tuners.fixes import Plan


@dataclass(frozen=True, slots=True)
class Hello:
    """The process that trains: rank 0 where there are several."""

    pid: int
    rank: int
    world: int


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process of the script is started with.

    ``plan`` and ``loader`` (facts of the loader it is for) are installed before the first step; ``seed`` gives
    unseeded generators the same start.
    """

    command: Command
    run_dir: Path
    probe_dir: Path
    streams: Streams
    env: Mapping[str, str]
    plan: Plan | None = None
    loader: Mapping[str, Any] | None = None
    seed: int | None = None


class Session:
    """A watched process. As a context manager it leaves nothing behind."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"fasttrain-doctor-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener.bind("\0" + name)
        self._listener.listen(64)
        self._line: socket.socket | None = None
        self._buffer = b""
        self._others: list[socket.socket] = []
        self.child = Child(setup.command, self._environment(f"@{name}"), setup.streams, run_dir=setup.run_dir)
        self.started = 0.0
        self.stopped_by_us = False

    def _environment(self, address: str) -> dict[str, str]:
        setup = self._setup
        plan = None
        if setup.plan is not None:
            plan = setup.probe_dir / "installed.json"
            plan.write_text(json.dumps({"plan": setup.plan, "loader": setup.loader}), encoding="utf-8")
        env = child_environment(
            setup.env, token=secrets.token_hex(16), probe_dir=setup.probe_dir, socket=address, plan=plan
        )
        env["FASTTRAIN_DOCTOR_GUARD"] = str(setup.run_dir)
        if setup.seed is not None:
            env["FASTTRAIN_DOCTOR_SEED"] = str(setup.seed)
        return env

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        self.child.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def hello(self, timeout: float) -> Hello | None:
        """Wait until the training loop has been found; None when the script ended or the time is over first.

        Args:
            timeout: seconds from now.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self._listener], [], [], 0.05)
            if ready:
                line, _ = self._listener.accept()
                message = self._receive(line, deadline)
                if message is not None and "hello" in message:
                    self._line = line
                    return Hello(**message["hello"])
            elif self.child.poll() is not None and not self._alive():
                return None
        return None

    @property
    def script(self) -> Path | None:
        """The Python file that is run, where it is known."""
        return self._setup.command.script

    def _alive(self) -> bool:
        """Whether any process of the run lives; torchrun may leave its ranks for a moment."""
        return bool(self.child.processes())

    def lacks_a_module(self) -> str | None:
        """Return the interpreter of a script that failed for want of a module, None for any other end."""
        command = self._setup.command
        if command.kind == "program":
            return None
        last = self._setup.streams.stderr_log.read_bytes().splitlines()[-3:]
        return command.argv[0] if any(line.startswith(b"ModuleNotFoundError") for line in last) else None

    def ask(self, command: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Send a command and wait for its answer.

        Args:
            command: see the module's text.
            timeout: seconds until the loop counts as hung.

        Raises:
            SessionEnded: the script has ended, or hangs.
        """
        assert self._line is not None, "hello() comes first"
        self._refuse_others()
        deadline = time.monotonic() + timeout
        try:
            self._line.sendall(json.dumps(command).encode() + b"\n")
        except OSError as error:
            self._hang_up()
            raise SessionEnded("the script ended") from error
        answer = self._receive(self._line, deadline)
        if answer is None:
            hung = time.monotonic() >= deadline
            raise SessionEnded(f"no step for {timeout:.0f} s" if hung else "the script ended")
        return answer

    def _refuse_others(self) -> None:
        """Let further processes that train go on unpaused: one drives, the others follow it."""
        while self._listens and select.select([self._listener], [], [], 0)[0]:
            line, _ = self._listener.accept()
            with contextlib.suppress(OSError):
                line.sendall(b'{"do": "free"}\n')
            self._others.append(line)

    def _hang_up(self) -> None:
        """Let go on unpaused whoever has called or calls from now on: the process that was driven has ended."""
        self._refuse_others()
        self._listener.close()

    @property
    def _listens(self) -> bool:
        return self._listener.fileno() >= 0

    def _receive(self, line: socket.socket, deadline: float) -> dict[str, Any] | None:
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            waited = [line, self._listener] if self._listens else [line]
            ready, _, _ = select.select(waited, [], [], min(left, 0.5))
            if self._listener in ready and self._line is not None:
                self._refuse_others()
            if line not in ready:
                continue
            data = b""
            with contextlib.suppress(OSError):
                data = line.recv(1 << 16)
            if not data:
                if line is self._line:  # not one that calls and leaves before it was heard
                    self._hang_up()
                return None
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(text)
        return message

    def stop(self) -> int | None:
        """Stop the script for good; returns its exit status when it had ended by itself."""
        with interrupts.deferred():
            return self._stop()

    def _stop(self) -> int | None:
        status = self.child.poll()
        if status is None:
            self.stopped_by_us = True
            if self._line is not None:
                with contextlib.suppress(OSError):
                    self._line.sendall(b'{"do": "stop"}\n')
                self.child.wait(3)
        self.child.stop()
        for line in (self._listener, self._line, *self._others):
            if line is not None:
                line.close()
        return status
