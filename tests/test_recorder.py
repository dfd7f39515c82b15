"""Records stay small however long a script runs, and each has its price."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain_doctor.probe.recorder import Recorder
from fasttrain_doctor.recorded import read_probe
from fasttrain_doctor.records import Kind
from fasttrain_doctor.watching import Price
from tests.records_made import record

MOST = 6 * 1024 * 1024
MOST_OF_WORKERS = 2 * 1024 * 1024


def written(folder: Path, recorder: Recorder, records: int) -> int:
    """Write so many records; returns the bytes of the file."""
    for t in range(1, records + 1):
        recorder.write(Kind.NEXT, 0, 1, t, t)
    (file,) = folder.glob("*.rec")
    return file.stat().st_size


def test_a_window_takes_a_few_pages(tmp_path: Path) -> None:
    """Sixty steps of eight records each."""
    assert written(tmp_path, Recorder(str(tmp_path)), 480) <= 64 * 1024


def test_a_process_stops_recording_at_its_bound_and_says_so(tmp_path: Path) -> None:
    assert MOST // 2 < written(tmp_path, Recorder(str(tmp_path)), MOST // 64 + 1000) <= MOST
    assert read_probe(tmp_path).degraded() == ["records: the record file reached its bound"]
    assert len(read_probe(tmp_path).processes[0].records) > MOST // 64 // 2


def test_a_loaders_workers_share_one_bound(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.worker, recorder.workers = 0, 8
    assert written(tmp_path, recorder, 10_000) <= MOST_OF_WORKERS // 8


def test_the_ranks_of_a_machine_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert written(tmp_path, Recorder(str(tmp_path)), 20_000) <= MOST // 8


def test_a_fetch_costs_more_than_a_call_and_its_samples_come_on_top() -> None:
    price = Price(call=1000, fetch=5000, sample=200)
    assert price.of(record(Kind.FORWARD, 0, 1)) == 1000
    assert price.of(record(Kind.FETCH, 0, 1, c=16)) == 5000 + 15 * 200
    assert price.of(record(Kind.ITEMS, 0, 1)) == 0
    assert price.of(record(Kind.BETWEEN, 0, 1)) == 1000
