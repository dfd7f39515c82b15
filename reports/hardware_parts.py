"""Readings of the hardware as charts. Tolerant: what a machine did not report is simply not drawn. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fasttrain_doctor.reports.shown import Chart, Curve

_CLOCKS = ("t", "time", "at", "seconds")


@dataclass(frozen=True, slots=True)
class _Kind:
    """Readings that share a chart: those whose dotted name matches; ``factor`` brings them to ``unit``."""

    key: str
    title: str
    unit: str
    match: re.Pattern[str]
    factor: float
    how: str


def _kind(key: str, title: str, unit: str, match: str, factor: float, how: str) -> _Kind:
    return _Kind(key, title, unit, re.compile(match), factor, how)


_KINDS = (
    _kind("gpu-busy", "GPU utilisation", "%", r"gpu.*(util|busy)", 100, "NVML: share of time a kernel was running"),
    _kind("gpu-memory", "GPU memory", "GiB", r"gpu.*mem", 2**-30, "NVML: memory in use on the device"),
    _kind("gpu-power", "GPU power", "W", r"gpu.*power", 1, "NVML: board power"),
    _kind("gpu-clock", "GPU clocks", "MHz", r"gpu.*clock", 1, "NVML: current clocks"),
    _kind("gpu-pcie", "PCIe", "MB/s", r"gpu.*pcie", 1e-6, "NVML: PCIe throughput"),
    _kind("cpu", "CPU", "%", r"cpu.*(util|busy|percent|share|used)|^cpu$|^(cpu|cores|per_core)\.\d+$", 100,
          "share of each CPU's time in use"),
    _kind("throttled", "Quota throttling", "%", r"throttl", 100, "cgroup: share of time the quota held threads back"),
    _kind("pressure", "Pressure", "%", r"pressure|psi|waiting", 100, "kernel pressure stall: share of time tasks waited"),
    _kind("memory", "Memory", "GiB", r"(^|\.)(mem|rss)", 2**-30, "memory in use"),
    _kind("disk", "Disk", "MB/s", r"disk|read_bytes|write_bytes", 1e-6, "bytes a second"),
)  # fmt: skip


def charts(samples: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    """Return a chart per kind of reading that ``samples`` hold at least two of, on one clock from their first."""
    clock = next((key for key in _CLOCKS if samples and isinstance(samples[0].get(key), (int, float))), None)
    if clock is None:
        return ()
    rows = [dict(_flat(sample)) for sample in samples if isinstance(sample.get(clock), (int, float))]
    scale = 1e-9 if rows[0][clock] > 1e10 else 1.0  # nanoseconds of a clock, or seconds
    times = tuple((row[clock] - rows[0][clock]) * scale for row in rows)
    names = list(dict.fromkeys(name for row in rows for name in row if name != clock))
    drawn = []
    for kind in _KINDS:
        mine = [name for name in names if _first_kind(name) is kind]
        curves = tuple(_curve(name, times, [row.get(name) for row in rows], kind.factor) for name in mine)
        curves = tuple(curve for curve in curves if sum(value is not None for value in curve.values) >= 2)
        if curves:
            drawn.append(Chart(kind.key, kind.title, kind.unit, curves, kind.how))
    return tuple(drawn)


def _first_kind(name: str) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.match.search(name)), None)


def _curve(name: str, times: tuple[float, ...], values: list[float | None], factor: float) -> Curve:
    said = name.replace(".", " ").replace("_", " ")
    return Curve(said, times, tuple(None if value is None else value * factor for value in values))


def _flat(value: Mapping[str, Any] | Sequence[Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in items:
        name = f"{prefix}{key}"
        if isinstance(item, (Mapping, list)):
            yield from _flat(item, f"{name}.")
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            yield name, float(item)
