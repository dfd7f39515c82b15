"""What the processes of a planted script noted, read back and added up. Pure but for the reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.truth.scripts.layout import BORDER, FETCHED, NOTE, PARTS, PLACES, STOPWATCH

Row = tuple[int, float, float, float, float]  # code, start, wall, CPU, queue
IN_DATA = frozenset({"read", "decode", "pool", "collate", "transform", "lock", "sample", "spread"})


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


def rows(path: Path) -> list[Row]:
    """Read one process's notes."""
    data = path.read_bytes()
    return list(NOTE.iter_unpack(data[: len(data) // NOTE.size * NOTE.size]))


def between(noted: Iterable[Row], first: float, last: float) -> list[Row]:
    """Return the notes of what began in [first, last), in seconds of the monotonic clock."""
    return [r for r in noted if first <= r[1] < last]


def planted(noted: Iterable[Row], steps: int) -> dict[str, Took]:
    """Return what each plant took per step."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for code, _, *took in noted:
        if code < len(PLACES):
            for i, t in enumerate(took):
                sums[PLACES[code]][i] += t / steps
    return {place: Took(*took) for place, took in sums.items()}


def parts(noted: Iterable[Row], steps: int) -> dict[str, float]:
    """Return each part's seconds per step by the loop's own stopwatch; empty where a framework drives the loop."""
    sums: dict[str, float] = defaultdict(float)
    for code, _, wall, *_ in noted:
        if STOPWATCH <= code < BORDER:
            sums[PARTS[code - STOPWATCH]] += wall / steps
    return dict(sums)


def part_of(place: str) -> str:
    """Return the part of the stopwatch that a plant lies in."""
    return "data" if place in IN_DATA else place


def fetched(noted: Iterable[Row], steps: int) -> float:
    """Return the seconds per step of all items and collations, in every process."""
    return sum(r[2] for r in noted if r[0] == FETCHED) / steps


def stray(noted: Sequence[Row]) -> float | None:
    """Return the seconds per step that the training thread queued outside of what was planted; None: not noted."""
    borders = [r for r in noted if r[0] == BORDER]
    if len(borders) < 2:
        return None
    first, last = borders[0], borders[-1]
    own = sum(r[4] for r in noted if r[0] < len(PLACES) and first[1] <= r[1] < last[1])
    return max(0.0, last[4] - first[4] - own) / (len(borders) - 1)


def outgrown(grown: Mapping[str, float], doses: Iterable[str], by: float) -> bool:
    """Whether a part that nothing was planted in has grown by more than ``by`` times the least planted one.

    Then the machine took more than the script planted: by the script's own clocks another cause is the primary one.
    """
    wanted = {part_of(place) for place in doses}
    least = min(grown.get(part, 0.0) for part in wanted)
    return max((s for part, s in grown.items() if part not in wanted), default=0.0) > by * least
