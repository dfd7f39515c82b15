"""The run directory: where one diagnosis keeps everything. Only this module knows the names of its files.

    .fasttrain-doctor/runs/20261130-210604-train/     (``--out DIR``: DIR/20261130-210604-train/)

``RunWriter`` makes and fills one; ``Run`` reads one. Whole files are written beside their place and renamed, so that a
half-written file is never taken for a whole one. Folders are 0700 and ignored by git.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fasttrain_doctor import __version__, schema
from fasttrain_doctor.diagnosis import SCHEMA, Diagnosis, Status
from fasttrain_doctor.errors import DoctorError, UsageError
from fasttrain_doctor.writing import explained, point, write_whole

if TYPE_CHECKING:
    from pandas import DataFrame

HOME = ".fasttrain-doctor"
RUNS = "runs"
LATEST = "latest"
INFO = "run.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """What ``run.json`` holds: enough to list a run, also one that never got to its diagnosis."""

    schema: int
    tool: str
    script: str
    command: list[str]
    started: str  # ISO 8601, local time with offset
    status: Status | Literal["running"]


@dataclass(frozen=True, slots=True)
class Run:
    """A read-only handle on a run directory."""

    folder: Path

    @property
    def id(self) -> str:
        """Return the folder's name, by which commands take the run."""
        return self.folder.name

    @property
    def probe(self) -> Path:
        """Return the folder the probe writes ``<pid>.rec`` and ``<pid>.jsonl`` to."""
        return self.folder / "probe"

    @property
    def kept(self) -> Path:
        """Return the folder of the originals of files the script changed."""
        return self.folder / "kept"

    @property
    def created(self) -> Path:
        """Return the folder files made by the script are moved to."""
        return self.folder / "created"

    @property
    def trials(self) -> Path:
        """Return the folder of what single trials leave behind."""
        return self.folder / "trials"

    @property
    def info_file(self) -> Path:
        """Return ``run.json``: what was started, when, and how it ended."""
        return self.folder / INFO

    @property
    def machine_file(self) -> Path:
        """Return ``machine.json``: where it ran."""
        return self.folder / "machine.json"

    @property
    def plan_file(self) -> Path:
        """Return ``plan.json``: the plan a child installs from its start."""
        return self.folder / "plan.json"

    @property
    def samples_file(self) -> Path:
        """Return ``samples.jsonl``: readings of the hardware, one JSON object a line."""
        return self.folder / "samples.jsonl"

    @property
    def stdout_log(self) -> Path:
        """Return the script's standard output."""
        return self.folder / "stdout.log"

    @property
    def stderr_log(self) -> Path:
        """Return the script's standard error."""
        return self.folder / "stderr.log"

    @property
    def journal(self) -> Path:
        """Return ``journal.jsonl``: changes of the user's files, each noted before it happens."""
        return self.folder / "journal.jsonl"

    @property
    def owner(self) -> Path:
        """Return the file whose lock is held while the run is being made."""
        return self.folder / "owner.lock"

    @property
    def study(self) -> Path:
        """Return the search's own storage."""
        return self.folder / "study.log"

    @property
    def tuned(self) -> Path:
        """Return the tuned config (absent: nothing was tuned)."""
        return self.folder / "tuned.toml"

    @property
    def report(self) -> Path:
        """Return the HTML report."""
        return self.folder / "report.html"

    @property
    def diagnosis_file(self) -> Path:
        """Return the diagnosis as JSON, the public contract."""
        return self.folder / "diagnosis.json"

    def trace(self, rank: int = 0) -> Path:
        """Return the place of a rank's trace of the deep pass."""
        return self.folder / f"trace.rank{rank}.json.gz"

    def info(self) -> RunInfo:
        """Return what ``run.json`` says.

        Raises:
            DoctorError: ``run-corrupt`` or ``run-newer``.
        """
        document = schema.upgrade(_read_json(self.info_file), where=str(self.folder))
        try:
            return msgspec.convert(document, RunInfo)
        except msgspec.ValidationError as error:
            raise DoctorError("run-corrupt", f"{self.info_file}: {error}") from error

    def diagnosis(self) -> Diagnosis:
        """Return the run's diagnosis, upgraded from an older schema where needed.

        Raises:
            DoctorError: ``run-unfinished`` when there is none, ``run-corrupt``, or ``run-newer``.
        """
        if not self.diagnosis_file.exists():
            status = self.info().status
            raise DoctorError("run-unfinished", f"{self.folder}: holds no diagnosis (the run is {status})")
        return schema.decode(_read_json(self.diagnosis_file), where=str(self.folder))

    def samples(self) -> list[dict[str, Any]]:
        """Return the hardware readings in order; a last line cut off by a kill is left out."""
        return list(_read_lines(self.samples_file))

    def steps_frame(self) -> DataFrame:
        """Return one row per step of the window: ``step`` (from 0), ``seconds``, ``warmup`` (not in the means)."""
        import pandas as pd

        diagnosis = self.diagnosis()
        seconds = diagnosis.step_seconds
        warmup = diagnosis.steps.warmup if diagnosis.steps else 0
        return pd.DataFrame(
            {"step": range(len(seconds)), "seconds": seconds, "warmup": [i < warmup for i in range(len(seconds))]}
        )

    def trials_frame(self) -> DataFrame:
        """Return one row per trial in order: its settings, verdict and ``mid``, ``low``, ``high`` of its speedup."""
        import pandas as pd

        columns = ["stage", "settings", "effect", "verdict", "mid", "low", "high", "expected", "pairs", "steps"]
        columns += ["seconds", "reason"]
        rows = []
        for trial in self.diagnosis().trials:
            facts = asdict(trial)
            facts.update(asdict(trial.speedup) if trial.speedup else {"mid": None, "low": None, "high": None})
            rows.append([facts[column] for column in columns])
        return pd.DataFrame(rows, columns=columns)


@dataclass(frozen=True, slots=True)
class RunWriter:
    """A run being made: the handle, and the few writes that make it whole."""

    run: Run

    def status(self, status: Status) -> None:
        """Note in ``run.json`` how the run ended."""
        write_whole(self.run.info_file, _json(asdict(replace(self.run.info(), status=status))))

    def ended(self, status: Status) -> None:
        """Note the end of a run that failed to be written; on a disk that takes not even this, the next command does."""
        with suppress(DoctorError):
            self.status(status)

    def machine(self, facts: Mapping[str, Any]) -> None:
        """Write ``machine.json``."""
        write_whole(self.run.machine_file, _json(facts))

    def plan(self, plan: Mapping[str, Any]) -> Path:
        """Write ``plan.json`` and return where it is."""
        write_whole(self.run.plan_file, _json(plan))
        return self.run.plan_file

    def tuned(self, text: str) -> None:
        """Write the tuned config."""
        write_whole(self.run.tuned, text)

    def report(self, html: str) -> None:
        """Write the HTML report."""
        write_whole(self.run.report, html)

    def diagnosis(self, text: str) -> None:
        """Write ``diagnosis.json``."""
        write_whole(self.run.diagnosis_file, text)


def create_run(out: Path | None, script: str, command: list[str] | None = None) -> RunWriter:
    """Make the directory of a new run of ``script`` below ``out`` and point ``latest`` at it.

    Args:
        out: the folder runs are kept in; None: ``.fasttrain-doctor/runs`` of the current folder.
        script: path or module name, for the folder's name; secrets already redacted.
        command: the whole command, redacted.

    Raises:
        DoctorError: ``output-unwritable`` or ``disk-full``.
    """
    home = Path.cwd() / HOME
    runs = (out if out is not None else home / RUNS).absolute()
    now = datetime.now().astimezone()
    name = f"{now:%Y%m%d-%H%M%S}-{_stem(script)}"
    with explained(runs):
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        if out is None:
            home.chmod(0o700)
            _ignore(home)
        folder = _new_folder(runs, name)
        info = RunInfo(
            schema=SCHEMA,
            tool=__version__,
            script=script,
            command=command or [],
            started=now.isoformat(timespec="seconds"),
            status="running",
        )
        try:
            _fill(Run(folder), info)
            with explained(runs / LATEST):
                point(runs / LATEST, folder.name)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # no half-made run is left to be listed
            raise
    return RunWriter(Run(folder))


def _fill(run: Run, info: RunInfo) -> None:
    _ignore(run.folder)
    for part in (run.probe, run.kept, run.created, run.trials):
        part.mkdir(mode=0o700)
    write_whole(run.info_file, _json(asdict(info)))


def load(target: str | Path | None = None, *, folder: Path | None = None) -> Run:
    """Find a run by path, by id (or the beginning of one), or the latest one when ``target`` is None.

    Raises:
        UsageError: ``run-missing`` or ``run-ambiguous``.
        DoctorError: ``run-corrupt`` or ``run-newer``.
    """
    runs = folder if folder is not None else Path.cwd() / HOME / RUNS
    run = _latest(runs) if target is None else _named(Path(target), runs)
    run.info()  # a corrupt or newer run is refused here, before anything is made of it
    return run


def list_runs(folder: Path | None = None) -> list[Run]:
    """Return the runs below ``folder`` (None: those of the current folder), newest first; corrupt ones too."""
    runs = folder if folder is not None else Path.cwd() / HOME / RUNS
    if not runs.is_dir():
        return []
    found = [entry for entry in runs.iterdir() if not entry.is_symlink() and (entry / INFO).is_file()]
    return [Run(entry.absolute()) for entry in sorted(found, key=lambda entry: entry.name, reverse=True)]


def _json(value: object) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DoctorError("run-corrupt", f"{path}: missing; the run cannot be read") from error
    except OSError as error:
        raise DoctorError("run-corrupt", f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DoctorError("run-corrupt", f"{path}: not valid JSON ({error})") from error
    if not isinstance(document, dict):
        raise DoctorError("run-corrupt", f"{path}: holds no JSON object")
    return document


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value


def _stem(script: str) -> str:
    """Return a short name that is safe in a path: letters, digits, ``-`` and ``_``."""
    stem = script.rsplit("/", 1)[-1].removesuffix(".py").rsplit(".", 1)[-1]
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in stem)[:40].strip("_") or "script"


def _new_folder(runs: Path, name: str) -> Path:
    for n in range(1, 1000):  # two runs may start within one second
        folder = runs / (name if n == 1 else f"{name}.{n}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(errno.EEXIST, "too many runs of this second", str(runs / name))


def _ignore(folder: Path) -> None:
    file = folder / ".gitignore"
    if not file.exists():
        file.write_text("*\n", encoding="utf-8")


def _latest(runs: Path) -> Run:
    link = runs / LATEST
    if (link / INFO).is_file():
        return Run(link.resolve())
    found = list_runs(runs)
    if not found:
        raise UsageError("run-missing", f"{runs}: holds no runs; start with: fasttrain-doctor diagnose train.py")
    return found[0]


def _named(target: Path, runs: Path) -> Run:
    place = target.parent if target.is_file() else target
    if (place / INFO).is_file():
        return Run(place.resolve())
    if place.is_dir() and (list_runs(place) or (place / LATEST).is_symlink()):
        return _latest(place)
    if place.is_dir():
        raise DoctorError("run-corrupt", f"{place}: not a run directory (no {INFO} in it)")
    matches = [run for run in list_runs(runs) if run.id.startswith(str(target))]
    exact = [run for run in matches if run.id == str(target)]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if matches:
        raise UsageError("run-ambiguous", f"{target}: begins {len(matches)} runs' names; give more of it")
    raise UsageError("run-missing", f"{target}: no such run in {runs}; see: fasttrain-doctor runs")
