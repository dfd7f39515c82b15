"""Samples of the machine while the script runs, from outside of it: CPU, memory, disk, pressure, throttling, GPUs."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import psutil

from fasttrain_doctor import cgroups, nvml

INTERVAL = 0.5  # seconds
LARGEST = 16 << 20  # bytes of the file: hours at a few hundred bytes a sample
_RESCAN = 4  # samples between looks for new processes, and between those of PCIe: both take milliseconds
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """The machine at one moment; rates are over the time since the sample before. None: not available.

    Attributes:
        t: ns of the monotonic clock, the one the probe uses.
        cpu: busy share of each core.
        tree_cpu: cores kept busy by the script's processes.
        tree_memory: bytes resident in them (shared pages count in each).
        processes: how many they are.
        memory_used: bytes, of the whole machine.
        memory_free: bytes available.
        disk_read: bytes per second from disks, of the whole machine (page cache hits are none).
        disk_written: bytes per second.
        waiting_cpu: share of the time in which some task of the machine waited for a CPU (PSI).
        waiting_io: likewise for a disk.
        waiting_memory: likewise for memory.
        group_waiting_cpu: likewise for this control group.
        throttled: seconds per second that the control group's quota held it back (several CPUs add up).
        gpus: one entry per visible GPU.
    """

    t: int
    cpu: tuple[float, ...] | None = None
    tree_cpu: float | None = None
    tree_memory: int | None = None
    processes: int | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    disk_read: float | None = None
    disk_written: float | None = None
    waiting_cpu: float | None = None
    waiting_io: float | None = None
    waiting_memory: float | None = None
    group_waiting_cpu: float | None = None
    throttled: float | None = None
    gpus: tuple[nvml.GpuSample, ...] = ()


class Sampler:
    """A thread that writes a ``Sample`` a line until it is stopped. A context manager.

    Args:
        path: the file to write; appended to.
        pid: the root of the process tree; when it is this process, it is not counted itself.
        interval: seconds between samples.
        largest: bytes after which nothing more is written.
    """

    def __init__(self, path: Path, pid: int, *, interval: float = INTERVAL, largest: int = LARGEST) -> None:
        self._path, self._interval, self._largest = path, interval, largest
        self._tree = _Tree(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.failed: str | None = None

    def start(self) -> Self:
        """Begin to sample."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take no more samples; returns when the last one is written."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        gauges = _Gauges(self._tree)
        gauges.read()  # rates need a beginning
        try:
            with self._path.open("ab", buffering=0) as file:
                while not self._stop.wait(self._interval) and file.tell() < self._largest:
                    file.write(msgspec.json.encode(gauges.read()) + b"\n")
        except OSError as error:  # a full disk must not stop the diagnosis
            self.failed = str(error)


def read_samples(path: Path) -> list[Sample]:
    """Read a file of samples; a torn last line is left out, no file is no samples."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    samples = []
    for line in lines:
        try:
            samples.append(msgspec.json.decode(line, type=Sample))
        except msgspec.DecodeError:
            continue
    return samples


class _Tree:
    """CPU time and memory of a process tree, read from /proc: psutil's walk costs a core's tenth on a busy server."""

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._known: list[int] = []
        self._before: dict[int, int] = {}
        self._turn = 0

    def read(self) -> tuple[int, int, int] | None:
        """Return (clock ticks used since the last reading, bytes resident, processes); None where /proc is missing."""
        if self._turn % _RESCAN == 0:
            self._known = self._members()
        self._turn += 1
        ticks, resident, now = 0, 0, {}
        for pid in self._known:
            fields = _stat(pid)
            if fields is None:
                continue
            now[pid] = int(fields[11]) + int(fields[12])
            ticks += now[pid] - self._before.get(pid, now[pid])
            resident += int(fields[21]) * _PAGE
        self._before = now
        return ticks, resident, len(now)

    def _members(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208
            if name.isdigit() and (fields := _stat(int(name))) is not None:
                children.setdefault(int(fields[1]), []).append(int(name))
        found = [] if self._root == os.getpid() else [self._root]
        waiting = [self._root]
        while waiting:
            more = children.get(waiting.pop(), [])
            found += more
            waiting += more
        return found


def _stat(pid: int) -> list[bytes] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return stat[stat.rindex(b")") + 2 :].split()


class _Gauges:
    """Everything that is read for a sample, with what is needed to turn counters into rates."""

    def __init__(self, tree: _Tree) -> None:
        self._tree = tree
        self._nvml = nvml.open_nvml()
        self._cpu = cgroups.find("cpu")
        self._counters: dict[str, float] = {}
        self._t = time.monotonic_ns()
        self._turn = 0

    def read(self) -> Sample:
        t = time.monotonic_ns()
        elapsed = max(1e-9, (t - self._t) / 1e9)
        self._t = t

        def rate(name: str, value: float | None) -> float | None:
            """Turn a counter into a rate; None at its first reading."""
            before = self._counters.get(name)
            if value is None:
                return None
            self._counters[name] = value
            return None if before is None else max(0.0, value - before) / elapsed

        memory, disk = psutil.virtual_memory(), psutil.disk_io_counters()
        tree = self._tree.read()
        throttling = cgroups.throttling(self._cpu)
        pressure = Path("/proc/pressure")
        group = None
        if self._cpu is not None and self._cpu.version == 2 and self._cpu.folders:
            group = cgroups.stalled(self._cpu.folders[0] / "cpu.pressure")
        pcie = self._turn % _RESCAN == 0
        self._turn += 1
        return Sample(
            t=t,
            cpu=tuple(round(share / 100, 3) for share in psutil.cpu_percent(percpu=True)) or None,
            tree_cpu=None if tree is None else tree[0] / _TICK / elapsed,
            tree_memory=None if tree is None else tree[1],
            processes=None if tree is None else tree[2],
            memory_used=memory.used,
            memory_free=memory.available,
            disk_read=rate("read", None if disk is None else disk.read_bytes),
            disk_written=rate("written", None if disk is None else disk.write_bytes),
            waiting_cpu=rate("cpu", cgroups.stalled(pressure / "cpu")),
            waiting_io=rate("io", cgroups.stalled(pressure / "io")),
            waiting_memory=rate("memory", cgroups.stalled(pressure / "memory")),
            group_waiting_cpu=rate("group", group),
            throttled=rate("throttled", None if throttling is None else throttling.seconds),
            gpus=tuple(nvml.sample(self._nvml, handle, pcie=pcie) for handle in self._nvml.handles),
        )
