"""Describe the machine a script runs on, as far as it limits training: what may be used, not what is built in."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
from pathlib import Path

import psutil

from fasttrain_doctor import cgroups, nvml
from fasttrain_doctor.errors import UsageError
from fasttrain_doctor.evidence import Gpu, Machine
from fasttrain_doctor.torch_build import TorchBuild, torch_build

# CPU features that decide which of torch's kernels run (Linux /proc/cpuinfo; arm64 says "Features").
FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "bf16",
)
_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
_SMALL_SHM = 1 << 30
_SMALL_MEMORY = 4 << 30


def machine(proc: Path = Path("/proc"), root: Path = Path("/")) -> Machine:
    """Look at this machine with this interpreter's torch (not imported).

    Args:
        proc: the process file system; replaceable by a recorded tree.
        root: where the control groups' mount points begin.
    """
    cpu = cgroups.find("cpu", proc / "self", root)
    logical = psutil.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    quota = cgroups.quota(cpu)
    memory = psutil.virtual_memory()
    group = cgroups.memory(cgroups.find("memory", proc / "self", root))
    build = torch_build()
    return Machine(
        cores=float(allowed) if quota is None else min(float(allowed), quota),
        logical_cores=logical,
        memory=memory.total if group is None else min(memory.total, group.limit),
        memory_free=memory.available if group is None else min(memory.available, group.free),
        shm_free=_free(root / "dev/shm"),
        gpus=gpus(),
        platform=platform.platform(),
        python=build.python,
        torch=build.torch,
        torch_cuda=build.cuda,
        cpu_flags=cpu_flags(proc / "cpuinfo"),
    )


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs a script would see, empty without NVIDIA's driver."""
    library = nvml.open_nvml()
    driver = library.driver() if library.handles else None
    found = []
    for handle in library.handles:
        capability, memory = library.ask("CudaComputeCapability", handle), library.ask("MemoryInfo", handle)
        found.append(
            Gpu(
                name=library.ask("Name", handle) or "unknown",
                memory=None if memory is None else int(memory.total),
                capability=None if capability is None else (int(capability[0]), int(capability[1])),
                driver=driver,
            )
        )
    return tuple(found)


def torch_of(python: str, facts: Machine) -> Machine:
    """Return the facts with the Python and torch of another interpreter.

    Raises:
        UsageError: it does not run (``python-fails``).
    """
    script = Path(__file__).with_name("torch_build.py")
    try:
        done = subprocess.run([python, str(script)], capture_output=True, text=True, timeout=60, check=True)
        build = TorchBuild(**json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError) as error:
        raise UsageError("python-fails", f"{python} does not run as a Python interpreter ({error})") from error
    return dataclasses.replace(facts, python=build.python, torch=build.torch, torch_cuda=build.cuda)


def cpu_flags(cpuinfo: Path) -> tuple[str, ...]:
    """Return those of ``FLAGS`` that the CPU has."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ()
    has: set[str] = set()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            has = set(value.split())
            break
    return tuple(flag for flag in FLAGS if flag in has)


def _free(folder: Path) -> int | None:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def limits(facts: Machine) -> list[str]:
    """Say what on this machine will limit training, one sentence each; nothing is said of what was not measured."""
    found = [*_cpu_limits(facts), *_memory_limits(facts)]
    if facts.torch is None:
        found.append(f"torch is not installed for Python {facts.python}")
    if not facts.gpus:
        found.append("no GPU is visible: training runs on the CPU, and nothing of a GPU is measured")
    elif facts.torch is not None and facts.torch_cuda is None:
        found.append(f"torch {facts.torch} is built without CUDA: the GPU is not used")
    old = [gpu.name for gpu in facts.gpus if gpu.capability is not None and gpu.capability < (8, 0)]
    if old:
        found.append(f"{old[0]} has neither bf16 nor TF32 in hardware: mixed precision means fp16 with a GradScaler")
    return found


def _cpu_limits(facts: Machine) -> list[str]:
    found = []
    if facts.cores < facts.logical_cores:
        found.append(
            f"{facts.cores:g} of {facts.logical_cores} cores may be used (affinity or cgroup quota): libraries that count "
            "cores start too many threads"
        )
    if facts.cores <= 2:
        found.append(f"data loading and training share {facts.cores:g} cores")
    if facts.cpu_flags and not facts.gpus and not _BF16 & set(facts.cpu_flags):
        found.append("the CPU has no bf16 instructions: bf16 is emulated and slow")
    return found


def _memory_limits(facts: Machine) -> list[str]:
    found = []
    if facts.shm_free is not None and facts.shm_free < _SMALL_SHM:
        found.append(
            f"shared memory (/dev/shm) has {facts.shm_free / 2**20:.0f} MiB free: loader workers pass batches through it "
            "and die of a bus error when it is full (docker: --shm-size or --ipc=host)"
        )
    if facts.memory_free is not None and facts.memory_free < _SMALL_MEMORY:
        found.append(f"{facts.memory_free / 2**30:.1f} GiB of memory are free: each loader worker needs some of it")
    return found
