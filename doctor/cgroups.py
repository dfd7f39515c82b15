"""What the control groups of this process allow and count: v1, v2, both at once, nested, and seen from a container.

A limit may be set on any group above; the smallest counts. ``proc`` and ``root`` can be replaced by recorded trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60  # v1 says "none" with a number near 2**63


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a process for one controller, its own first, then those above as far as they can be seen."""

    version: int
    folders: tuple[Path, ...]


def find(controller: str, proc: Path = Path("/proc/self"), root: Path = Path("/")) -> Groups | None:
    """Find the groups of a controller (``cpu``, ``memory``, ``io``), or None where there are no control groups.

    Args:
        controller: its v1 name; with v2 all controllers share one tree.
        proc: a folder with the process's ``cgroup`` and ``mountinfo``.
        root: where the mount points begin.
    """
    try:
        lines = (proc / "cgroup").read_text().splitlines()
        mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:
        return None
    paths = {}
    for line in lines:
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    for version, kind, key in ((1, "cgroup", controller), (2, "cgroup2", "")):
        if key not in paths:
            continue
        for words in mounts:
            separator = words.index("-")
            if words[separator + 1] != kind or (version == 1 and controller not in words[separator + 3].split(",")):
                continue
            folders = _upwards(root / words[4].lstrip("/"), words[3], paths[key])
            if version == 2 and not any((folder / "cgroup.controllers").exists() for folder in folders):
                continue
            return Groups(version, folders)
    return None


def _upwards(mount: Path, mounted: str, path: str) -> tuple[Path, ...]:
    """Return the group's folder and those above it within the mount.

    In a container the mount shows only a part of the tree (``mounted``); a path outside of it (``/../x``) is the mount's
    own group for all we can see.
    """
    if mounted != "/":
        path = path.removeprefix(mounted) if path == mounted or path.startswith(mounted + "/") else "/"
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        parts = []
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return tuple(folder for folder in folders if folder.is_dir())


def quota(groups: Groups | None) -> float | None:
    """Return the CPU quota in cores (a fraction is possible), or None for no limit."""
    found = []
    for folder in groups.folders if groups else ():
        if groups is not None and groups.version == 2:
            most, _, period = (_text(folder / "cpu.max") or "max").partition(" ")
        else:
            most, period = _text(folder / "cpu.cfs_quota_us") or "-1", _text(folder / "cpu.cfs_period_us") or ""
        if most.isdigit() and period.isdigit() and int(period) > 0 and int(most) > 0:
            found.append(int(most) / int(period))
    return min(found, default=None)


@dataclass(frozen=True, slots=True)
class Memory:
    """The tightest memory limit in bytes, and what of it is free (page cache that can be dropped counts as free)."""

    limit: int
    free: int


def memory(groups: Groups | None) -> Memory | None:
    """Return the group with the least free memory, or None where no group limits it."""
    found = []
    for folder in groups.folders if groups else ():
        new = groups is not None and groups.version == 2
        limit = _number(folder / ("memory.max" if new else "memory.limit_in_bytes"))
        used = _number(folder / ("memory.current" if new else "memory.usage_in_bytes"))
        if limit is None or limit >= _NO_LIMIT:
            continue
        cache = counters(folder / "memory.stat").get("inactive_file" if new else "total_inactive_file", 0)
        found.append(Memory(limit, limit if used is None else max(0, limit - max(0, used - cache))))
    if not found:
        return None
    return Memory(min(m.limit for m in found), min(m.free for m in found))


@dataclass(frozen=True, slots=True)
class Throttling:
    """Since the group exists: seconds it was held back by its quota, and in how many of how many periods."""

    seconds: float
    throttled: int
    periods: int


def throttling(groups: Groups | None) -> Throttling | None:
    """Return how the group that sets the quota was held back, or None where there is no quota."""
    if groups is None:
        return None
    for folder in groups.folders:
        stat = counters(folder / "cpu.stat")
        if stat.get("nr_periods"):
            seconds = stat["throttled_usec"] / 1e6 if "throttled_usec" in stat else stat.get("throttled_time", 0) / 1e9
            return Throttling(seconds, stat.get("nr_throttled", 0), stat["nr_periods"])
    return None


def counters(file: Path) -> dict[str, int]:
    """Read a file of ``name number`` lines; empty where there is none."""
    pairs = [line.split() for line in (_text(file) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def stalled(file: Path) -> float | None:
    """Return the seconds in which some task waited, from a pressure file (PSI), or None where the kernel has none."""
    for line in (_text(file) or "").splitlines():
        if line.startswith("some "):
            return int(line.rpartition("total=")[2]) / 1e6
    return None


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text and text.isdigit() else None
