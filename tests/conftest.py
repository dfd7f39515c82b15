"""What tests share: running a script under the doctor as a user would, and what some tests need of the machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from fasttrain_doctor.diagnosis import Diagnosis
from fasttrain_doctor.run import Run, load

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
GPU = Path("/dev/nvidiactl").exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, by name, what this machine cannot run."""
    for item in items:
        if item.get_closest_marker("gpu") and not GPU:
            item.add_marker(pytest.mark.skip(reason="no accelerator"))
        if item.get_closest_marker("browser") and CHROMIUM is None:
            item.add_marker(pytest.mark.skip(reason="no Chromium"))


@dataclass(frozen=True)
class Result:
    """What a command left behind. ``folder`` is the one it ran in."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @cached_property
    def run(self) -> Run:
        """The newest run."""
        return load(folder=self.folder / ".fasttrain-doctor" / "runs")

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The newest run's diagnosis."""
        return self.run.diagnosis()


class Doctor:
    """Runs ``fasttrain-doctor`` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        script: str,
        *args: str,
        options: Sequence[str] = ("--no-trials",),
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> Result:
        """Write ``script`` to ``train.py`` and diagnose it; ``args`` are the script's."""
        (self.folder / "train.py").write_text(textwrap.dedent(script))
        return self.command("diagnose", *options, "train.py", *args, env=env, timeout=timeout)

    def command(
        self, *words: str, env: Mapping[str, str] | None = None, timeout: float = 120, stdin: str = ""
    ) -> Result:
        """Run any of our commands and wait for its end; past ``timeout`` seconds it is killed and the test fails."""
        process = self.start(*words, env=env)
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            pytest.fail(f"{' '.join(words)}: not done after {timeout} s\n{stdout}\n{stderr}")
        return Result(process.returncode, stdout, stderr, self.folder)

    def python(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the interpreter as a user would, without us."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command in a process group of its own and leave it running."""
        return subprocess.Popen(
            [sys.executable, "-m", "fasttrain_doctor.cli", *words],
            cwd=self.folder,
            env=environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment commands are tested in: one thread for torch, 80 columns, no colour, nothing of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FASTTRAIN_DOCTOR_")}
    return {"OMP_NUM_THREADS": "1", **kept, "COLUMNS": "80", "NO_COLOR": "1", **(more or {})}


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """A doctor at work in ``tmp_path``."""
    return Doctor(tmp_path)


@pytest.fixture
def chromium() -> str:
    """The browser's path; for tests marked ``browser``."""
    assert CHROMIUM is not None, "mark the test: @pytest.mark.browser"
    return CHROMIUM
