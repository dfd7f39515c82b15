"""Records and processes made by hand, for the pure stages."""

from __future__ import annotations

from collections.abc import Iterable

from fasttrain_doctor.recorded import Process
from fasttrain_doctor.records import Call, Kind, Record

MS = 1_000_000
TRAINING = Call.GRAD | Call.TRAINS


def record(kind: Kind, t0: float, t1: float, **fields: int) -> Record:
    """A record of thread 1; times in ms, the thread computing all along unless ``cpu0`` and ``cpu1`` say otherwise."""
    start, end = round(t0 * MS), round(t1 * MS)
    base = {"flag": 0, "thread": 1, "obj": 1, "cpu0": start, "cpu1": end, "a": 0, "b": 0, "c": 0}
    return Record(kind=kind, t0=start, t1=end, **(base | fields))


def process(records: Iterable[Record], **fields: int) -> Process:
    """A process with these records, in the order in which they are read."""
    ordered = tuple(sorted(records, key=lambda r: (r.t0, -r.t1)))
    return Process(fields.get("pid", 1), fields.get("parent", 0), None, fields.get("worker"), ordered, ())


class Script:
    """Writes the records of a loop, one call after the other; times in ms."""

    def __init__(self) -> None:
        self.now = 1.0
        self.records: list[Record] = []

    def _add(self, kind: Kind, ms: float, **fields: int) -> None:
        self.records.append(record(kind, self.now, self.now + ms, **fields))
        self.now += ms

    def gap(self, ms: float) -> None:
        self.now += ms

    def batch(self, ms: float = 1.0, loader: int = 1, *, end: bool = False) -> None:
        self._add(Kind.NEXT, ms, a=loader, flag=int(end))

    def forward(self, ms: float = 1.0, flag: int = TRAINING) -> None:
        self._add(Kind.FORWARD, ms, flag=int(flag))

    def backward(self, ms: float = 1.0) -> None:
        self._add(Kind.BACKWARD, ms)

    def update(self, ms: float = 1.0, optimizer: int = 1) -> None:
        self._add(Kind.OPTIMIZER, ms, obj=optimizer)

    def zero(self, ms: float = 0.1) -> None:
        self._add(Kind.GRADIENTS, ms)

    def pause(self, ms: float) -> None:
        self._add(Kind.MARK, ms, flag=1)

    def train(self, loader: int = 1) -> None:
        """One plain step."""
        self.batch(loader=loader)
        self.forward()
        self.backward()
        self.update()

    @property
    def process(self) -> Process:
        return process(self.records)
