"""Runs a small training script under the probe and reads what it recorded, without the rest of the tool."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fasttrain_doctor.breakdown import Breakdown
from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.gather import Watched, loop_of, understand
from fasttrain_doctor.launch import Streams, parse_target
from fasttrain_doctor.recorded import Recorded, read_probe
from fasttrain_doctor.tuners.bench import SessionEnded
from fasttrain_doctor.tuners.session import Session, Setup
from tests.conftest import environment

# What most of the scripts begin with: a data set, a model, an optimizer.
HEAD = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Points(Dataset):
    def __init__(self, n=80): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return torch.full((8,), float(i)), i % 4

class Net(nn.Module):
    def __init__(self, out=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, out))
    def forward(self, x): return self.body(x)

torch.manual_seed(0)
loss_of = nn.CrossEntropyLoss()
"""


@dataclass(frozen=True)
class Seen:
    """What one start of a script left behind; ``code`` is its own exit status, None when it was stopped."""

    watched: Watched
    recorded: Recorded
    code: int | None
    stdout: str
    stderr: str

    @property
    def breakdown(self) -> Breakdown:
        return self.watched.breakdown

    @property
    def steps(self) -> int:
        return len(self.watched.steps.steps)

    @property
    def roles(self) -> list[str]:
        """The roles of the loaders, in the order in which they were made."""
        return [str(entry.role) for entry in loop_of(self.watched).loaders]

    def phase(self, phase: Phase) -> float:
        """Seconds per step of a phase that was measured."""
        seconds = self.breakdown.phases[phase]
        assert seconds is not None, f"{phase} was not measured"
        return seconds


def run(
    script: str,
    folder: Path,
    *,
    steps: int | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (),
) -> tuple[Recorded, int | None, str, str]:
    """Run ``script`` as ``train.py`` under the probe; to its own end, or until ``steps`` steps have been observed."""
    (folder / "train.py").write_text(textwrap.dedent(script))
    run_dir = folder / "run"
    probe = run_dir / "probe"
    probe.mkdir(parents=True)
    streams = Streams(run_dir / "out", run_dir / "err", terminals=(False, False, False))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        command = parse_target([*launcher, "train.py", *args])
        session = stack.enter_context(Session(Setup(command, run_dir, probe, streams, environment(env))))
        if session.hello(60) is not None:
            with contextlib.suppress(SessionEnded):
                session.ask({"do": "observe", "steps": steps or 10**9, "seconds": 0}, 60)
        code = session.stop() if steps else session.child.wait(20)
    return read_probe(probe), code, (run_dir / "out").read_text(), (run_dir / "err").read_text()


def watch(
    script: str,
    folder: Path,
    *,
    steps: int | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (),
) -> Seen:
    """Run a script as ``run`` does and understand what was recorded; fails when no step was found."""
    recorded, code, stdout, stderr = run(script, folder, steps=steps, args=args, env=env, launcher=launcher)
    watched = understand(recorded)
    if watched is None:
        pytest.fail(f"no steps were found\n{stdout}\n{stderr}")
    return Seen(watched, recorded, code, stdout, stderr)


def assert_sums(breakdown: Breakdown) -> None:
    """The phases sum to the mean step within 1 %, none below zero, the parts of ``other`` to ``other``."""
    if breakdown.data is None:
        parts: Iterable[float | None] = breakdown.phases.values()
    else:  # io and prepare may not be told apart; their sum is known
        parts = [breakdown.data, *(v for k, v in breakdown.phases.items() if k not in (Phase.IO, Phase.PREPARE))]
    known = [p for p in parts if p is not None]
    assert sum(known) == pytest.approx(breakdown.mean, rel=0.01)
    assert min(known) >= -0.01 * breakdown.mean
    other = breakdown.phases[Phase.OTHER]
    assert other is not None
    assert sum(v for v in breakdown.other.values() if v is not None) == pytest.approx(other, abs=0.01 * breakdown.mean)
