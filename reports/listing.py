"""The short lists the commands print: the machine, and the runs kept here. Plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fasttrain_doctor.errors import DoctorError
from fasttrain_doctor.evidence import Gpu, Machine
from fasttrain_doctor.reports import words
from fasttrain_doctor.run import Run

WIDTH = 80


def machine(facts: Machine, limits: Sequence[str]) -> str:
    """Return what ``check`` prints: one fact a line, what is unknown left out, then what will limit training."""
    cores = f"{facts.cores:g} usable of {facts.logical_cores}"
    rows = [
        ("system", facts.platform),
        ("CPU cores", cores if facts.cores != facts.logical_cores else f"{facts.logical_cores}"),
        ("CPU features", " ".join(facts.cpu_flags)),
        ("memory", _of(facts.memory_free, facts.memory)),
        ("shared memory", words.size(facts.shm_free) + " free" if facts.shm_free is not None else ""),
        *((f"GPU {number}", _gpu(gpu)) for number, gpu in enumerate(facts.gpus)),
        ("GPU", "" if facts.gpus else "none found: training runs on the CPU"),
        ("Python", facts.python),
        ("torch", f"{facts.torch}, {f'CUDA {facts.torch_cuda}' if facts.torch_cuda else 'CPU only'}" if facts.torch else ""),
    ]  # fmt: skip
    known = [(label, text) for label, text in rows if text]
    width = max(len(label) for label, _ in known) + 2
    lines = [f"{label:{width}}{text}" for label, text in known]
    if limits:
        lines += ["", "will limit training:"]
        for limit in limits:
            lines += textwrap.wrap(limit, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def runs(kept: Sequence[Run]) -> str:
    """Return what ``runs`` prints: name, how it ended, step and proven speedup, newest first."""
    if not kept:
        return "no runs here; start with: fasttrain-doctor diagnose train.py\n"
    rows = [("RUN", "STATUS", "STEP", "TUNED"), *(_row(run) for run in kept)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(f"{row[c]:{widths[c]}}" for c in range(3)), row[3]]).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _row(run: Run) -> tuple[str, str, str, str]:
    try:
        status = run.info().status
    except DoctorError as error:
        return run.id, error.slug.removeprefix("run-"), "-", "-"
    try:
        diagnosis = run.diagnosis()
    except DoctorError:
        return run.id, status, "-", "-"
    step = words.seconds(diagnosis.step.mean) if diagnosis.step else "-"
    return run.id, diagnosis.status, step, words.interval(diagnosis.tuned.speedup) if diagnosis.tuned else "-"


def _of(free: int | None, whole: int | None) -> str:
    if whole is None:
        return ""
    return words.size(whole) if free is None else f"{words.size(free)} free of {words.size(whole)}"


def _gpu(gpu: Gpu) -> str:
    parts = [gpu.name]
    if gpu.memory is not None:
        parts.append(words.size(gpu.memory))
    if gpu.capability is not None:
        parts.append(f"compute capability {gpu.capability[0]}.{gpu.capability[1]}")
    if gpu.driver is not None:
        parts.append(f"driver {gpu.driver}")
    return ", ".join(parts)
