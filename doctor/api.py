"""The stages as functions: diagnose, apply, train, report, restore. The command line adds nothing to them."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fasttrain_doctor import interrupts, journal, redact
from fasttrain_doctor import run as runs
from fasttrain_doctor.case import Case
from fasttrain_doctor.diagnosis import Diagnosis
from fasttrain_doctor.errors import DoctorError, Exit, NothingMeasured, ScriptFailed, UsageError
from fasttrain_doctor.evidence import Effect
from fasttrain_doctor.launch import Command, Streams, parse_target
from fasttrain_doctor.progress import Progress
from fasttrain_doctor.run import Run, RunWriter, load
from fasttrain_doctor.writing import full

if TYPE_CHECKING:
    from fasttrain_doctor.diagnosing import Limits
    from fasttrain_doctor.tuners.tuned import Applies

__all__ = ["Options", "Outcome", "apply", "diagnose", "list_runs", "load", "report", "restore", "train"]

BUDGET = 180.0  # seconds: what a diagnosis may take unless told otherwise


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to diagnose. Times are seconds; ``steps`` None measures what the window holds."""

    python: str | None = None
    out: Path | None = None
    budget: float | None = None
    trials: bool = True
    allow: Effect = Effect.PRECISION
    timeout: float = 600.0
    steps: int | None = None
    max_workers: int | None = None
    quiet: bool = False
    json: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a diagnosis ended: the exit code, the diagnosis as far as it got, its run, and the error that ended it."""

    exit: int
    diagnosis: Diagnosis | None
    run: Run | None
    error: DoctorError | None = None


def diagnose(target: list[str], options: Options | None = None) -> Outcome:
    """Run a script for a short while and say what slows it and what helps.

    Args:
        target: the command line after our options: ``train.py ARGS``, ``-m pkg.train ARGS`` or ``-- program ARGS``.
        options: see ``Options``.

    Returns:
        The outcome; what kept the script from being measured is in ``error``, not raised.

    Raises:
        UsageError: the target cannot be run as given.
        DoctorError: the run directory cannot be made (``output-unwritable``, ``disk-full``).
    """
    from fasttrain_doctor.diagnosing import Diagnosing, Limits
    from fasttrain_doctor.leftover import owned
    from fasttrain_doctor.machine import machine, torch_of
    from fasttrain_doctor.sampling import Sampler

    options = options or Options()
    command = parse_target(target, options.python)
    progress = Progress(quiet=options.quiet)
    _put_back(progress, options.out)
    facts = machine()
    if command.argv[0] != sys.executable and command.kind != "program":
        facts = torch_of(command.argv[0], facts)
    shown = redact.redact_argv(list(command.argv))
    writer = runs.create_run(options.out, redact.redact(command.name), shown)
    run = writer.run
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    case = Case(script=redact.redact(command.name), command=shown, started=started, machine=facts)
    limits = Limits(
        budget=options.budget or BUDGET,
        timeout=options.timeout,
        steps=options.steps,
        trials=options.trials,
        allow=options.allow,
        max_workers=options.max_workers,
    )
    _announce(progress, command, limits)
    began = time.monotonic()
    error: DoctorError | None = None
    code: int = Exit.DONE
    with owned(run), interrupts.once():
        try:
            work = Diagnosing(command, writer, case, limits, _streams(run, options), progress)
            try:
                with Sampler(run.samples_file, os.getpid()):
                    work.run()
            except KeyboardInterrupt:
                case.interrupted = True
                code = Exit.INTERRUPTED
            except (ScriptFailed, NothingMeasured) as ending:
                error, code = ending, ending.exit
                case.failed = str(ending)
            except OSError as failure:
                if not full(failure):
                    raise
                error = DoctorError("disk-full", f"{run.folder}: no space left to write it; free some or use --out DIR")
                code = error.exit
            finally:
                work.clean()
                work.compare_folders()
            if case.interrupted:
                work.salvage("the diagnosis was interrupted")
            elif code == Exit.OURS:
                work.salvage("the disk was full")
            case.seconds = time.monotonic() - began
            return _finish(writer, case, code, error)
        except KeyboardInterrupt:
            writer.ended("interrupted")
            raise
        except OSError as failure:
            if not run.folder.is_dir():
                raise DoctorError("run-removed", f"{run.folder}: was removed while the script ran") from failure
            writer.ended("failed")
            raise
        except Exception:
            writer.ended("failed")
            raise


def _put_back(progress: Progress, folder: Path | None = None) -> None:
    """Complete what a killed diagnosis left to restore, and say so."""
    from fasttrain_doctor import leftover

    for run, done in leftover.put_back(folder):
        what = f"{len(done.put_back)} files put back, {len(done.moved)} new ones moved to it"
        progress.say(f"run {run.id} was cut off: {what}")


def _announce(progress: Progress, command: Command, limits: Limits) -> None:
    often = (
        "once"
        if not limits.trials
        else "once to watch and try, then at least 6 times for a few steps to confirm a gain"
    )
    progress.say(
        f"running {redact.redact(command.name)} {often}; files it changes are put back, trackers are kept offline"
    )


def _streams(run: Run, options: Options) -> Streams:
    """Return where the script's output goes: ours, or standard error where standard output carries our JSON."""
    out: BinaryIO | None = None if options.quiet else (sys.stderr.buffer if options.json else sys.stdout.buffer)
    err: BinaryIO | None = None if options.quiet else sys.stderr.buffer
    return Streams(run.stdout_log, run.stderr_log, out, err)


def _finish(writer: RunWriter, case: Case, code: int, error: DoctorError | None) -> Outcome:
    from fasttrain_doctor.reports.saved import judged, save

    diagnosis = judged(case.diagnosis())
    try:
        writer.machine(dataclasses.asdict(case.machine))
        save(writer, diagnosis)
        if diagnosis.tuned is not None:
            writer.tuned(_tuned_text(writer.run, diagnosis))
    except DoctorError as unwritten:  # what was measured is still shown
        writer.ended("failed")
        return Outcome(unwritten.exit, diagnosis, None, unwritten)
    return Outcome(code, diagnosis, writer.run, error)


def report(run: Run) -> Path:
    """Write a run's HTML report anew; returns its path.

    Raises:
        DoctorError: the run holds no diagnosis, or cannot be written to.
    """
    from fasttrain_doctor.reports.html import render
    from fasttrain_doctor.reports.view import view

    _put_back(Progress(), run.folder.parent)
    diagnosis = run.diagnosis()
    RunWriter(run).report(render(view(diagnosis, run.samples(), run.id)))
    return run.report


def list_runs(folder: Path | None = None) -> list[Run]:
    """Return the runs kept in ``folder`` (None: the current one's), newest first; what was cut off is put back before."""
    _put_back(Progress(), folder)
    return runs.list_runs(folder)


def restore(run: Run) -> str:
    """Put back what a killed diagnosis left changed; returns what was done, for printing."""
    done = journal.restore(run.folder)
    lines = [f"put back {p}" for p in done.put_back]
    lines += [f"moved to the run's folder: {p}" for p in done.moved]
    lines += [f"could not be put back: {path} ({why})" for path, why in done.unprotected]
    return "\n".join(lines) or "nothing to restore: every file is as it was"


def _tuned_text(run: Run, diagnosis: Diagnosis) -> str:
    from fasttrain_doctor.tuners import tuned

    return tuned.merge("", _script_key(diagnosis), tuned.entry_of(diagnosis, run.id, _applies(run)))


def _script_key(diagnosis: Diagnosis) -> str:
    from fasttrain_doctor.tuners.tuned import key_for

    return key_for(diagnosis.script, Path.cwd(), Path.cwd())


def _applies(run: Run) -> Applies:
    """Return what the settings were measured on, from the run's plan."""
    from fasttrain_doctor.tuners.tuned import Applies

    if not run.plan_file.exists():
        return Applies()
    loader = json.loads(run.plan_file.read_text(encoding="utf-8")).get("loader") or {}
    file = loader.get("file")
    if file is not None and Path(file).is_relative_to(Path.cwd()):  # the table is kept with the project, and shared
        file = Path(file).relative_to(Path.cwd()).as_posix()
    return Applies(
        dataset=loader.get("dataset"),
        dataset_length=loader.get("dataset_length"),
        file=file,
        line=loader.get("line"),
        sampler=loader.get("sampler"),
    )


def apply(run: Run, *, dry_run: bool = False, force: bool = False) -> str:
    """Write what a run has proven into ``fasttrain.toml`` of the current folder; returns what to print.

    Raises:
        UsageError: the file was edited by hand and ``force`` is not given, or is malformed.
    """
    from fasttrain_doctor.tuners import tuned

    _put_back(Progress())
    diagnosis = run.diagnosis()
    if diagnosis.tuned is None:
        return f"nothing to apply: {diagnosis.verdict}"
    path = Path.cwd() / tuned.FILE
    existing = path.read_text(encoding="utf-8") if path.exists() else ""
    text = tuned.merge(existing, _script_key(diagnosis), tuned.entry_of(diagnosis, run.id, _applies(run)), force)
    if dry_run:
        return text
    from fasttrain_doctor.writing import write_whole

    write_whole(path, text, 0o666)
    return f"wrote {path.name}; train with it: fasttrain-doctor run {diagnosis.script}"


def train(target: list[str], python: str | None = None) -> int:
    """Train with the settings of ``fasttrain.toml``: the script unedited, nothing measured.

    Returns:
        The script's own exit code (128 + n when signal n ended it, as a shell has it).

    Raises:
        UsageError: no usable target, no or a malformed ``fasttrain.toml``, or nothing in it for this script.
    """
    from fasttrain_doctor.environment import child_environment
    from fasttrain_doctor.tuners import tuned

    command = parse_target(target, python)
    _put_back(Progress())
    path = Path.cwd() / tuned.FILE
    if not path.exists():
        raise UsageError(
            "config-missing", f"no {tuned.FILE} in {Path.cwd()}; write one: fasttrain-doctor diagnose, then apply"
        )
    settings = tuned.settings_for(tuned.load(path), str(command.script or command.name), path)
    with tempfile.TemporaryDirectory(prefix="fasttrain-doctor-") as folder:
        written = Path(folder) / "settings.json"
        written.write_text(json.dumps({"plan": settings.plan, "loader": settings.loader}), encoding="utf-8")
        env = child_environment(
            os.environ, token=secrets.token_hex(16), probe_dir=Path(folder), mode="run", plan=written
        )
        return _foreground(command, env)


def _foreground(command: Command, env: dict[str, str]) -> int:
    """Run the command in our place: same terminal, same process group, its exit code."""
    import signal
    import subprocess

    try:
        process = subprocess.Popen(command.argv, env=env)
    except OSError as error:
        raise UsageError("program-fails", f"{command.argv[0]} cannot be started: {error}") from error
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}  # the script decides what Ctrl-C means
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # a scheduler's: the script's too
        before[number] = signal.signal(number, lambda number, _: process.send_signal(number))
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
