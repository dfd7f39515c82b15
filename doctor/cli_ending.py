"""How a command ends: every way out gets one line on standard error and its exit code."""

from __future__ import annotations

import io
import os
import select
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fasttrain_doctor.errors import DoctorError, Exit, ScriptFailed
from fasttrain_doctor.writing import full

if TYPE_CHECKING:
    from fasttrain_doctor.api import Outcome
    from fasttrain_doctor.run import Run

NAME = "fasttrain-doctor"
STDOUT = 1  # its descriptor
_TRACEBACK = 30  # lines of a failed script's standard error that are shown where it was kept quiet
SIGPIPE = 141  # what a shell reports for a program that its reader left


@dataclass(slots=True)
class End:
    """The exit code so far."""

    code: int = 0


@contextmanager
def ending() -> Iterator[End]:
    """Turn what is raised inside into a message and ``End.code``; only a second interrupt gets out."""
    end = End()
    try:
        yield end
    except click.exceptions.Exit as error:
        end.code = error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        end.code = Exit.USAGE
    except click.ClickException as error:
        end.code = Exit.USAGE
        _say("usage", _lowered(error))
    except DoctorError as error:
        end.code = error.exit
        _say(error.slug, str(error))
    except (KeyboardInterrupt, click.Abort):
        end.code = Exit.INTERRUPTED
        _say("interrupted", "stopped on request")
    except BrokenPipeError as error:
        end.code = SIGPIPE if _reader_left() else _ours(error)
    except OSError as error:
        end.code = _about_files(error)
    except Exception as error:
        end.code = _ours(error)


def standard_streams() -> None:
    """See to it that all three are there (a closed one goes to /dev/null) and that any text can be printed."""
    for descriptor, name, mode in ((0, "stdin", "r"), (STDOUT, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:  # closed by who started us; the lowest free descriptor is taken, which is this one
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # it is flushed first, and may lead nowhere
                stream.reconfigure(errors="backslashreplace")  # an ASCII locale knows no micro sign


def told(outcome: Outcome, *, as_json: bool, quiet: bool) -> int:
    """Print what came of a diagnosis and return its exit code.

    Standard output gets the summary, or the JSON; standard error gets what kept the script from being measured.
    """
    measured = outcome.diagnosis is not None and outcome.diagnosis.step is not None
    if outcome.diagnosis is not None and as_json:
        from fasttrain_doctor.reports import json

        click.echo(json.dumps(outcome.diagnosis), nl=False)
    elif outcome.diagnosis is not None and measured:
        from fasttrain_doctor.reports import console, view

        report = str(outcome.run.report) if outcome.run else None
        console.show(view.view(outcome.diagnosis, outcome.run.samples() if outcome.run else ()), sys.stdout, report)
    if outcome.error is not None:
        if quiet and outcome.run is not None and isinstance(outcome.error, ScriptFailed):
            click.echo(_last_words(outcome.run), err=True)  # its output was not shown as it came
        _say(outcome.error.slug, str(outcome.error))
    elif outcome.exit == Exit.INTERRUPTED:
        kept = f"; what was measured is in {outcome.run.folder}" if outcome.run else ""
        _say("interrupted", f"stopped on request{kept}")
    return outcome.exit


def _last_words(run: Run) -> str:
    """Return the end of what the script wrote to standard error: its traceback, most often."""
    try:
        lines = run.stderr_log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TRACEBACK:])


def _say(slug: str, message: str) -> None:
    click.echo(f"{NAME}: error[{slug}]: {message}", err=True)


def _lowered(error: click.ClickException) -> str:
    """Return click's message in our voice, with the command to ask for help."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else NAME
    return f"{message[:1].lower()}{message[1:]}; see: {command} --help"


def _reader_left() -> bool:
    """Return whether standard output is what broke; if so, give the interpreter's last flush somewhere to go."""
    poll = select.poll()
    poll.register(STDOUT, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    return True


def _about_files(error: OSError) -> int:
    """Say what is wrong with the user's disk or folder; anything else is a fault of ours."""
    if full(error):
        _say("disk-full", f"{error.filename or 'standard output'}: no space left to write it")
        with suppress(OSError):  # what could not be written is still in its buffer: nothing more may be tried with it
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
        return Exit.OURS
    try:
        Path.cwd()
    except FileNotFoundError:
        _say("folder-missing", "the current folder no longer exists; change to one that does")
        return Exit.USAGE
    return _ours(error)


def _ours(error: Exception) -> int:
    """Say that we failed and where the traceback is; the user's terminal is no place for it."""
    from fasttrain_doctor.redact import redact, secret_values

    secrets = secret_values(os.environ)
    what = redact(" ".join(traceback.format_exception_only(error)[-1].split()), secrets)
    try:
        with tempfile.NamedTemporaryFile("w", prefix=f"{NAME}-", suffix=".txt", delete=False) as file:
            file.write(redact("".join(traceback.format_exception(error)), secrets))
        where = f"traceback in {file.name}"
    except OSError as failure:
        where = f"its traceback could not be written: {failure}"
    _say("internal", f"{what} (a fault of {NAME}, not of the script; {where})")
    return Exit.OURS
