"""Make the user's files as they were before their script ran, from the journal that the guard wrote.

One JSON object a line in ``<run>/journal.jsonl``; only the first line of a path counts, as it tells the path's state
before any change. ``at`` is in ns of the wall clock. The operations:

- ``keep``: a regular file existed; its original is ``kept/<kept>``, with its status.
- ``new``: nothing was there.             - ``link``: a symbolic link ``to``.       - ``dir``: a folder with ``mode``.
- ``meta``: only mode, owner or times changed.    - ``moved``: a folder that existed was renamed ``to``.
- ``made``: a file in a folder that is itself new.  - ``renamed``: such a folder was renamed ``to``.
- ``unprotected``: it could not be kept, and ``why``.
- ``loop``: training began.    - ``read``: something new was read before that: data or a cache.
- ``folder``: what a folder that was written to held (``name: [size, mtime, inode]``).

Restoring can be repeated and may be killed at any point: the next time completes it. Standard library only: the
watchdog imports this.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fasttrain_doctor.probe.keeping import JOURNAL, KEPT


@dataclass(frozen=True, slots=True)
class Restored:
    """What restoring did. Paths are absolute.

    Attributes:
        put_back: files, links and folders that are as they were again.
        moved: what the script had made, out of its way now in the run's ``created`` folder (or deleted).
        left: new files left in place: they were made and read before training began (data, a cache).
        unprotected: (path, why) of what changed and could not be kept, or could not be put back. An empty path: the
            protection itself failed.
    """

    put_back: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unprotected: tuple[tuple[str, str], ...] = ()


@dataclass
class _Work:
    run: Path
    created: Path
    discard: bool
    made: set[str] = field(default_factory=set)
    put_back: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unprotected: list[tuple[str, str]] = field(default_factory=list)
    failed: bool = False


def pending(run_dir: str | Path) -> bool:
    """Tell whether a run's files still have to be restored."""
    return (Path(run_dir) / JOURNAL).exists()


def restore(run_dir: str | Path, *, discard: bool = False) -> Restored:
    """Put originals back and move new files out; nothing of the script may be running.

    What the script wrote over an original goes to the run's ``created`` folder as well, so nothing is lost even if the
    user changed it since.

    Args:
        run_dir: the run directory.
        discard: delete what the script is known to have made instead of moving it. Whatever else lies in a folder it
            made (another program's, the user's) is moved all the same.

    Returns:
        What was done. A file that cannot be put back is listed as unprotected, and the journal stays for another try.
    """
    run = Path(run_dir).resolve()
    if not pending(run):
        return Restored()
    with _alone(run):
        if not pending(run):
            return Restored()
        finished = len(list(run.glob("journal.*.jsonl")))
        work = _Work(run, run / "created" / str(finished + 1), discard)
        _restore(work, list(_lines(run / JOURNAL)))
        if not work.failed:
            (run / JOURNAL).replace(run / f"journal.{finished + 1}.jsonl")
            shutil.rmtree(run / KEPT, ignore_errors=True)
    return Restored(tuple(work.put_back), tuple(work.moved), tuple(work.left), tuple(work.unprotected))


@contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Hold the run's lock: the watchdog and the next command may both want to restore."""
    with (run / "restore.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lines(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the journal's entries; a torn last line (killed while writing) had not changed anything yet."""
    with journal.open("rb") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict) and isinstance(entry.get("op"), str) and isinstance(entry.get("path"), str):
                yield entry


def _restore(work: _Work, lines: list[dict[str, Any]]) -> None:
    work.made |= _made(lines)
    for line in reversed([line for line in lines if line["op"] == "moved"]):
        _try(work, line["path"], _move_back, line)
    _take_out_new(work, lines)
    first = sorted(_first(lines, "keep", "new", "link", "dir", "unprotected").items())
    for path, line in first:
        if line["op"] == "dir":
            _try(work, path, _folder_back, line)
    for path, line in first:
        if line["op"] == "keep":
            _try(work, path, _file_back, line)
        elif line["op"] == "link":
            _try(work, path, _link_back, line)
        elif line["op"] == "unprotected" and (not path or not _is_original(Path(path), line)):
            work.unprotected.append((path, line["why"]))
    for path, line in _first(lines, "meta").items():
        if os.path.lexists(path):
            _try(work, path, lambda _, line: _status_back(line["path"], line), line)


def _made(lines: list[dict[str, Any]]) -> set[str]:
    """Return the paths that the script gave to files which did not exist before."""
    made: set[str] = set()
    for line in lines:
        if line["op"] in ("new", "made"):
            made.add(line["path"])
        elif line["op"] == "renamed":
            old = line["path"] + "/"
            made |= {line["to"] + path[len(old) - 1 :] for path in made if path.startswith(old)}
    return made


def _first(lines: list[dict[str, Any]], *operations: str) -> dict[str, dict[str, Any]]:
    """Return the first line of every path, of those with one of the operations."""
    first: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["op"] in operations:
            first.setdefault(line["path"], line)
    return first


def _take_out_new(work: _Work, lines: list[dict[str, Any]]) -> None:
    training = min((line["at"] for line in lines if line["op"] == "loop"), default=None)
    read = [line["path"] for line in lines if line["op"] == "read" and (training is None or line["at"] < training)]
    for path, line in sorted(_first(lines, "keep", "new", "link", "dir", "unprotected").items()):
        if line["op"] == "new":
            early = training is None or line["at"] < training
            was_read = early and any(r == path or r.startswith(path + "/") for r in read)
            _try(work, path, partial(_take_out, path=Path(path), was_read=was_read, training=training), line)


def _try(work: _Work, path: str, step: Callable[[_Work, dict[str, Any]], None], line: dict[str, Any]) -> None:
    """Do one step; one that fails must not keep the others from being done."""
    try:
        step(work, line)
    except (OSError, KeyError, TypeError) as error:  # the latter: a line that was damaged
        work.failed = True
        work.unprotected.append((path, f"could not be put back: {error}"))


def _is_original(path: Path, line: dict[str, Any]) -> bool:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return False
    return (info.st_size, info.st_mtime_ns, info.st_ino) == (line["size"], line["mtime"], line["inode"])


def _move_back(work: _Work, line: dict[str, Any]) -> None:
    if os.path.lexists(line["to"]):
        if os.path.lexists(line["path"]):
            _set_aside(work, Path(line["path"]))
        Path(line["path"]).parent.mkdir(parents=True, exist_ok=True)
        Path(line["to"]).rename(line["path"])
        work.put_back.append(line["path"])


def _take_out(work: _Work, _: object, *, path: Path, was_read: bool, training: int | None) -> None:
    """Move out what is new; what was made and read before training began stays, unless it was changed after."""
    if not os.path.lexists(path):
        return
    if not was_read:
        _set_aside(work, path)
        work.moved.append(str(path))
        return
    if path.is_dir() and not path.is_symlink():
        for folder, _, names in os.walk(path):
            for name in names:
                _take_out(work, None, path=Path(folder, name), was_read=True, training=training)
    elif training is not None and path.lstat().st_ctime_ns > training:
        _set_aside(work, path)
        work.moved.append(str(path))
    else:
        work.left.append(str(path))


def _set_aside(work: _Work, path: Path) -> None:
    """Move a file or folder into the run's ``created`` folder, under its full path; or delete it."""
    if work.discard and path.is_dir() and not path.is_symlink():
        for inner in list(path.iterdir()):
            _set_aside(work, inner)
        path.rmdir()
        return
    if work.discard and str(path) in work.made:
        path.unlink()
        return
    target = _aside(work, path)
    try:
        path.rename(target)
    except OSError:  # another file system
        shutil.move(path, target)


def _aside(work: _Work, path: Path) -> Path:
    target = work.created.joinpath(*path.parts[1:])
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = 1
    while os.path.lexists(target):
        target = target.with_name(f"{path.name}.{number}")
        number += 1
    return target


def _folder_back(work: _Work, line: dict[str, Any]) -> None:
    path = Path(line["path"])
    if path.is_dir() and not path.is_symlink():
        return
    if os.path.lexists(path):
        _set_aside(work, path)
    path.mkdir(parents=True)
    path.chmod(line["mode"])
    work.put_back.append(str(path))


def _link_back(work: _Work, line: dict[str, Any]) -> None:
    path, to = Path(line["path"]), line["to"]
    if path.is_symlink() and os.readlink(path) == to:  # noqa: PTH115  (as it was written, not normalised)
        return
    if os.path.lexists(path):
        _set_aside(work, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(to, path)  # noqa: PTH211
    work.put_back.append(str(path))


def _file_back(work: _Work, line: dict[str, Any]) -> None:
    """Put a file's original back in one step, so that the path never holds half of it."""
    path = Path(line["path"])
    kept = work.run / KEPT / line["kept"]
    if not kept.exists():  # done before we were killed
        return
    if kept.stat().st_size != line["size"]:
        raise OSError(f"its kept original {kept} is not whole")
    if _is_original(path, line):
        kept.unlink()
        return
    _status_back(str(kept), line)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        _set_aside(work, path)
    elif os.path.lexists(path):
        if line["links"] > 1 and path.lstat().st_ino == line["inode"]:
            _overwrite(work, path, kept, line)
            return
        if not work.discard:
            _copy_aside(path, _aside(work, path))
    beside = path.with_name(f"{path.name}.restoring.fasttrain-doctor")
    try:
        kept.replace(path)
    except OSError:  # another file system: through a file beside the target
        shutil.copy2(kept, beside)
        _status_back(str(beside), line)
        beside.replace(path)
        kept.unlink()
    beside.unlink(missing_ok=True)  # of an earlier try that was killed
    work.put_back.append(str(path))


def _overwrite(work: _Work, path: Path, kept: Path, line: dict[str, Any]) -> None:
    """Write the original into the file itself: it has other names, which a new file would not reach."""
    if not work.discard:
        shutil.copy2(path, _aside(work, path))
    shutil.copyfile(kept, path)
    _status_back(str(path), line)
    kept.unlink()
    work.put_back.append(str(path))


def _copy_aside(path: Path, target: Path) -> None:
    try:
        target.hardlink_to(path)  # the path itself is replaced next, in one step
    except OSError:
        shutil.copy2(path, target, follow_symlinks=False)


def _status_back(path: str, line: dict[str, Any]) -> None:
    info = os.lstat(path)
    if (info.st_uid, info.st_gid) != (line["uid"], line["gid"]):
        os.chown(path, line["uid"], line["gid"], follow_symlinks=False)
    os.chmod(path, line["mode"])  # noqa: PTH101
    os.utime(path, ns=(line["atime"], line["mtime"]))
