"""Reads what the probes of one run wrote: records by process, facts by kind. The only reader of a probe folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasttrain_doctor import lost
from fasttrain_doctor.records import HEADER, MAGIC, Kind, Record, read

Fact = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the script: its records in the order of their start, and its facts."""

    pid: int
    parent: int
    rank: int | None
    worker: int | None  # its number among a loader's workers
    records: tuple[Record, ...]
    facts: tuple[Fact, ...]

    def of(self, *kinds: Kind) -> list[Record]:
        """Return the records of these kinds."""
        return [r for r in self.records if r.kind in kinds]

    def facts_of(self, kind: str) -> list[Fact]:
        """Return the facts of one kind."""
        return [f for f in self.facts if f.get("fact") == kind]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything the probes of one start of the script wrote."""

    processes: tuple[Process, ...]

    @property
    def trainers(self) -> list[Process]:
        """Return the processes that train, rank 0 first: those with backwards or optimizer steps."""
        found = [p for p in self.processes if p.of(Kind.BACKWARD, Kind.OPTIMIZER)]
        return sorted(found, key=lambda p: (p.rank or 0, -len(p.records)))

    def workers_of(self, trainer: Process) -> list[Process]:
        """Return the loader workers of a training process."""
        return [p for p in self.processes if p.pid != trainer.pid and p.parent == trainer.pid and p.of(Kind.FETCH)]

    def degraded(self) -> list[str]:
        """Return what hooks lost, said once each."""
        facts = (f for p in self.processes for f in p.facts_of("degraded"))
        return list(dict.fromkeys(_said(str(f.get("what")), str(f.get("why"))) for f in facts))


def _said(what: str, why: str) -> str:
    loss = lost.of(what)
    return f"{what}: {why}" if loss is None else f"{what}: {why}; {loss.words}"


def read_probe(folder: Path) -> Recorded:
    """Read a probe folder. Torn files are read up to the tear; a process without records still has its facts."""
    pids = {int(f.stem) for f in folder.iterdir() if f.suffix in (".rec", ".jsonl") and f.stem.isdigit()}
    return Recorded(tuple(_process(folder, pid) for pid in sorted(pids)))


def _process(folder: Path, pid: int) -> Process:
    rec, facts = folder / f"{pid}.rec", folder / f"{pid}.jsonl"
    data = rec.read_bytes() if rec.exists() else b""
    parent, rank, worker = 0, None, None
    if len(data) >= HEADER.size and data[:8] == MAGIC:
        _, _, parent, rank_raw, worker_raw, _, _ = HEADER.unpack_from(data)
        rank = rank_raw if rank_raw >= 0 else None
        worker = worker_raw if worker_raw >= 0 else None
    records = tuple(sorted(read(data), key=lambda r: (r.t0, -r.t1)))
    lines = facts.read_bytes().splitlines() if facts.exists() else []
    said = tuple(_facts(lines))
    if rank is None:  # ranks that the script starts itself are in no environment
        rank = next((int(f["rank"]) for f in said if f.get("fact") == "rank" and int(f["world"]) > 1), None)
    return Process(pid, parent, rank, worker, records, said)


def _facts(lines: Iterable[bytes]) -> Iterable[Fact]:
    for line in lines:
        try:
            fact = json.loads(line)
        except ValueError:
            continue  # a line torn by a kill
        if isinstance(fact, dict):
            yield fact
