"""Find, end and clean up after the processes of one run.

A process belongs to a run when its environment carries the run's token, or when it descends from one that does:
torchrun's ranks are in sessions of their own, so neither a process group nor a session finds them all. Standard library
only: the watchdog imports this without site-packages. Linux: reads ``/proc``.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

TOKEN = "FASTTRAIN_DOCTOR_TOKEN"  # noqa: S105  (the name of the variable)
SHM = Path("/dev/shm")  # noqa: S108  (the kernel's folder for shared memory)
_SEGMENT = re.compile(r"torch_(\d+)_")  # torch's NewProcessWideShmHandle: torch_<pid>_<random>_<counter>
_DEAD = frozenset("ZXx")
_LAST_WAIT = 5.0  # seconds a killed process may take to go: one in an uninterruptible read may never


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table. ``started`` (clock ticks since boot) tells a reused pid from the first one."""

    pid: int
    parent: int
    state: str
    started: int


def process(pid: int) -> Process | None:
    """Read one process, or None when there is none (any more)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold spaces and brackets
    return Process(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def table() -> dict[int, Process]:
    """Read every process that can be seen."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {p.pid: p for p in found if p is not None}


def carries(pid: int, token: str) -> bool:
    """Tell whether the process was started with the run's token in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # another user's, or gone
        return False
    return f"{TOKEN}={token}".encode() in environment.split(b"\0")


def members(token: str, roots: Collection[int] = (), spare: Collection[int] = ()) -> list[Process]:
    """Return the living processes of a run, parents before children.

    Args:
        token: the run's token.
        roots: processes known to belong to it, whatever their environment says now.
        spare: processes that do not, with nothing said of their children.
    """
    everyone = table()
    children: dict[int, list[int]] = {}
    for p in everyone.values():
        children.setdefault(p.parent, []).append(p.pid)
    spared = {*spare, os.getpid()}
    ours: dict[int, Process] = {}
    waiting = [pid for pid in sorted(everyone) if pid not in spared and (pid in roots or carries(pid, token))]
    while waiting:
        pid = waiting.pop(0)
        if pid in ours or pid in spared or pid not in everyone:
            continue
        ours[pid] = everyone[pid]
        waiting.extend(children.get(pid, ()))
    depth = {pid: _depth(pid, everyone) for pid in ours}
    return sorted((p for p in ours.values() if p.state not in _DEAD), key=lambda p: (depth[p.pid], p.pid))


def adopted() -> list[int]:
    """Return our children in other sessions than ours: as a subreaper we get the orphans of a script's session."""
    ours = os.getsid(0)
    return [p.pid for p in table().values() if p.parent == os.getpid() and _session(p.pid) not in (ours, None)]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _depth(pid: int, everyone: dict[int, Process]) -> int:
    steps = 0
    while pid in everyone and steps < len(everyone):
        pid = everyone[pid].parent
        steps += 1
    return steps


def end(find: Callable[[], list[Process]], grace: float) -> list[Process]:
    """End all processes that ``find`` returns, again and again until it returns none.

    Each is asked once (SIGTERM; then SIGCONT, as a stopped process does not even notice), and killed when ``grace``
    seconds have passed. Parents are asked first, so that they do not report the death of their children.

    Returns:
        Those that would not go; normally none.
    """
    deadline = time.monotonic() + grace
    asked: set[tuple[int, int]] = set()
    while True:
        alive = find()
        now = time.monotonic()
        if not alive or now > deadline + _LAST_WAIT:
            return alive
        for p in alive:
            if now >= deadline:
                _send(p, signal.SIGKILL)
            elif (p.pid, p.started) not in asked:
                asked.add((p.pid, p.started))
                _send(p, signal.SIGTERM)
                _send(p, signal.SIGCONT)
        time.sleep(0.01)


def _send(p: Process, number: signal.Signals) -> None:
    now = process(p.pid)
    if now is None or now.started != p.started:
        return
    try:
        os.kill(p.pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or changed its user: not ours to end
        return


def segments(pids: Iterable[int]) -> set[str]:
    """Return the names in /dev/shm (torch's segments, multiprocessing's semaphores) that these processes map."""
    names: set[str] = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        names.update(re.findall(r" /dev/shm/((?:torch_|sem\.mp-)[^/\s]+)$", maps, re.MULTILINE))
    return names


def remove_segments(names: Collection[str], pids: Collection[int], folder: Path = SHM) -> list[str]:
    """Remove what dead processes of the run left in /dev/shm.

    A segment is the run's when one of its processes mapped it (``names``) or made it (``pids``; torch puts the pid into
    the name). Nothing else is taken for ours: /dev/shm may be shared with containers whose processes cannot be seen.

    Returns:
        The names removed.
    """
    removed = []
    try:
        entries = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []
    for name in entries:
        made = _SEGMENT.match(name)
        owner = int(made[1]) if made else None
        if name not in names and owner not in pids:
            continue
        if owner is not None and process(owner) is not None:
            continue
        try:
            (folder / name).unlink()
        except OSError:  # removed by its own cleaner meanwhile
            continue
        removed.append(name)
    return removed
