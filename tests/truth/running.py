"""Runs one planted script through a schedule of doses, in one process.

While the loop is paused at a border the doses are written to a file that the script's processes share; then a block of
steps runs, and where the data was slowed a look inside as a diagnosis has it. A block of whose time the machine itself
took much is run again: that is decided by the script's own notes, before anything is known of what was found.
"""

from __future__ import annotations

import contextlib
import json
import struct
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fasttrain_doctor.launch import Command, Streams, parse_target
from fasttrain_doctor.recorded import Fact, Recorded, read_probe
from fasttrain_doctor.tuners.session import Session, Setup
from tests.conftest import environment
from tests.truth import notes
from tests.truth.notes import IN_DATA, Row
from tests.truth.scripts.layout import PLACES

SCRIPTS = Path(__file__).parent / "scripts"
STEPS, DROPPED = 20, 6  # in each block; the first of a block were fetched ahead, or are a warm-up
CALIBRATING = 40  # steps from whose time the doses are made
TRIES = 3
LOOK, LOOK_STEPS = 0.5, 10  # seconds of a look inside, and steps: at least
WRITING = 5.0  # seconds within which workers write what they saw
SLIGHT = 0.5  # times the least dose that another part may have grown by
CALM = 0.04  # share of a step without a dose that may be spent waiting for a CPU

Doses = Mapping[str, float]  # place -> share of the step


@dataclass(frozen=True)
class Script:
    """One planted script; ``python`` is another interpreter where a framework lives in one."""

    family: str
    workers: int
    file: str = "plain.py"
    python: str = sys.executable

    @property
    def name(self) -> str:
        """Family and number of workers."""
        return self.family if not self.workers else f"{self.family} with {self.workers} workers"


@dataclass(frozen=True)
class Window:
    """When a block ran, in ns of the monotonic clock, and what a look inside after it showed in how many steps."""

    doses: Doses
    began: int
    ended: int
    looked: Sequence[Fact] = ()  # the training process's, then its workers'
    look_steps: int = 0


@dataclass(frozen=True)
class Ran:
    """Everything one process of a script left: its records, its notes, and which block ran when."""

    script: Script
    command: Command
    windows: Sequence[Window]
    recorded: Recorded
    main: Sequence[Row]  # the training process's notes
    others: Sequence[Row]


def seconds_of(doses: Doses, base: float, workers: int) -> dict[str, float]:
    """Return the seconds per step to plant so that each dose is its share of the step.

    What ``workers`` fetch is hidden behind the step: all of them together must be busy for ``workers`` times as long as
    the step for it to take its share.
    """
    step = base / (1 - sum(doses.values()))
    data = sum(share for place, share in doses.items() if place in IN_DATA)
    return {
        place: workers * step * share / data if workers and place in IN_DATA else share * step
        for place, share in doses.items()
    }


def run(script: Script, schedule: Sequence[Doses], folder: Path) -> Ran:
    """Run ``schedule`` in one process of ``script``; blocks come in its order."""
    probe = folder / "run" / "probe"
    probe.mkdir(parents=True)
    (folder / "doses").write_bytes(bytes(8 * len(PLACES)))
    streams = Streams(folder / "run" / "out", folder / "run" / "err", terminals=(False, False, False))
    target = [str(SCRIPTS / script.file), str(folder), script.family, str(script.workers)]
    with contextlib.chdir(folder), contextlib.ExitStack() as stack:
        own = script.python == sys.executable
        command = parse_target(target if own else ["--", script.python, *target])
        session = stack.enter_context(Session(Setup(command, folder / "run", probe, streams, environment())))
        hello = session.hello(120)
        if hello is None:
            raise RuntimeError(f"{script.name}: no loop was found\n{(folder / 'run' / 'err').read_text()}")
        windows = _Blocks(script, session, folder, hello.pid).run(schedule)
    others = [f for f in folder.glob("*.notes") if f.stem != str(hello.pid)]
    return Ran(
        script,
        command,
        windows,
        read_probe(probe),
        notes.rows(folder / f"{hello.pid}.notes"),
        [row for f in others for row in notes.rows(f)],
    )


class _Blocks:
    """Goes through the blocks of one running script."""

    def __init__(self, script: Script, session: Session, folder: Path, pid: int) -> None:
        self.script, self.session, self.folder = script, session, folder
        self.probe, self.pid, self.noted = folder / "run" / "probe", pid, folder / f"{pid}.notes"
        self.usual: Mapping[str, float] = {}
        self.told: Counter[str] = Counter()  # looks that each process has told of so far
        times = sorted(self._observe(CALIBRATING)[CALIBRATING // 3 :])
        self.step = times[len(times) // 2]

    def run(self, schedule: Sequence[Doses]) -> list[Window]:
        out = []
        for doses in schedule:
            for _ in range(TRIES):
                window = self._block(doses)
                if self._quiet(window):
                    break
            out.append(self._look(window) if set(doses) & IN_DATA else window)
        return out

    def _block(self, doses: Doses) -> Window:
        wanted = seconds_of(doses, self.step, self.script.workers)
        with (self.folder / "doses").open("r+b") as f:
            f.write(struct.pack(f"{len(PLACES)}d", *(wanted.get(place, 0.0) for place in PLACES)))
        began = time.perf_counter_ns()
        self._observe(DROPPED + STEPS + 1)
        return Window(doses, began, time.perf_counter_ns())

    def _look(self, window: Window) -> Window:
        """Look inside while the same doses go on."""
        answer = self.session.ask({"do": "look", "steps": LOOK_STEPS, "seconds": LOOK}, 120)
        until = time.monotonic() + WRITING
        seen = self._facts("look")
        while len(seen) < len(self._facts("looking")) and time.monotonic() < until:
            time.sleep(0.02)
            seen = self._facts("look")
        new = []
        for name, fact in seen:
            self.told[name] += 1
            new.append(fact)
        return replace(window, looked=sorted(new, key=lambda f: not f["main"]), look_steps=int(answer["steps"]))

    def _facts(self, kind: str) -> list[tuple[str, Fact]]:
        """Return the facts of one kind that are new, with the names of their processes' files."""
        out = []
        for f in self.probe.glob("*.jsonl"):
            lines = [line for line in f.read_bytes().splitlines() if f'"fact": "{kind}"'.encode() in line]
            out += [(f.name, json.loads(line)) for line in lines[self.told[f.name] :]]
        return out

    def _observe(self, steps: int) -> list[float]:
        answer = self.session.ask({"do": "observe", "steps": steps, "seconds": 0}, 120)
        return [float(s) for s in answer["step_seconds"]]

    def _quiet(self, window: Window) -> bool:
        """Whether the machine took little of a block's steps, as its own clocks have it."""
        noted = notes.between(notes.rows(self.noted), window.began / 1e9, window.ended / 1e9)
        parts = notes.parts(noted, DROPPED + STEPS)
        if not window.doses:
            self.usual = parts
            return (notes.stray(noted) or 0.0) < CALM * self.step
        grown = {part: s - self.usual.get(part, 0.0) for part, s in parts.items()}
        return not grown or not notes.outgrown(grown, window.doses, SLIGHT)
