"""The arithmetic of a breakdown: phases sum to the step, on the host's clock and on a device's; torn files are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.breakdown import break_down, fetching
from fasttrain_doctor.evidence import Breakdown, Phase
from fasttrain_doctor.probe import device as light
from fasttrain_doctor.probe import state
from fasttrain_doctor.probe.loop import Loop
from fasttrain_doctor.probe.recorder import Recorder
from fasttrain_doctor.recorded import Process, read_probe
from fasttrain_doctor.records import HEADER, SIZE, Call, Interval, Kind, Record, Span, read
from fasttrain_doctor.steps import find_steps
from tests.records_made import MS, Script, process, record
from tests.watched import assert_sums


def understood(trainer: Process, workers: tuple[Process, ...] = ()) -> Breakdown:
    found = break_down(trainer, workers, find_steps(trainer), 16)
    assert found is not None
    return found


times = st.floats(0, 50).map(lambda ms: round(ms, 3))


@given(st.lists(st.tuples(*[times] * 8), min_size=4, max_size=12), st.booleans())
def test_phases_sum_to_the_mean_step(steps: list[tuple[float, ...]], evaluates: bool) -> None:
    script = Script()
    for data, before, forward, loss, backward, update, after, pause in steps:
        script.batch(data)
        script.gap(before)
        script.forward(forward)
        script.gap(loss)
        script.backward(backward)
        script.pause(pause)
        script.update(update)
        if evaluates:
            script.forward(after, flag=Call.EVAL | Call.TRAINS)
        script.gap(after + 0.001)
    script.batch(end=True)
    assert_sums(understood(script.process))


def fetch(t0: float, t1: float, cpu: float, queue: float, pool: float = 0.0, **fields: int) -> Record:
    clocks = {"cpu0": 0, "cpu1": round(cpu * MS), "a": round(queue * MS), "b": round(pool * MS), "c": 1, "obj": 0}
    return record(Kind.FETCH, t0, t1, **(clocks | fields))


@given(cpu=times, queue=times, pool=times, rest=times)
def test_a_fetch_is_io_and_preparation(cpu: float, queue: float, pool: float, rest: float) -> None:
    found = fetching([fetch(1, 1 + cpu + queue + rest, cpu, queue, pool)])
    assert found.io + found.prepare == pytest.approx(found.wall)
    assert found.io == pytest.approx(max(0.0, rest - pool) / 1e3, abs=1e-6)


def test_without_the_kernels_accounting_io_and_preparation_are_not_told_apart() -> None:
    script = Script()
    for _ in range(5):
        script.records.append(fetch(script.now, script.now + 3, 1, 0, a=-1))
        script.batch(3)
        script.forward()
        script.backward()
        script.update()
    found = understood(script.process)
    assert (found.phases[Phase.IO], found.phases[Phase.PREPARE], found.contention) == (None, None, None)
    assert found.data == pytest.approx(0.003)
    assert_sums(found)


def test_the_wait_for_workers_is_split_as_what_they_did_and_the_rest_is_hidden() -> None:
    script = Script()
    for _ in range(9):
        script.batch(4)
        script.forward(6)
        script.backward()
        script.update()
    works = [fetch(t, t + 12, 3, 0, flag=1, thread=1) for t in range(1, 100, 12)]  # 12 ms in each 12 ms step
    found = understood(script.process, (process(works, pid=2, parent=1, worker=0),))
    assert found.phases[Phase.IO] == pytest.approx(0.003, rel=0.05)
    assert found.phases[Phase.PREPARE] == pytest.approx(0.001, rel=0.05)
    assert found.hidden["io"] == pytest.approx(0.006, rel=0.2)
    assert_sums(found)


def test_the_workers_of_an_evaluation_loader_say_nothing_of_the_training_one() -> None:
    script = Script()
    for _ in range(9):
        script.train()
    ours = [fetch(t, t + 4, 4, 0, flag=1, obj=1) for t in range(1, 40, 4)]
    theirs = [fetch(t, t + 4, 0, 0, flag=1, obj=2) for t in range(1, 40, 4)]
    found = understood(script.process, (process(ours, pid=2), process(theirs, pid=3)))
    assert found.phases[Phase.IO] == 0.0
    assert found.phases[Phase.PREPARE] == pytest.approx(0.001)


def test_a_batch_made_in_the_loop_is_split_by_the_threads_own_accounting() -> None:
    """Of 10 ms between update and forward the thread computed 2, queued 1, waited 3 for another of ours, 4 for files."""
    records = []
    for k in range(6):
        start, cpu = 10.0 + 13 * k, 100 + 5 * k
        clocks = [{"cpu0": (cpu + i) * MS, "cpu1": (cpu + i + 1) * MS} for i in range(3)]
        account = {"a": (1 + k) * MS, "b": 3 * k * MS}
        records += [
            record(Kind.FORWARD, start, start + 1, flag=Call.GRAD | Call.TRAINS, **clocks[0], **account),
            record(Kind.BACKWARD, start + 1, start + 2, **clocks[1]),
            record(Kind.OPTIMIZER, start + 2, start + 3, **clocks[2], **account),
        ]
    found = understood(process(records))
    assert found.inferred == ("io", "prepare")
    assert found.phases[Phase.IO] == pytest.approx(0.004)
    assert found.phases[Phase.PREPARE] == pytest.approx(0.006)
    assert_sums(found)


# -- a device's clock ---------------------------------------------------------------------------------------------------


class Stream:
    """A device that is told what to do and does it later; its clock is in ms."""

    def __init__(self) -> None:
        self.host = 0.0
        self.done = 0.0  # when all that was issued will be done

    def work(self, issue: float, run: float) -> None:
        self.host += issue
        self.done = max(self.done, self.host) + run

    def wait(self, ms: float) -> None:
        self.host += ms


class Event:
    """An event on a ``Stream``, as torch.cuda.Event: its time is when the device passes it."""

    stream: Stream

    def record(self) -> None:
        self.at = max(self.stream.done, self.stream.host)

    def query(self) -> bool:
        return self.stream.host >= self.at

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setattr(state, "recorder", Recorder(str(tmp_path)))
    monkeypatch.setattr(state, "loop", Loop(None))
    stream = Stream()
    monkeypatch.setattr(Event, "stream", stream, raising=False)
    return stream


def run_on(
    stream: Stream, folder: Path, steps: int, data: float, copy: float, forward: float, backward: float
) -> list[Record]:
    """Train ``steps`` steps on a device; returns the DEVICE records of those that it had finished."""
    pass_ = light.Light(Event)
    for _ in range(steps):
        pass_.border()
        pass_.mark(Interval.OTHER)
        stream.wait(data)
        pass_.mark(Interval.DATA)
        stream.work(0.05, copy)
        pass_.mark(Interval.H2D)
        stream.work(0.5, forward)
        pass_.mark(Interval.FORWARD)
        stream.work(0.5, backward)
        pass_.mark(Interval.BACKWARD)
        stream.work(0.1, 1.0)
        pass_.mark(Interval.OPTIMIZER)
    stream.wait(1000)
    pass_.border()
    (file,) = folder.glob("*.rec")
    return [r for r in read(file.read_bytes()) if r.kind is Kind.DEVICE]


def test_events_partition_the_steps_as_the_device_saw_them(stream: Stream, tmp_path: Path) -> None:
    """The device is the bottleneck: fetching is hidden behind it and its intervals are the work issued."""
    records = run_on(stream, tmp_path, 12, data=2.0, copy=1.0, forward=10.0, backward=20.0)
    late = [r for r in records if r.b == 8]
    assert [Interval(r.obj) for r in late] == [
        Interval.OTHER, Interval.DATA, Interval.H2D, Interval.FORWARD, Interval.BACKWARD, Interval.OPTIMIZER,
    ]  # fmt: skip
    assert [r.a / MS for r in late] == pytest.approx([0, 0, 1, 10, 20, 1])
    assert not any(r.flag for r in late)


def test_a_border_that_the_device_has_passed_marks_the_host_as_the_bound(stream: Stream, tmp_path: Path) -> None:
    records = run_on(stream, tmp_path, 12, data=20.0, copy=0.1, forward=0.1, backward=0.1)
    late = {Interval(r.obj): r for r in records if r.b == 8}
    assert late[Interval.DATA].a / MS == pytest.approx(20 - 1.0, abs=1.1)  # the gap of the fetch
    assert late[Interval.FORWARD].flag
    assert sum(r.a for r in records if r.b == 8) / MS == pytest.approx(20 + 0.05 + 0.5 + 0.5 + 0.1, abs=1.1)


def test_on_a_device_its_intervals_replace_the_hosts(stream: Stream, tmp_path: Path) -> None:
    events = run_on(stream, tmp_path, 12, data=6.0, copy=1.0, forward=4.0, backward=8.0)
    by_step: dict[int, list[Record]] = {}
    for r in events:
        by_step.setdefault(r.b, []).append(r)
    script = Script()
    for serial in range(1, 12):
        length = sum(r.a for r in by_step[serial]) / MS
        script.records.append(fetch(script.now, script.now + 6, 3, 0))
        script.batch(6)
        script.forward(0.5)
        script.backward(0.5)
        script.update(0.5)
        script.gap(length - 7.5)
        script.records += [
            record(Kind.DEVICE, script.now - 0.01, script.now - 0.01, obj=r.obj, a=r.a, b=r.b) for r in by_step[serial]
        ]
    script.batch(end=True)
    found = understood(script.process)
    assert found.clock == "device"
    assert found.phases[Phase.FORWARD] == pytest.approx(0.004, rel=0.02)
    assert found.phases[Phase.BACKWARD] == pytest.approx(0.008, rel=0.02)
    assert found.phases[Phase.H2D] == pytest.approx(0.001, rel=0.02)
    assert found.phases[Phase.IO] == pytest.approx(found.phases[Phase.PREPARE])  # half of each fetch was I/O
    assert_sums(found)


# -- files --------------------------------------------------------------------------------------------------------------


def test_a_torn_file_is_read_up_to_the_tear(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    for i in range(20):
        recorder.write(Kind.SPAN, Span.LOGGING, i, 1000 + i, 2000 + i)
    recorder.fact("process", argv=["train.py"])
    (file,) = tmp_path.glob("*.rec")
    whole = file.read_bytes()
    for cut in (0, 5, HEADER.size, HEADER.size + 10 * SIZE, HEADER.size + 10 * SIZE + 17, len(whole)):
        file.write_bytes(whole[:cut])
        with next(tmp_path.glob("*.jsonl")).open("ab") as facts:
            facts.write(b'{"fact": "torn')
        (found,) = read_probe(tmp_path).processes
        assert [r.obj for r in found.records] == list(range(min(20, max(0, cut - HEADER.size) // SIZE)))
        assert len(found.facts_of("process")) == 1
    half = bytearray(whole)
    start = HEADER.size + 7 * SIZE
    half[start + 16 : start + SIZE] = bytes(SIZE - 16)  # killed within one record: its end is missing
    file.write_bytes(half)
    (found,) = read_probe(tmp_path).processes
    assert len(found.records) == 7


@given(st.binary(max_size=4 * SIZE))
def test_no_bytes_are_too_strange_to_be_read(data: bytes) -> None:
    assert len(list(read(b"FTDREC01" + data))) <= 4


def test_a_record_file_stays_within_its_bound(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    for i in range(120_000):
        recorder.write(Kind.SPAN, Span.GC, 0, i + 1, i + 2)
    (file,) = tmp_path.glob("*.rec")
    assert file.stat().st_size <= 6 * 1024 * 1024
    (found,) = read_probe(tmp_path).processes
    assert len(found.records) == (file.stat().st_size - HEADER.size) // SIZE
    assert read_probe(tmp_path).degraded() == ["records: the record file reached its bound"]
