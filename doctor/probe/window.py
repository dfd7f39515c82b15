"""What is read once at the window's two ends: run-queue wait of the training thread, threads, modes for debugging."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from fasttrain_doctor.probe import describe, state
from fasttrain_doctor.probe.accounting import queue
from fasttrain_doctor.probe.recorder import clock

_VERBOSE = ("MKL_VERBOSE", "ONEDNN_VERBOSE", "DNNL_VERBOSE", "MKLDNN_VERBOSE")
_HEAPS = ("debug", "malloc_debug", "pymalloc_debug")


def begin() -> None:
    """Note the begin of the window. Called by the training thread, as ``end`` is."""
    _note("begin")


def end() -> None:
    """Note the end of the window."""
    _note("end")


def _note(which: str) -> None:
    try:
        found = modes()
        state.recorder.fact("window", end=which, waited=queue.read(), clock=clock(), debug=found, **describe.threads())
    except Exception as error:
        state.degraded("window", error)


def modes() -> list[tuple[str, str]]:
    """Return (name, how it was seen) of each mode for debugging that is on now in this thread."""
    return [*_of_torch(), *_tracing(), *_of_interpreter(), *_of_libraries()]


def _of_torch() -> list[tuple[str, str]]:
    import torch

    found = []
    if torch.is_anomaly_enabled():
        found.append(("anomaly detection", "torch.is_anomaly_enabled()"))
    if torch.are_deterministic_algorithms_enabled():
        found.append(("deterministic algorithms", "torch.are_deterministic_algorithms_enabled()"))
    if torch._C._autograd._profiler_enabled():
        found.append(("the script's own torch profiler", "torch.autograd reports a profiler"))
    if describe.initialized():
        if torch.backends.cudnn.deterministic:
            found.append(("deterministic cuDNN", "torch.backends.cudnn.deterministic"))
        if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            found.append(("blocking kernel launches", "CUDA_LAUNCH_BLOCKING=1"))
    return found


def _tracing() -> list[tuple[str, str]]:
    tracers: dict[str, Any] = {"sys.gettrace()": sys.gettrace(), "threading.gettrace()": threading.gettrace()}
    found = [(_tracer(function), f"{how} is {_named(function)}") for how, function in tracers.items() if function]
    profilers: dict[str, Any] = {"sys.getprofile()": sys.getprofile(), "threading.getprofile()": threading.getprofile()}
    found += [("a Python profiler", f"{how} is {_named(function)}") for how, function in profilers.items() if function]
    monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12
    for tool in range(6) if monitoring is not None else ():
        name = monitoring.get_tool(tool)
        if name is not None and monitoring.get_events(tool):
            what = {monitoring.DEBUGGER_ID: "a debugger", monitoring.PROFILER_ID: "a Python profiler"}
            found.append((what.get(tool, "a tool that follows every line"), f"sys.monitoring has {name}"))
    return list({name: (name, how) for name, how in reversed(found)}.values())


def _tracer(function: Any) -> str:
    named = _named(function)
    if "pydevd" in named or "debugpy" in named or "bdb" in named or "pdb" in named:
        return "a debugger"
    return "coverage" if "coverage" in named.lower() else "a trace function"


def _named(function: Any) -> str:
    """Name a function or callable object with its module; the method of a ``pdb.Pdb`` is of that class."""
    owner = getattr(function, "__self__", None)
    kind = type(owner) if owner is not None and not isinstance(owner, type(sys)) else None
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{module}.{name}" + (f" of {kind.__module__}.{kind.__qualname__}" if kind is not None else "")


def _of_interpreter() -> list[tuple[str, str]]:
    found = []
    if sys.flags.dev_mode:
        found.append(("Python's development mode", "PYTHONDEVMODE or -X dev"))
    elif (heap := os.environ.get("PYTHONMALLOC", "")) in _HEAPS:
        found.append(("checked memory allocation", f"PYTHONMALLOC={heap}"))
    tracemalloc = sys.modules.get("tracemalloc")
    if tracemalloc is not None and tracemalloc.is_tracing():
        found.append(("tracing of memory allocation", "tracemalloc.is_tracing()"))
    return found


def _of_libraries() -> list[tuple[str, str]]:
    found = []
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        for name, value in (("NCCL_DEBUG", "TRACE"), ("TORCH_DISTRIBUTED_DEBUG", "DETAIL")):
            if os.environ.get(name, "").upper() == value:
                found.append(("checks of each collective", f"{name}={value}"))
    told = {name: os.environ.get(name, "0") for name in _VERBOSE}
    found += [("a line per operation", f"{name}={value}") for name, value in told.items() if value not in ("", "0")]
    return found
