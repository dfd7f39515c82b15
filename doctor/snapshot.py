"""What the user's folders hold before and after, so that a change which nothing protected is found and said."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fasttrain_doctor.probe.keeping import JOURNAL

SKIPPED = frozenset(
    {".git", ".hg", ".venv", "venv", "site-packages", "node_modules", "__pycache__", ".fasttrain-doctor"}
)
MOST = 20_000  # entries: a folder of images is data, and comparing it must not cost more than the measurement

State = tuple[int, int, int]  # size in bytes, mtime in ns, inode


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files by absolute path. ``complete`` is False when there were more than are compared."""

    files: Mapping[str, State]
    folders: tuple[str, ...]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Changed:
    """One difference between two snapshots."""

    path: str
    what: Literal["changed", "removed", "created"]


def snapshot(paths: Iterable[str | Path], most: int = MOST) -> Snapshot:
    """Look at all files under the folders, the nearest first; links are not followed.

    Args:
        paths: folders; those that do not exist are empty.
        most: files looked at in all.
    """
    roots = tuple(dict.fromkeys(str(Path(p).absolute()) for p in paths))
    files: dict[str, State] = {}
    waiting = list(roots)
    known = set(waiting)
    while waiting:
        folder = waiting.pop(0)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in SKIPPED and entry.path not in known and len(known) < most:
                    known.add(entry.path)
                    waiting.append(entry.path)
            elif len(files) >= most:
                return Snapshot(files, roots, complete=False)
            else:
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:  # gone meanwhile
                    continue
                files[entry.path] = (info.st_size, info.st_mtime_ns, info.st_ino)
    return Snapshot(files, roots)


def saved_to(run_dir: str | Path) -> Snapshot:
    """Return what the folders that the script wrote to held before its first change, from the run's journals.

    Call before or after restoring; the first look at a folder counts.
    """
    files: dict[str, State] = {}
    folders: list[str] = []
    journals = sorted(Path(run_dir).glob("journal.*.jsonl"), key=lambda p: p.stat().st_mtime)
    for journal in [*journals, Path(run_dir) / JOURNAL]:
        if not journal.exists():
            continue
        for line in journal.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # torn by a kill
                continue
            # Everybody writes to the folder for temporary files: what changed there says nothing of this script.
            shared = entry["op"] == "folder" and entry["path"] == tempfile.gettempdir()
            if entry["op"] == "folder" and not shared and entry["path"] not in folders:
                folders.append(entry["path"])
                files |= {str(Path(entry["path"], name)): tuple(state) for name, state in entry["entries"].items()}
    return Snapshot(files, tuple(folders), complete=False)


def now(before: Snapshot) -> Snapshot:
    """Look again at the same files (and, where it was complete, for new ones)."""
    if before.complete:
        return snapshot(before.folders)
    files: dict[str, State] = {}
    for path in before.files:
        try:
            info = os.lstat(path)
        except OSError:
            continue
        files[path] = (info.st_size, info.st_mtime_ns, info.st_ino)
    return Snapshot(files, before.folders, complete=False)


def changes(before: Snapshot, after: Snapshot, put_back: Collection[str] = ()) -> list[Changed]:
    """Compare two snapshots.

    Args:
        before: of the folders before the script ran.
        after: of the same, once it has ended and its files are restored.
        put_back: files that ``restore`` put back: theirs is another inode, with the same content, size and time.

    Returns:
        Every file that is not as it was, by path. New files are looked for only where both are complete.
    """
    found = []
    for path, state in before.files.items():
        new = after.files.get(path)
        if new is None:
            if after.complete or not os.path.lexists(path):
                found.append(Changed(path, "removed"))
        elif new != state and not (path in put_back and new[:2] == state[:2]):
            found.append(Changed(path, "changed"))
    if before.complete and after.complete:
        found += [Changed(path, "created") for path in after.files if path not in before.files]
    return sorted(found, key=lambda change: change.path)


def in_use(path: str) -> bool:
    """Whether a living process has the file open: then it is someone else's, such as a log our output goes to."""
    try:
        wanted = Path(path).stat()
    except OSError:
        return False
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            held = descriptor.stat()
        except OSError:  # another user's, or gone
            continue
        if (held.st_dev, held.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False
