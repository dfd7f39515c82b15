"""Files that are there whole or not at all, and what is said when they cannot be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fasttrain_doctor.errors import DoctorError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_whole(path: Path, data: str | bytes, mode: int = 0o600) -> None:
    """Write a file so that it is there whole or not at all; ``mode`` is subject to the umask.

    Raises:
        DoctorError: ``disk-full`` or ``output-unwritable``.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    with explained(path):
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise


def point(link: Path, target: str) -> None:
    """Make ``link`` a symbolic link to ``target`` in one step, whatever it pointed at before."""
    beside = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        beside.unlink()
    try:
        beside.symlink_to(target)
        beside.replace(link)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def full(error: OSError) -> bool:
    """Tell whether there was no space, or no more of a quota."""
    return error.errno in _FULL


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a ``disk-full`` or ``output-unwritable`` DoctorError about ``path``."""
    try:
        yield
    except OSError as error:
        if full(error):
            raise DoctorError("disk-full", f"{path}: no space left to write it; free some or use --out DIR") from error
        why = error.strerror or type(error).__name__
        raise DoctorError(
            "output-unwritable", f"{path}: cannot be written ({why}); choose another folder with --out DIR"
        ) from error
