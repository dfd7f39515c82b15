"""Protects the user's files from the many runs of their script.

Saves go where the script says, but before the first change to anything that existed its original is kept aside, and
what did not exist is noted; afterwards ``journal.restore`` makes everything as it was. An audit hook (PEP 578) sees what
Python does; ``guard_hooks`` covers the libraries that write from C++ or Rust. Nothing here raises into the script: what
could not be protected is journaled as such.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from fasttrain_doctor.probe.keeping import Keeper
from fasttrain_doctor.probe.touched import Change, Touched

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_CHANGES = _WRITES | os.O_CREAT
_EMPTIES = os.O_CREAT | os.O_TRUNC
_ident, _fsdecode, _getcwd, _readlink, _lexists = (
    threading.get_ident,
    os.fsdecode,
    os.getcwd,
    os.readlink,
    os.path.lexists,
)
_normpath, _join = os.path.normpath, os.path.join

_files: Touched | None = None
_busy: set[int] = set()  # threads inside a handler: what it does to files is not the script's doing
_early: dict[str, str] = {}  # the same object as Touched.early: looked at on every open


def install(run_dir: str) -> None:
    """Begin to protect files; call once per interpreter, before the script's first line. Forked children inherit it.

    Args:
        run_dir: the run directory (absolute): originals go to ``kept``, the journal is ``journal.jsonl``.
    """
    global _files, _early
    if _files is not None:
        return
    run = os.path.realpath(run_dir)
    _files = Touched(Keeper(run), _ignored(run))
    _early = _files.early
    os.register_at_fork(after_in_child=_after_fork)
    lookup = {event: _guarded(handler) for event, handler in _HANDLERS.items()}.get

    def hook(event: str, args: tuple[Any, ...]) -> None:
        handler = lookup(event)
        if handler is not None:
            handler(args)

    sys.addaudithook(hook)
    from fasttrain_doctor.probe import guard_hooks

    guard_hooks.install(changing)


def loop_began() -> None:
    """Say that training has begun: what is made from now on is the script's result, not its data or a cache."""
    if _files is not None and not _files.training:
        _guarded(lambda _: _files.begin_training() if _files else None)(())


def changing(path: object, change: Change = Change.EMPTY) -> None:
    """Protect a file that is about to be written without an event of Python's."""
    if isinstance(path, str | bytes | os.PathLike):
        _guarded(lambda args: _touch(args[0], change))((path,))


def _ignored(run: str) -> tuple[str, ...]:
    """Return the folders whose contents are not the user's files: the kernel's, ours, and caches."""
    home = os.path.expanduser("~")
    caches = [os.environ.get("XDG_CACHE_HOME") or _join(home, ".cache"), _join(home, ".triton"), _join(home, ".nv")]
    named = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HF_HOME", "HF_HUB_CACHE", "TORCH_HOME", "NUMBA_CACHE_DIR")
    caches += [os.environ[name] for name in named if os.environ.get(name)]
    # The compiler's cache, named for the user; a cold one would make the first trial slower than the others.
    # Not asked of `tempfile`: what that imports would hide the user's own modules of the same names.
    temporary = next((os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)), "/tmp")  # noqa: S108
    caches += [_join(temporary, "torchinductor_")]
    folders = {os.path.realpath(folder) for folder in [*caches, run]}
    return ("/dev/", "/proc/", "/sys/", *(f if f.endswith("torchinductor_") else f + "/" for f in sorted(folders)))


def _after_fork() -> None:
    _busy.clear()
    if _files is not None:
        _files.lock = threading.RLock()


def _guarded(handler: Callable[[tuple[Any, ...]], None]) -> Callable[[tuple[Any, ...]], None]:
    def handle(args: tuple[Any, ...]) -> None:
        thread = _ident()
        if thread in _busy:
            return
        _busy.add(thread)
        try:
            handler(args)
        except Exception as error:
            if _files is not None:
                _files.failed(error)
        finally:
            _busy.discard(thread)

    return handle


def _absolute(path: Any, folder: Any = -1) -> str | None:
    """Return the path as an absolute one, or None for an open descriptor."""
    if path is None or isinstance(path, int):
        return None
    name = _fsdecode(path)
    if name.startswith("/"):
        return name
    base = _readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) and folder >= 0 else _getcwd()
    return _join(base, name)


def _touch(path: Any, change: Change, folder: Any = -1) -> None:
    name = _absolute(path, folder)
    if name is not None and _files is not None:
        _files.touch(name, change)


def _on_open(args: tuple[Any, ...]) -> None:
    path, mode, flags = args
    if not flags and mode is not None and mode.strip("rbtU"):  # opened by C's fopen: the mode says it all
        flags = _EMPTIES if "w" in mode else os.O_RDWR | os.O_CREAT
    if not flags & _CHANGES:
        if _early:
            name = _absolute(path)
            if name is not None and _files is not None:
                _files.read(_normpath(name))
        return
    if flags & os.O_EXCL or not flags & _WRITES:
        name = _absolute(path)
        if name is None or _lexists(name):  # it will fail, or only open what is there
            return
    _touch(path, Change.EMPTY if flags & _EMPTIES == _EMPTIES else Change.WRITE)


def _on_rename(args: tuple[Any, ...]) -> None:
    source, target = _absolute(args[0], args[2]), _absolute(args[1], args[3])
    if source is not None and target is not None and _files is not None:
        _files.rename(source, target)


def _on_mkdir(args: tuple[Any, ...]) -> None:
    name = _absolute(args[0], args[2])
    if name is not None and _files is not None:
        _files.make_folder(name)


def _on_link(args: tuple[Any, ...]) -> None:
    _touch(args[0], Change.WRITE, args[2])
    _touch(args[1], Change.REPLACE, args[3])


def _on_sqlite(args: tuple[Any, ...]) -> None:
    name = _fsdecode(args[0])
    if name.startswith("file:"):
        name = name[5:].partition("?")[0]
    if name and not name.startswith(":"):
        for suffix in ("", "-journal", "-wal", "-shm"):
            _touch(name + suffix, Change.WRITE)


_HANDLERS: dict[str, Callable[[tuple[Any, ...]], None]] = {
    "open": _on_open,
    "os.remove": lambda args: _touch(args[0], Change.REPLACE, args[1]),
    "os.rename": _on_rename,
    "os.rmdir": lambda args: _touch(args[0], Change.REPLACE, args[1]),
    "os.mkdir": _on_mkdir,
    "os.truncate": lambda args: _touch(args[0], Change.WRITE),
    "os.link": _on_link,
    "os.symlink": lambda args: _touch(args[1], Change.REPLACE, args[2]),
    "os.chmod": lambda args: _touch(args[0], Change.META, args[2]),
    "os.chown": lambda args: _touch(args[0], Change.META, args[3]),
    "os.utime": lambda args: _touch(args[0], Change.META, args[3]),
    "sqlite3.connect": _on_sqlite,
}
