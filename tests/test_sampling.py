"""Samples say what was measured between two moments, and null for what could not be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain_doctor import sampling
from fasttrain_doctor.sampling import Sample, Sampler, read_samples

# A process with a child of its own that burns its CPU and holds 64 MB.
BURNER = "import os\nos.fork()\nx = bytearray(64 << 20)\nprint('ready', flush=True)\nwhile True: pass\n"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def burner() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", BURNER], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    yield process  # type: ignore[misc]
    os.killpg(process.pid, 9)
    process.wait()


def test_a_process_tree_is_seen_working(tmp_path: Path, burner: subprocess.Popen[bytes]) -> None:
    path = tmp_path / "samples.jsonl"
    before = time.monotonic_ns()
    with Sampler(path, burner.pid, interval=0.05) as sampler:
        until(lambda: len(read_samples(path)) >= 6)
    samples = read_samples(path)
    assert sampler.failed is None
    assert before < samples[0].t < samples[-1].t < time.monotonic_ns(), "the clock of the probe's records"
    assert all(s.processes == 2 for s in samples)
    assert max(s.tree_cpu or 0 for s in samples) > 0.1
    assert min(s.tree_memory or 0 for s in samples) > 128 << 20
    assert all(s.cpu is not None and len(s.cpu) == os.cpu_count() for s in samples)
    assert all(0 <= share <= 1 for s in samples for share in s.cpu or ())
    assert all(s.memory_free for s in samples)


def test_a_root_that_is_this_process_counts_only_what_it_started(
    tmp_path: Path, burner: subprocess.Popen[bytes]
) -> None:
    tree = sampling._Tree(os.getpid())
    tree.read()
    assert os.getpid() not in tree._known
    assert burner.pid in tree._known


def test_what_is_not_there_is_null_and_never_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.cgroups, "stalled", lambda file: None)
    monkeypatch.setattr(sampling.cgroups, "find", lambda *a: None)
    monkeypatch.setattr(sampling.psutil, "disk_io_counters", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gauges = sampling._Gauges(sampling._Tree(os.getpid()))
    gauges.read()
    sample = gauges.read()
    empty = (sample.waiting_cpu, sample.waiting_io, sample.throttled, sample.group_waiting_cpu, sample.disk_read)
    assert empty == (None,) * 5
    assert sample.gpus == ()


def test_the_first_reading_of_a_counter_is_no_rate() -> None:
    first = sampling._Gauges(sampling._Tree(os.getpid())).read()
    assert first.disk_read is None
    assert first.waiting_cpu is None


def test_the_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    sampler = Sampler(path, os.getpid(), interval=0.001, largest=2000).start()
    until(lambda: not sampler._thread.is_alive())
    sampler.stop()
    assert 2000 <= path.stat().st_size < 4000 + 100 * (os.cpu_count() or 1)


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path / "no" / "such", os.getpid(), interval=0.001).start()
    until(lambda: not sampler._thread.is_alive())
    sampler.stop()
    assert sampler.failed is not None


def test_a_torn_line_and_a_missing_file_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    assert read_samples(path) == []
    path.write_text('{"t":1,"cpu":[0.5],"gpus":[{"busy":1.0,"slowed_by":["power-cap"]}]}\n{"t":2,"cp')
    (sample,) = read_samples(path)
    assert sample.gpus[0].slowed_by == ("power-cap",)
    assert sample.cpu == (0.5,)
    assert isinstance(sample, Sample)
