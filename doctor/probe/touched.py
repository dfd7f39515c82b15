"""What the script has touched so far: the first state of every path is journaled once, and only the first."""

from __future__ import annotations

import os
import stat
import threading
from enum import Enum

from fasttrain_doctor.probe.keeping import Keeper

_MAX_PATHS = 200_000  # remembered paths, so that memory stays bounded
_FOLDER_ENTRIES = 2_000
_MADE_FILES = 50_000  # lines on files in new folders; the others are never deleted, only moved
_lstat, _realpath, _readlink, _scandir = os.lstat, os.path.realpath, os.readlink, os.scandir
_dirname, _basename, _join = os.path.dirname, os.path.basename, os.path.join


class Change(Enum):
    """How a path is about to change."""

    WRITE = "write"  # in place
    EMPTY = "empty"  # by an open that truncates, and would create it
    REPLACE = "replace"  # its name goes, or is given to another file
    META = "meta"  # mode, owner, times


class Touched:
    """The first states of all paths one process changes.

    Args:
        keeper: where they are journaled.
        ignored: beginnings of paths that are nobody's files.
    """

    def __init__(self, keeper: Keeper, ignored: tuple[str, ...]) -> None:
        self._keeper = keeper
        self._ignored = ignored
        self._seen: set[str] = set()
        self._seen_meta: set[str] = set()
        self._absent: set[str] = set()  # those of the seen that did not exist
        self._fresh: set[str] = set()  # folders that the script made: everything in them is new
        self._shared: set[str] = set()  # kept by a second name of the same file
        self._folders: set[str] = set()
        self._moves: list[tuple[str, str]] = []  # (to, from) of folders that existed and were renamed
        self._sources: set[str] = set()  # of those moves; what is made there goes out as a whole
        self._made = 0
        self._complained: set[str] = set()
        self.early: dict[str, str] = {}  # made before training began and not read since, by every name
        self.training = False
        self.lock = threading.RLock()

    def begin_training(self) -> None:
        """Journal that training begins now."""
        self.training = True
        self.early.clear()
        self._keeper.note("loop", "")

    def failed(self, error: Exception) -> None:
        """Journal once per kind that something could not be protected."""
        why = repr(error)[:200]
        if why not in self._complained and len(self._complained) < 20:
            self._complained.add(why)
            try:
                self._keeper.note("unprotected", "", why=why)
            except OSError:  # no room even for this; the folders are compared afterwards
                return

    def touch(self, name: str, change: Change) -> None:
        """Journal the path's state if it is about to change for the first time.

        Args:
            name: an absolute path.
            change: what is going to happen to it.
        """
        if (name in self._seen and name not in self._shared) or self._nobodys(name):
            return
        real = _realpath(name) if change in (Change.WRITE, Change.EMPTY) else self._place(name)
        if real.startswith(self._ignored):
            return
        with self.lock:
            if self._first(real, change):
                if real in self.early:
                    self.early[os.path.normpath(name)] = real
                if change is not Change.META and real not in self._shared and not self._in_fresh(real):
                    self._seen.update((name, real))

    def _nobodys(self, name: str) -> bool:
        return name.startswith(self._ignored) or "/__pycache__" in name

    def _place(self, name: str) -> str:
        """Return the path with every link resolved but the last: for changes to the name, not to what it leads to."""
        name = name.rstrip("/")
        return _join(_realpath(_dirname(name)), _basename(name))

    def _first(self, real: str, change: Change) -> bool:
        """Journal the state of a path; False when there is no more room to remember any."""
        if real in self._shared:
            self._separate(real, change)
            return True
        if real in self._seen or (change is Change.META and real in self._seen_meta):
            return True
        if len(self._seen) > _MAX_PATHS:
            self.failed(RuntimeError(f"more than {_MAX_PATHS} files were changed"))
            return False
        in_fresh = self._in_fresh(real)
        if not in_fresh:
            self._look_at_folder(_dirname(real))
        try:
            info = _lstat(real)
        except FileNotFoundError:
            if change is not Change.META:
                if not in_fresh:
                    self._absent.add(real)
                    self._keeper.note("new", self._canonical(real))
                elif self._made < _MADE_FILES:
                    self._made += 1
                    self._keeper.note("made", real)
                if not self.training and len(self.early) < _MAX_PATHS:
                    self.early[real] = real
            return True
        except OSError:  # a parent that is no folder, or is closed to us: the script's own call fails as well
            return True
        if not in_fresh:
            self._journal(real, info, change)
        return True

    def _journal(self, real: str, info: os.stat_result, change: Change) -> None:
        path = self._canonical(real)
        if change is Change.META:
            self._seen_meta.add(real)
            self._keeper.note_status("meta", path, info)
        elif stat.S_ISREG(info.st_mode):
            try:
                if self._keeper.keep(path, real, info, change is Change.EMPTY, change is Change.REPLACE):
                    self._shared.add(real)
            except OSError as error:
                self._keeper.note_status("unprotected", path, info, why=str(error))
        elif change is Change.REPLACE and stat.S_ISLNK(info.st_mode):
            self._keeper.note("link", path, safe=True, to=_readlink(real))
        elif change is Change.REPLACE and stat.S_ISDIR(info.st_mode):
            self._keeper.note("dir", path, safe=True, mode=stat.S_IMODE(info.st_mode))

    def _separate(self, real: str, change: Change) -> None:
        """Part a file from its kept second name before it changes; a name that goes needs no parting."""
        if change is not Change.REPLACE:
            try:
                if change is Change.EMPTY:
                    self._keeper.swap(real, _lstat(real))
                else:
                    self._keeper.part(real)
            except FileNotFoundError:
                pass
        self._shared.discard(real)
        self._seen.add(real)

    def _in_fresh(self, real: str) -> bool:
        if not self._fresh:
            return False
        while real not in self._fresh:
            parent = _dirname(real)
            if parent == real:
                return False
            real = parent
        return True

    def _canonical(self, real: str) -> str:
        """Return where a path belongs once renamed folders are back in their places."""
        for to, source in reversed(self._moves):
            if real.startswith(to + "/"):
                real = source + real[len(to) :]
        return real

    def _look_at_folder(self, folder: str) -> None:
        """Journal once what a folder that is written to holds, so that changes nobody saw can be found afterwards."""
        if folder in self._folders or len(self._folders) > _FOLDER_ENTRIES:
            return
        self._folders.add(folder)
        entries: dict[str, tuple[int, int, int]] = {}
        try:
            with _scandir(folder) as listing:
                for entry in listing:
                    if len(entries) >= _FOLDER_ENTRIES:
                        break
                    if entry.is_file(follow_symlinks=False):
                        info = entry.stat(follow_symlinks=False)
                        entries[entry.name] = (info.st_size, info.st_mtime_ns, info.st_ino)
        except OSError:
            return
        self._keeper.note("folder", folder, entries=entries)

    def make_folder(self, name: str) -> None:
        """Journal a folder about to be made; all that comes into it is new without further lines."""
        real = self._place(name)
        if os.path.lexists(real) or self._nobodys(real):
            return
        self.touch(real, Change.REPLACE)
        # One of the user's that was removed and is made again is not new.
        if real in self._absent or real in self._sources or self._in_fresh(real):
            self._fresh.add(real)

    def rename(self, source: str, target: str) -> None:
        """Journal what a rename changes: what was at the target, and that the source goes."""
        old, new = self._place(source), self._place(target)
        try:
            info = _lstat(old)
        except OSError:  # it will fail
            return
        self.touch(new, Change.REPLACE)
        if self._nobodys(old):
            return
        ours = old in self._absent or self._in_fresh(old)
        if stat.S_ISDIR(info.st_mode):
            if ours:
                self._fresh.add(new)
                self._keeper.note("renamed", old, to=new)
            else:
                self._keeper.note("moved", old, safe=True, to=new)
                self._moves.append((new, old))
                self._sources.add(old)
                self._seen.add(old)
            return
        shared = old in self._shared
        if not ours and not shared:
            self.touch(old, Change.REPLACE)
            shared = old in self._shared
        if shared:  # the same file lives on under the new name, and may be written there
            self._shared.discard(old)
            self._seen.add(old)
            self._shared.add(new)

    def read(self, name: str) -> None:
        """Note that something made before training began is read: data or a cache, to be left for the next run."""
        while len(name) > 1:
            real = self.early.pop(name, None)
            if real is not None:
                self._keeper.note("read", real)
                return
            name = _dirname(name)
