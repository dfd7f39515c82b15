"""What the hooks of one process share. Set up by ``arm``; reset in a forked child."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from fasttrain_doctor.probe.loop import Loop
    from fasttrain_doctor.probe.recorder import Recorder

recorder: Recorder = None  # type: ignore[assignment]  # set by arm()
loop: Loop = None  # type: ignore[assignment]  # set by arm()
from_start: Any = None  # the plan installed before the first step, if any


class Inside(threading.local):
    """What the current thread is inside of: nothing is recorded twice, and no forward inside a fetch or a backward."""

    depth = 0  # of hooked calls that hide what they contain: next, fetch, forward, backward
    backward = 0
    optimizer = 0


inside = Inside()
_noted: set[str] = set()


def degraded(what: str, error: object) -> None:
    """Note once that a hook failed: the run goes on, the report says what was lost."""
    if what not in _noted:
        _noted.add(what)
        recorder.fact("degraded", what=what, why=repr(error)[:300])


class Serials:
    """Small numbers for live objects, without leaving anything on them (they may be pickled or copied)."""

    def __init__(self) -> None:
        self._next = 0
        self._known: dict[int, tuple[int, Any]] = {}

    def get(self, obj: object) -> tuple[int, bool]:
        """Return the object's number and whether it is new."""
        key = id(obj)
        entry = self._known.get(key)
        if entry is not None and entry[1]() is obj:
            return entry[0], False
        self._next += 1
        number = self._next
        try:
            ref: Any = weakref.ref(obj)
        except TypeError:
            ref = lambda kept=obj: kept  # noqa: E731  an object without weak references is kept alive instead
        self._known[key] = (number, ref)
        return number, True

    def known(self) -> list[tuple[int, Any]]:
        """Return (number, reference) of every object seen."""
        return list(self._known.values())


loaders = Serials()
iterators = Serials()
optimizers = Serials()
modules = Serials()

_LIBRARY = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_STDLIB = os.path.dirname(os.__file__)
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def user_line(start: int = 1) -> tuple[str, int, str] | None:
    """Return (file, line, function) of the innermost frame that is the user's own code."""
    return next(user_lines(start + 1), None)


def user_lines(start: int = 1) -> Iterator[tuple[str, int, str]]:
    """Yield (file, line, function) of the frames that are the user's own code, innermost first."""
    try:
        frame: FrameType | None = sys._getframe(start)
    except ValueError:  # a thread's own beginning
        return
    while frame is not None:
        name = frame.f_code.co_filename
        if (
            not name.startswith((_OURS, "<"))
            and not any(part in name for part in _LIBRARY)
            and not name.startswith(_STDLIB + os.sep)
        ):
            yield os.path.abspath(name), frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back


def qualname(obj: object) -> str:
    """Return the qualified name of an object's class."""
    cls = type(obj)
    return f"{cls.__module__}.{cls.__qualname__}"


def rank() -> tuple[int, int]:
    """Return this process's rank and how many there are, from torch where it knows them, else the environment."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
