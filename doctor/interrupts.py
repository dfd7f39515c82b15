"""Ctrl-C where it must not cut a cleaning short: taken once, or kept until what is being done is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def once(*, last: bool = False) -> Iterator[None]:
    """Let only the first interrupt raise KeyboardInterrupt; an impatient second one must not leave files changed.

    Args:
        last: the process ends after this: once interrupted, it stays deaf.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored (nohup, a shell's background), or the caller's own
        yield
        return

    came = False

    def first(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        if not (came and last):
            signal.signal(signal.SIGINT, before)


@contextmanager
def deferred() -> Iterator[None]:
    """Keep an interrupt until the block, which takes seconds at most, is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(signal.SIGINT, None)
