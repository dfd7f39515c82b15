"""Installs the probe once ``torch`` has been imported. Every hook fails open: what could not be installed is noted."""

from __future__ import annotations

import atexit
import os
import platform
import sys
from collections.abc import Callable

from fasttrain_doctor.probe import state
from fasttrain_doctor.probe.loop import Loop
from fasttrain_doctor.probe.recorder import Recorder, clock


def arm() -> None:
    """Arm this process according to FASTTRAIN_DOCTOR_MODE: ``diagnose`` watches, ``run`` only applies a plan."""
    mode = os.environ.get("FASTTRAIN_DOCTOR_MODE", "diagnose")
    if mode == "run":
        from fasttrain_doctor.probe import applied

        applied.install_for_run()
        return
    state.recorder = Recorder(os.environ["FASTTRAIN_DOCTOR_DIR"])
    state.loop = _loop()
    _process_fact()
    from fasttrain_doctor.probe import device, fetching, loading, looking, spans, training

    for name, install in (
        ("loading", loading.install),
        ("fetching", fetching.install),
        ("looking", looking.install),
        *training.PARTS.items(),
        ("spans", spans.install),
        ("device", device.install),
        ("fork", _on_fork),
        ("plan", _plan_from_start),
        ("seed", _seed),
    ):
        _try(name, install)


def _loop() -> Loop:
    """Return a loop that asks the parent what to do once it has begun."""
    address = os.environ.get("FASTTRAIN_DOCTOR_SOCKET")
    command = None
    if address:
        from fasttrain_doctor.probe.control import Control

        command = Control(address)
    loop = Loop(command)
    if "FASTTRAIN_DOCTOR_GUARD" in os.environ:
        from fasttrain_doctor.probe import guard

        loop.on_first_update = guard.loop_began
    return loop


def _try(name: str, install: Callable[[], None]) -> None:
    try:
        install()
    except Exception as error:
        state.degraded(f"hook-{name}", error)


def _process_fact() -> None:
    import torch

    state.recorder.fact(
        "process",
        ppid=os.getppid(),
        argv=sys.argv[:1],
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        threads=torch.get_num_threads(),
        rank=os.environ.get("RANK"),
        clock=clock(),
    )


def _on_fork() -> None:
    from fasttrain_doctor.probe import fetching

    def in_child() -> None:
        state.recorder.after_fork()
        state.inside.depth = state.inside.backward = 0
        # A script that has not trained itself may have forked the process that will.
        state.loop = Loop(None) if state.loop.began else _loop()
        fetching.after_fork()

    os.register_at_fork(after_in_child=in_child)


def _plan_from_start() -> None:
    """Install a plan before the first step: a confirming run."""
    if os.environ.get("FASTTRAIN_DOCTOR_PLAN"):
        from fasttrain_doctor.probe import applied

        state.loop.losses = []
        atexit.register(_leave_losses)
        applied.install_for_trial(state.loop)


def _leave_losses() -> None:
    """Leave the losses of a script that ends by itself before they were asked for."""
    try:
        from fasttrain_doctor.probe import commands

        if state.loop.losses:
            state.recorder.fact("losses", losses=commands.read_losses(state.loop.losses))
    except Exception as error:
        state.degraded("losses", error)


def _seed() -> None:
    """Give Python's and numpy's unseeded generators the same start in both runs of a pair; torch's has a fixed one."""
    seed = os.environ.get("FASTTRAIN_DOCTOR_SEED")
    if not seed:
        return
    import random

    import torch

    from fasttrain_doctor.probe.imports import on_import

    random.seed(int(seed))
    torch.manual_seed(int(seed))
    on_import("numpy.random", lambda module: module.seed(int(seed)))
