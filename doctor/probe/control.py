"""The line to the parent: one JSON object a line over a socket; commands are carried out at step borders."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

from fasttrain_doctor.probe import state
from fasttrain_doctor.probe.loop import Loop

# Captured: scripts put others in their place.
_dumps, _loads = json.dumps, json.loads
_read, _write, _close, _getpid = os.read, os.write, os.close, os.getpid


class Control:
    """Connects at the first border, says hello, then waits for commands whenever a program is finished.

    Holds a bare descriptor: nothing of it is finalised at the script's end, where Python's development mode would report.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._fd = -1
        self._buffer = b""

    def __call__(self, loop: Loop) -> None:
        """Report a finished program and carry out commands until one wants steps."""
        from fasttrain_doctor.probe import commands

        try:
            if self._fd < 0 and not self._connect():
                loop.free()
                return
            if loop.program is not None:
                self.send(commands.reported(loop))
            while True:
                line = self._receive()
                if not line:
                    self._orphaned(loop)
                    return
                command = _loads(line)
                if command["do"] == "free":
                    loop.free()
                    return
                answer = commands.carry_out(loop, command)
                if answer is None:
                    return
                self.send(answer)
        except OSError:
            self._orphaned(loop)
        except Exception as error:
            state.degraded("control", error)
            loop.free()
            if self._fd >= 0:
                _close(self._fd)

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        left = _dumps(message, default=repr).encode() + b"\n"
        while left:
            left = left[_write(self._fd, left) :]

    def _receive(self) -> bytes:
        """Return the next line, nothing at the end of file."""
        while b"\n" not in self._buffer:
            data = _read(self._fd, 65536)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _connect(self) -> bool:
        rank, world = state.rank()
        worker = sys.modules.get("torch.utils.data._utils.worker")
        if rank != 0 or (worker is not None and worker._worker_info is not None):
            return False
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            address = self._address
            connection.connect("\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            return False
        self._fd = connection.detach()
        self.send({"hello": {"pid": _getpid(), "rank": rank, "world": world}})
        return True

    @staticmethod
    def _orphaned(loop: Loop) -> None:
        """Stop when the parent is gone: nothing may be left running."""
        from fasttrain_doctor.probe import stop

        sys.stderr.write("fasttrain-doctor: the doctor is gone; stopping the script\n")
        stop.stop(143)
