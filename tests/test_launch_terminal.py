"""The script's terminal has the size of ours, also after it changed."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios

from fasttrain_doctor.terminal import InputForwarder, ResizeForwarder, open_terminal


def set_size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_the_size_is_taken_over_and_followed() -> None:
    our_master, ours = pty.openpty()
    set_size(ours, 30, 100)
    master, slave = open_terminal(ours)
    before = signal.getsignal(signal.SIGWINCH)
    forwarder = ResizeForwarder(ours, [master])
    try:
        assert os.get_terminal_size(slave) == (100, 30)
        forwarder.start()
        set_size(ours, 40, 120)
        signal.raise_signal(signal.SIGWINCH)
        assert os.get_terminal_size(slave) == (120, 40)
    finally:
        forwarder.stop()
        for fd in (our_master, ours, master, slave):
            os.close(fd)
    assert signal.getsignal(signal.SIGWINCH) == before


def test_what_is_typed_reaches_the_script_once() -> None:
    our_master, ours = pty.openpty()
    master, slave = open_terminal(ours)
    forwarder = InputForwarder(ours, os.dup(master))
    forwarder.start()
    try:
        os.write(our_master, b"yes\n")
        assert os.read(slave, 100) == b"yes\n"
        os.write(slave, b"thanks")
        assert os.read(master, 100) == b"thanks", "without an echo of what was typed: the real terminal has shown it"
    finally:
        forwarder.stop()
        for fd in (our_master, ours, master, slave):
            os.close(fd)
