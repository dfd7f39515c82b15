"""Shared memory of workers that were killed: torch removes a segment's name once it is open at both ends, not before."""

from __future__ import annotations

import os
from collections.abc import Collection

_SHM = "/dev/shm"  # noqa: S108  (the kernel's folder for shared memory)


def remove(pids: Collection[int]) -> None:
    """Remove the names that these dead processes left: torch puts the maker's pid into each (``torch_<pid>_...``)."""
    makers = {str(pid) for pid in pids}
    try:
        names = os.listdir(_SHM)
    except OSError:
        return
    for name in names:
        parts = name.split("_")
        if parts[0] == "torch" and len(parts) > 2 and parts[1] in makers:
            try:
                os.unlink(os.path.join(_SHM, name))
            except OSError:  # gone by itself
                continue
