"""A terminal for the script where we have one: progress bars, ``stty size`` and prompts behave as without us."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import threading
from collections.abc import Callable, Sequence
from types import FrameType

_Handler = Callable[[int, FrameType | None], object] | int | None


def open_terminal(like: int) -> tuple[int, int]:
    """Open a pseudo terminal with the size of ``like`` (a descriptor of a terminal).

    Returns:
        (master, slave) descriptors. The slave neither echoes nor translates line ends: the real terminal does both.
    """
    master, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~(termios.ECHO | termios.ECHONL)
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    copy_size(like, [master])
    return master, slave


def copy_size(like: int, masters: Sequence[int]) -> None:
    """Give the pseudo terminals the size of the real one; the kernel tells the script (SIGWINCH) when it changed."""
    try:
        size = fcntl.ioctl(like, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        for master in masters:
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)
    except OSError:  # one of them has just been closed
        return


class ResizeForwarder:
    """Forwards size changes of the real terminal while it is active; only the main thread can handle signals.

    Keeps descriptors of its own: the readers close theirs when the script ends.
    """

    def __init__(self, like: int, masters: Sequence[int]) -> None:
        self._like, self._masters = like, tuple(os.dup(fd) for fd in masters)
        self._before: _Handler = None
        self._active = False

    def start(self) -> None:
        """Take over SIGWINCH."""
        if self._masters and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGWINCH, lambda *_: copy_size(self._like, self._masters))
            self._active = True

    def stop(self) -> None:
        """Hand SIGWINCH back."""
        if self._active and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGWINCH, self._before or signal.SIG_DFL)
            self._active = False
        for fd in self._masters:
            os.close(fd)
        self._masters = ()


class InputForwarder(threading.Thread):
    """Copies what is typed to the script's terminal.

    Reads only while we are the terminal's foreground group: a background reader would be stopped by the kernel.
    """

    def __init__(self, source: int, master: int) -> None:
        super().__init__(name="standard input", daemon=True)
        self._source, self._master = source, master
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> None:
        """Copy until the end of input or until stopped."""
        while True:
            ready, _, _ = select.select([self._source, self._wake_read], [], [])
            if self._wake_read in ready:
                break
            if not self._in_foreground():
                if select.select([self._wake_read], [], [], 0.2)[0]:
                    break
                continue
            try:
                data = os.read(self._source, 4096)
                os.write(self._master, data or b"\x04")  # an end of file is a control-D to a terminal
            except OSError:
                break
            if not data:
                break

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._source) == os.getpgrp()
        except OSError:  # not our controlling terminal: no job control to obey
            return True

    def stop(self) -> None:
        """End the thread and close its descriptors, the terminal's among them."""
        os.write(self._wake_write, b"x")
        self.join(timeout=1)
        for fd in (self._wake_write, self._wake_read, self._master):
            os.close(fd)
