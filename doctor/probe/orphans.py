"""A process of the script must not outlive the one that made it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> bool:
    """Have the kernel kill this process when its parent ends.

    The kernel's signal comes when the *thread* that made the process ends, not the process: a worker made by a
    short-lived thread would be killed in the middle of a healthy run. So this is done only where the parent's main thread
    made us; other processes are found and ended by the run's token.

    Returns:
        Whether it was set.
    """
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as listing:
            if str(os.getpid()) not in listing.read().split():
                return False
        if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            return False
    except (OSError, AttributeError):  # not Linux, or a kernel without the list of children
        return False
    if os.getppid() != parent:  # it ended meanwhile: the signal will not come any more
        os.kill(os.getpid(), signal.SIGKILL)
    return True
