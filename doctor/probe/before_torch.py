"""What must be in place before the script's first line: its files are guarded, its uploads stay at home."""

from __future__ import annotations

import os


def begin() -> None:
    """Install the guards of a diagnosis in this process."""
    from fasttrain_doctor.probe import guard, offline, orphans

    orphans.die_with_parent()
    guard.install(os.environ["FASTTRAIN_DOCTOR_GUARD"])
    offline.install()
