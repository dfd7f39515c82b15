"""How the original of a file is kept aside, and the journal that says so: see ``journal.py`` for its lines.

Everything is captured at import: the script may patch ``os`` or ``time``.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time

MAX_COPY = 2 << 30  # bytes; a larger file is not copied (it may still be kept by a second name)
SWAP_FROM = 16 << 20  # bytes from which a file about to be emptied is kept by a second name instead of a copy
SPARE = 512 << 20  # bytes of the disk that stay free for the user's own writes
# Places in the run directory, which the user's process cannot ask `run` for.
JOURNAL = "journal.jsonl"
KEPT = "kept"

_FICLONE = 0x40049409  # linux/fs.h: share the blocks of a file, copied only when written

_open, _close, _read, _write = os.open, os.close, os.read, os.write
_link, _unlink, _replace, _statvfs, _getpid = os.link, os.unlink, os.replace, os.statvfs, os.getpid
_now = time.time_ns
_dumps = json.dumps


class Keeper:
    """The run's ``kept`` folder and its journal, as one process writes them.

    Args:
        run: the run directory; it exists.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.folder = os.path.join(run, KEPT)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self._journal = _open(os.path.join(run, JOURNAL), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._count = 0

    def note(self, op: str, path: str, safe: bool = False, **more: object) -> None:
        """Append one line to the journal; ``safe``: not before it is on disk does this return."""
        line = _dumps({"op": op, "path": path, "at": _now(), **more}) + "\n"
        _write(self._journal, line.encode())
        if safe:
            os.fsync(self._journal)

    def note_status(self, op: str, path: str, info: os.stat_result, **more: str) -> None:
        """Append a line with a file's status; returns once it is on disk."""
        self.note(
            op,
            path,
            safe=True,
            size=info.st_size,
            mode=stat.S_IMODE(info.st_mode),
            mtime=info.st_mtime_ns,
            atime=info.st_atime_ns,
            uid=info.st_uid,
            gid=info.st_gid,
            inode=info.st_ino,
            links=info.st_nlink,
            **more,
        )

    def keep(self, path: str, real: str, info: os.stat_result, emptied: bool, replaced: bool) -> bool:
        """Keep the original of a regular file and journal it.

        Args:
            path: what it is restored as.
            real: where it is now.
            info: its status.
            emptied: it is about to be truncated by an open that would also create it.
            replaced: its name is about to go; what it holds does not change.

        Returns:
            True when what is at ``real`` is kept by a second name only: written in place, the kept one would change
            as well. ``part`` or ``swap`` first.
        """
        self._count += 1
        name = f"{_getpid()}-{self._count}"
        kept = os.path.join(self.folder, name)
        linked = self._by_name(real, kept, info, emptied, replaced)
        if not linked:
            why = self._unaffordable(info.st_size)
            if why is not None:
                self.note_status("unprotected", path, info, why=why)
                return False
            copy(real, kept)
        self.note_status("keep", path, info, kept=name)
        if linked and emptied and not replaced:
            self.swap(real, info)
            return False
        return linked

    def _by_name(self, real: str, kept: str, info: os.stat_result, emptied: bool, replaced: bool) -> bool:
        """Give the file a second name in the kept folder: free, but only right when nobody writes into it any more."""
        if info.st_nlink != 1 or not (replaced or (emptied and info.st_size >= SWAP_FROM)):
            return False
        if not os.access(os.path.dirname(real), os.W_OK):
            return False
        try:
            _link(real, kept)
        except OSError:  # another file system, or one without hard links
            return False
        return True

    def swap(self, real: str, info: os.stat_result) -> None:
        """Put an empty file with the same mode in the original's place, in one step, for the script to write to."""
        fresh = f"{real}.{_getpid()}.fasttrain-doctor"
        try:
            fd = _open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                if info.st_uid != os.geteuid() or info.st_gid != os.getegid():
                    os.fchown(fd, info.st_uid, info.st_gid)
                os.fchmod(fd, stat.S_IMODE(info.st_mode))
            finally:
                _close(fd)
            _replace(fresh, real)
        except OSError:
            self.part(real)

    def part(self, real: str) -> None:
        """Make the file at ``real`` and its second name in the kept folder two files again."""
        inode = os.lstat(real).st_ino
        for entry in os.scandir(self.folder):
            if entry.inode() == inode:
                copy(real, entry.path + ".copy")
                _replace(entry.path + ".copy", entry.path)

    def _unaffordable(self, size: int) -> str | None:
        if size > MAX_COPY:
            return f"larger than {MAX_COPY >> 30} GiB"
        disk = _statvfs(self.folder)
        if size and disk.f_bavail * disk.f_frsize - size < SPARE:
            return "too little disk space for a copy"
        return None


def copy(source: str, target: str) -> None:
    """Copy what a file holds; blocks are shared where the file system can.

    Raises:
        OSError: the source cannot be read or the disk is full; no part of the target is left.
    """
    read = _open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        write = _open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.ioctl(write, _FICLONE, read)
            except OSError:
                while chunk := _read(read, 1 << 22):
                    left = memoryview(chunk)
                    while left:
                        left = left[_write(write, left) :]
        except OSError:
            _unlink(target)
            raise
        finally:
            _close(write)
    finally:
        _close(read)
