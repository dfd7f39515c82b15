"""The environment of the user's script: theirs, plus what is needed to measure it. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import fasttrain_doctor
from fasttrain_doctor.descendants import TOKEN

# Experiment trackers, kept from sending anything, so that trials do not appear among the user's experiments. Set only
# where the user has not set them. "disabled" makes every call a no-op; the others keep their records local.
TRACKERS: Mapping[str, str] = {
    "WANDB_MODE": "disabled",
    "NEPTUNE_MODE": "offline",
    "COMET_START_ONLINE": "0",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
}


def package_folders() -> dict[str, str]:
    """Return the folder of each of our packages, by import name: where the injected finder loads them from."""
    from importlib.util import find_spec

    folders = {"fasttrain_doctor": str(Path(fasttrain_doctor.__file__).parent)}
    for part in ("tuners", "kernels"):
        spec = find_spec(f"fasttrain_doctor.{part}")
        if spec is not None and spec.submodule_search_locations:
            folders[f"fasttrain_doctor.{part}"] = next(iter(spec.submodule_search_locations))
    return folders


def child_environment(
    base: Mapping[str, str],
    *,
    token: str,
    probe_dir: Path,
    socket: str | None = None,
    mode: str = "diagnose",
    plan: Path | None = None,
) -> dict[str, str]:
    """Return the script's environment.

    The differences from ``base``: the inject folder first on PYTHONPATH, ``FASTTRAIN_DOCTOR_*`` (see the contract of the
    probe), and, when diagnosing, each of ``TRACKERS`` that the user had not set.

    Args:
        base: the user's environment.
        token: names the run in every process of it.
        probe_dir: where the probe writes.
        socket: the control socket's path, ``@name`` for an abstract one.
        mode: ``diagnose`` or ``run``; ``run`` leaves the trackers alone.
        plan: a JSON plan to install from the start.
    """
    env = {name: value for name, value in base.items() if not name.startswith("FASTTRAIN_DOCTOR_")}
    folders = package_folders()
    inject = str(Path(folders["fasttrain_doctor"]) / "probe" / "inject")
    # An empty PYTHONPATH means none; appending it to ours would put the current folder on the path.
    env["PYTHONPATH"] = os.pathsep.join([inject, env["PYTHONPATH"]]) if env.get("PYTHONPATH") else inject
    env[TOKEN] = token
    env["FASTTRAIN_DOCTOR_DIR"] = str(probe_dir)
    env["FASTTRAIN_DOCTOR_PACKAGE"] = json.dumps(folders)
    env["FASTTRAIN_DOCTOR_MODE"] = mode
    if socket is not None:
        env["FASTTRAIN_DOCTOR_SOCKET"] = socket
    if plan is not None:
        env["FASTTRAIN_DOCTOR_PLAN"] = str(plan)
    if mode == "diagnose":
        for name, value in TRACKERS.items():
            env.setdefault(name, value)
    return env
