"""NVIDIA's management library: the GPUs that a script started now would see. Absent is fine and said once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# nvml.h, nvmlClocksEventReasons: why a clock is below its maximum.
_REASONS = {
    0x1: "idle",
    0x2: "application-clocks",
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "thermal-software",
    0x40: "thermal-hardware",
    0x80: "power-brake",
    0x100: "display-clocks",
}


@dataclass(frozen=True, slots=True)
class Nvml:
    """The library and a handle per visible GPU; ``absent`` says why there are none."""

    library: Any
    handles: tuple[Any, ...]
    absent: str | None = None

    def ask(self, name: str, *args: Any) -> Any:
        """Call ``nvmlDeviceGet<name>``; None where this GPU or driver does not tell."""
        try:
            answer = getattr(self.library, f"nvmlDeviceGet{name}")(*args)
        except (self.library.NVMLError, AttributeError):
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def driver(self) -> str | None:
        """Return the driver's version."""
        try:
            version = self.library.nvmlSystemGetDriverVersion()
        except self.library.NVMLError:
            return None
        return version.decode() if isinstance(version, bytes) else str(version)


def open_nvml(visible: str | None = None) -> Nvml:
    """Open the library.

    Args:
        visible: a value of CUDA_VISIBLE_DEVICES; the environment's by default.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return Nvml(None, (), "nvidia-ml-py is not installed")
    except Exception as error:  # NVMLError and its many kinds: no driver, no permission, a version mismatch
        return Nvml(None, (), f"NVML: {error}")
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    try:
        handles = _handles(pynvml, chosen)
    except pynvml.NVMLError as error:
        return Nvml(pynvml, (), f"NVML: {error}")
    absent = (
        None if handles else "no GPU is visible" + (f" (CUDA_VISIBLE_DEVICES={chosen!r})" if chosen is not None else "")
    )
    return Nvml(pynvml, handles, absent)


def _handles(library: Any, visible: str | None) -> tuple[Any, ...]:
    """Return handles in CUDA's order; as in CUDA an entry that names no GPU hides itself and all that follow."""
    count = library.nvmlDeviceGetCount()
    if visible is None:
        return tuple(library.nvmlDeviceGetHandleByIndex(i) for i in range(count))
    handles = []
    for entry in (word.strip() for word in visible.split(",")):
        if entry.isdigit() and int(entry) < count:
            handles.append(library.nvmlDeviceGetHandleByIndex(int(entry)))
        elif entry.startswith(("GPU-", "MIG-")):
            try:
                handles.append(library.nvmlDeviceGetHandleByUUID(entry.encode()))
            except library.NVMLError:
                break
        else:
            break
    return tuple(handles)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. Shares in 0..1, bytes, hertz, watts, bytes per second; None: not told."""

    busy: float | None = None  # share of the driver's last sampling period in which some kernel ran
    memory_busy: float | None = None
    memory_used: int | None = None
    clock: int | None = None
    clock_memory: int | None = None
    power: float | None = None
    power_limit: float | None = None
    slowed_by: tuple[str, ...] | None = None
    pcie_sent: int | None = None  # by the GPU
    pcie_received: int | None = None


def sample(nvml: Nvml, handle: Any, *, pcie: bool) -> GpuSample:
    """Read one GPU. With ``pcie`` this takes 40 ms: the driver counts for 20 ms in each direction."""
    ask = nvml.ask
    use, memory = ask("UtilizationRates", handle), ask("MemoryInfo", handle)
    reasons = ask("CurrentClocksEventReasons", handle)
    if reasons is None:  # drivers before R535
        reasons = ask("CurrentClocksThrottleReasons", handle)
    return GpuSample(
        busy=None if use is None else use.gpu / 100,
        memory_busy=None if use is None else use.memory / 100,
        memory_used=None if memory is None else int(memory.used),
        clock=_scaled(ask("ClockInfo", handle, 1), 1e6),  # NVML_CLOCK_SM, MHz
        clock_memory=_scaled(ask("ClockInfo", handle, 2), 1e6),  # NVML_CLOCK_MEM
        power=_scaled(ask("PowerUsage", handle), 1e-3, float),  # mW
        power_limit=_scaled(ask("EnforcedPowerLimit", handle), 1e-3, float),
        slowed_by=None if reasons is None else tuple(name for bit, name in _REASONS.items() if reasons & bit),
        pcie_sent=_scaled(ask("PcieThroughput", handle, 0), 1e3) if pcie else None,  # NVML_PCIE_UTIL_TX_BYTES, KB/s
        pcie_received=_scaled(ask("PcieThroughput", handle, 1), 1e3) if pcie else None,
    )


def _scaled(value: Any, factor: float, kind: Callable[[float], Any] = int) -> Any:
    return None if value is None else kind(value * factor)
