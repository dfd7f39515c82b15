"""Runs one planted script through a schedule of doses, in one process, and reads back what was planted and what was found.

While the loop is paused at a border the doses are written to a file that the script's processes share; then a block of
steps runs. A block of whose time the machine itself took more than was planted is measured again: that is decided by
the script's own notes, before anything is known of what was found.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fasttrain_doctor.breakdown import break_down
from fasttrain_doctor.fetches import fetches_of
from fasttrain_doctor.launch import Streams, parse_target
from fasttrain_doctor.recorded import Recorded, read_probe
from fasttrain_doctor.steps import Steps, find_steps
from fasttrain_doctor.tuners.session import Session, Setup
from tests.conftest import environment
from tests.truth.naming import Said
from tests.truth.scripts.layout import BORDER, FETCHED, NOTE, PARTS, PLACES, STOPWATCH

SCRIPTS = Path(__file__).parent / "scripts"
BATCH = 8
STEPS, DROPPED = 24, 6  # in each block; the first of a block were fetched ahead, or are a warm-up
CALIBRATING = 40  # steps from whose time the doses are made
TRIES = 3
IN_DATA = frozenset({"read", "decode", "pool", "collate", "transform", "lock", "sample", "spread"})

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
        return self.family if not self.workers else f"{self.family}, {self.workers} workers"


@dataclass(frozen=True)
class Took:
    """What a plant took, in seconds per step, by the script's notes."""

    wall: float = 0.0
    cpu: float = 0.0
    queue: float = 0.0

    @property
    def blocked(self) -> float:
        """Neither computing nor queueing."""
        return max(0.0, self.wall - self.cpu - self.queue)


@dataclass(frozen=True)
class Block:
    """A run of steps with the same doses. Seconds per step; ``parts`` are the script's own stopwatch."""

    script: Script
    doses: Doses
    planted: Mapping[str, Took]
    parts: Mapping[str, float]
    blocked: float | None  # share, in 0..1, of all fetching that was blocked on reads, by the script's notes
    locked: float | None  # share of it that was spent behind the lock
    stray: float  # what the training thread queued outside of what was planted
    said: Said


@dataclass
class _Notes:
    """Everything the script's processes noted: rows of (code, start, wall, CPU, queue), the training process's first."""

    main: list[tuple[int, float, float, float, float]] = field(default_factory=list)
    others: list[tuple[int, float, float, float, float]] = field(default_factory=list)


def seconds_of(doses: Doses, base: float, workers: int) -> dict[str, float]:
    """Return the seconds per step to plant so that each dose is its share of the step.

    What ``workers`` fetch is hidden behind the step: all of them together must be busy for ``workers`` times as long as
    the step for it to take its share.
    """
    step = base / (1 - sum(doses.values()))
    data = sum(share for place, share in doses.items() if place in IN_DATA)
    out = {}
    for place, share in doses.items():
        hidden = workers and place in IN_DATA
        out[place] = workers * step * share / data if hidden else share * step
    return out


def run(script: Script, schedule: Sequence[Doses], folder: Path) -> list[Block]:
    """Run ``schedule`` in one process of ``script``; blocks come in its order."""
    probe = folder / "run" / "probe"
    probe.mkdir(parents=True)
    (folder / "doses").write_bytes(bytes(8 * len(PLACES)))
    streams = Streams(folder / "run" / "out", folder / "run" / "err", terminals=(False, False, False))
    options = [] if script.python == sys.executable else [script.python]
    target = [str(SCRIPTS / script.file), str(folder), script.family, str(script.workers)]
    windows: list[tuple[Doses, int, int]] = []
    with contextlib.chdir(folder), contextlib.ExitStack() as stack:
        command = parse_target(["--", *options, *target] if options else target)
        session = stack.enter_context(Session(Setup(command, folder / "run", probe, streams, environment())))
        hello = session.hello(120)
        if hello is None:
            raise RuntimeError(f"{script.name}: no loop was found\n{(folder / 'run' / 'err').read_text()}")
        base = _observe(session, CALIBRATING)[CALIBRATING // 3 :]
        step = sorted(base)[len(base) // 2]
        for doses in schedule:
            wanted = seconds_of(doses, step, script.workers)
            for _ in range(TRIES):
                with (folder / "doses").open("r+b") as f:
                    f.write(struct.pack(f"{len(PLACES)}d", *(wanted.get(place, 0.0) for place in PLACES)))
                began = time.perf_counter_ns()
                _observe(session, DROPPED + STEPS + 1)
                ended = time.perf_counter_ns()
                if _quiet(folder, hello.pid, began, ended, wanted, doses):
                    break
            windows.append((doses, began, ended))
    recorded = read_probe(probe)
    notes = _Notes(_rows(folder / f"{hello.pid}.notes"))
    for f in folder.glob("*.notes"):
        if f.stem != str(hello.pid):
            notes.others += _rows(f)
    steps = find_steps(next(p for p in recorded.processes if p.pid == hello.pid))
    return [_block(script, doses, steps, (a, b), recorded, hello.pid, notes) for doses, a, b in windows]


def _observe(session: Session, steps: int) -> list[float]:
    answer = session.ask({"do": "observe", "steps": steps, "seconds": 0}, 120)
    return [float(s) for s in answer["step_seconds"]]


def _inside(steps: Steps, began: int, ended: int) -> Steps:
    whole = [s for s in steps.steps if s.start >= began and s.end <= ended]
    return replace(steps, steps=tuple(whole[DROPPED - 1 :]))


def _rows(path: Path) -> list[tuple[int, float, float, float, float]]:
    data = path.read_bytes()
    return list(NOTE.iter_unpack(data[: len(data) // NOTE.size * NOTE.size]))


def _quiet(folder: Path, pid: int, began: int, ended: int, wanted: Mapping[str, float], doses: Doses) -> bool:
    """Whether the machine took less of the block's steps than half of the smallest dose."""
    rows = [r for r in _rows(folder / f"{pid}.notes") if began <= r[1] * 1e9 < ended]
    stray = _stray(rows)
    shares = [wanted[place] if place not in IN_DATA else share * wanted[place] for place, share in doses.items()]
    return stray is None or not shares or stray < 0.5 * min(shares)


def _stray(rows: Sequence[tuple[int, float, float, float, float]]) -> float | None:
    """Return the seconds per step that the training thread queued outside of what was planted; None: not noted."""
    borders = [r for r in rows if r[0] == BORDER]
    if len(borders) < 2:
        return None
    first, last = borders[0], borders[-1]
    planted = sum(r[4] for r in rows if r[0] < len(PLACES) and first[1] <= r[1] < last[1])
    return max(0.0, last[4] - first[4] - planted) / (len(borders) - 1)


def _block(
    script: Script, doses: Doses, every: Steps, window: tuple[int, int], recorded: Recorded, pid: int, notes: _Notes
) -> Block:
    process = next(p for p in recorded.processes if p.pid == pid)
    workers = recorded.workers_of(process)
    steps = _inside(every, *window)
    breakdown = break_down(process, workers, steps, BATCH)
    assert breakdown is not None, f"{script.name}: no steps with {doses}"
    chosen = steps.steps[breakdown.warmup :]
    early = 1e-4  # the script notes its border before it asks for the batch
    first, last, count = chosen[0].start / 1e9 - early, chosen[-1].end / 1e9 - early, len(chosen)
    mine = [r for r in notes.main if first <= r[1] < last]
    others = [r for r in notes.others if first <= r[1] < last]
    planted: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    parts: dict[str, float] = defaultdict(float)
    for code, _, *took in (*mine, *others):
        if code < len(PLACES):
            row = planted[PLACES[code]]
            for i, t in enumerate(took):
                row[i] += t / count
        elif STOPWATCH <= code < BORDER:
            parts[PARTS[code - STOPWATCH]] += took[0] / count
    fetched = sum(r[2] for r in (*mine, *others) if r[0] == FETCHED)
    waits = sum(Took(*planted[place]).blocked for place in ("read", "sample", "spread")) * count
    return Block(
        script=script,
        doses=doses,
        planted={place: Took(*row) for place, row in planted.items()},
        parts=dict(parts),
        blocked=waits / fetched if fetched else None,
        locked=planted["lock"][0] * count / fetched if fetched else None,
        stray=_stray(mine) or 0.0,
        said=Said(breakdown, fetches_of(process, workers, every, chosen)),
    )
