"""``import fasttrain_doctor; fasttrain_doctor.enable()`` as a script's first line: tuned settings without the launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def enable(config: str | Path | None = None) -> None:
    """Train this script with the settings that ``fasttrain.toml`` holds for it.

    Call it before the first DataLoader is iterated. What was applied to which object is said on standard error at the
    first step. Under ``fasttrain-doctor`` itself (``diagnose``, ``run``) it does nothing: the launcher decides.

    Args:
        config: the config file; by default ``fasttrain.toml`` of the current folder, else of the script's.

    Raises:
        UsageError: ``config-missing``, ``script-not-tuned``, or the file is malformed; before any training.
    """
    if "FASTTRAIN_DOCTOR_MODE" in os.environ:
        return
    from fasttrain_doctor.errors import UsageError
    from fasttrain_doctor.tuners import tuned

    script = Path(sys.argv[0]).resolve()
    places = [Path(config)] if config is not None else [Path.cwd() / tuned.FILE, script.parent / tuned.FILE]
    path = next((p for p in places if p.exists()), None)
    if path is None:
        raise UsageError("config-missing", f"no {tuned.FILE} in {' or '.join(str(p.parent) for p in places)}")
    settings = tuned.settings_for(tuned.load(path), str(script), path)
    from fasttrain_doctor.probe import applied

    applied.install_unwatched(settings.plan, settings.loader)
