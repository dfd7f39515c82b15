"""What goes wrong, said once: subject, constraint, what was given, what to do; with a slug and an exit code."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the commands (public)."""

    DONE = 0
    SCRIPT_FAILED = 1
    USAGE = 2
    NOTHING_MEASURED = 3
    GATE = 4
    OURS = 5
    INTERRUPTED = 130


class DoctorError(Exception):
    """An ending that is explained: ``str(error)`` is the whole message, ``slug`` its short name for searching."""

    exit = Exit.OURS

    def __init__(self, slug: str, message: str) -> None:
        super().__init__(message)
        self.slug = slug


class UsageError(DoctorError):
    """The command line, an option or a config file cannot be used as given."""

    exit = Exit.USAGE


class ScriptFailed(DoctorError):
    """The user's script failed before enough was measured; its own traceback has been shown."""

    exit = Exit.SCRIPT_FAILED


class NothingMeasured(DoctorError):
    """The script ran, but held nothing to measure."""

    exit = Exit.NOTHING_MEASURED
