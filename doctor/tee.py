"""Pass a stream of the script on while keeping it in a log."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LIMIT = 64 << 20  # bytes of one log: a script may print without end
_CUT = b"\n[fasttrain-doctor: the rest of this stream was not kept]\n"
_LONGEST = 1 << 16  # bytes without a line end that are held back before they are written


class Tee(threading.Thread):
    """Reads a descriptor to its end; writes to the log what ``clean`` leaves of each line, and all of it to the sink.

    A sink that is closed is dropped, a log that cannot be written is given up (``failed`` says why): the script must
    never wait for a reader that has gone.
    """

    def __init__(self, source: int, log: Path, sink: BinaryIO | None, clean: Callable[[bytes], bytes]) -> None:
        super().__init__(name=f"tee {log.name}", daemon=True)
        self._source, self._log, self._sink, self._clean = source, log, sink, clean
        self._written = 0
        self.failed: str | None = None

    def run(self) -> None:
        """Copy until every writer has closed the stream."""
        try:
            log: BinaryIO | None = self._log.open("ab", buffering=0)
        except OSError as error:
            log, self.failed = None, str(error)
        held = b""
        while data := self._read():
            self._pass_on(data)
            ends = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if ends or len(held) + len(data) > _LONGEST:
                log = self._keep(log, held + data[: ends or len(data)])
                held = data[ends or len(data) :]
            else:
                held += data
        log = self._keep(log, held)
        if log is not None:
            log.close()
        os.close(self._source)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, 1 << 16)
        except OSError:  # EIO: the last process has closed its end of the terminal
            return b""

    def _pass_on(self, data: bytes) -> None:
        if self._sink is None:
            return
        try:
            self._sink.write(data)
            self._sink.flush()
        except (OSError, ValueError):  # a broken pipe, or closed
            self._sink = None

    def _keep(self, log: BinaryIO | None, data: bytes) -> BinaryIO | None:
        if log is None or not data:
            return log
        kept = b"".join(self._clean(line) for line in re.split(rb"(?<=[\n\r])", data))
        cut = self._written + len(kept) > LIMIT
        try:
            log.write(kept[: LIMIT - self._written] + _CUT if cut else kept)
        except OSError as error:  # most often a full disk
            self.failed = str(error)
            cut = True
        if cut:
            log.close()
            return None
        self._written += len(kept)
        return log
