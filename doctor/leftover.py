"""Runs whose doctor was killed: their files are put back by the next command."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fasttrain_doctor import journal
from fasttrain_doctor.errors import DoctorError
from fasttrain_doctor.journal import Restored
from fasttrain_doctor.run import Run, RunWriter, list_runs


@contextmanager
def owned(run: Run) -> Iterator[None]:
    """Hold a run while it is being made, so that no other command takes it for one left behind.

    The lock goes with the process, however that ends.
    """
    descriptor = os.open(run.owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def put_back(folder: Path | None = None) -> list[tuple[Run, Restored]]:
    """Restore what runs left behind in ``folder`` (None: the current one's) and mark them interrupted.

    Returns:
        The runs that had something to restore, with what was done.
    """
    done = []
    for run in list_runs(folder):
        pending = journal.pending(run.folder)
        if not (pending or run.owner.exists()) or not _abandoned(run):
            continue
        if pending:
            done.append((run, journal.restore(run.folder)))
        with suppress(DoctorError):  # a run that cannot be read keeps its files as they are
            if run.info().status == "running":
                RunWriter(run).status("interrupted")
    return done


def _abandoned(run: Run) -> bool:
    """Whether no living process holds the run."""
    try:
        descriptor = os.open(run.owner, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
