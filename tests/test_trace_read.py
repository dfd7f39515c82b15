"""Reading a trace: every format since torch 1.8, files cut short or damaged, and files that are no trace."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fasttrain_doctor.errors import UsageError
from fasttrain_doctor.trace import device_metrics, operators, read
from fasttrain_doctor.trace_columns import Kind, Trace
from tests.trace_samples import Sample, small


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    """Everything a trace says, in an order of its own."""
    names = [trace.names[i] for i in trace.name]
    threads = [trace.threads[i] for i in trace.thread]
    numbers = zip(trace.kind, names, threads, trace.start, trace.end, trace.correlation, trace.device, strict=True)
    return sorted(
        (int(k), n, t, round(float(a), 3), round(float(b), 3), int(c), int(d)) for k, n, t, a, b, c, d in numbers
    )


def written(folder: Path, data: bytes | object, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return path


def test_times_are_microseconds_from_the_first_row_with_the_base_added(tmp_path: Path) -> None:
    trace = read(small().write(tmp_path))
    assert trace.start.min() == 0
    assert trace.end.max() == 3000
    assert trace.origin == 1_700_000_000_000_000
    assert trace.capability == (8, 0)
    assert trace.notes == ()


def test_gzip_is_told_by_its_content_not_by_its_name(tmp_path: Path) -> None:
    plain = read(small().write(tmp_path))
    packed = gzip.compress(json.dumps(small().document()).encode())
    assert rows(read(written(tmp_path, packed, "packed.json"))) == rows(plain)
    assert rows(read(small().write(tmp_path, "plain.json.gz"))) == rows(plain)
    two = gzip.compress(json.dumps(small().document()).encode()[:500])
    rest = gzip.compress(json.dumps(small().document()).encode()[500:])
    assert rows(read(written(tmp_path, two + rest, "two-members.gz"))) == rows(plain)


def test_a_list_at_the_top_is_read_as_events(tmp_path: Path) -> None:
    assert rows(read(written(tmp_path, small().rows))) == rows(read(small().write(tmp_path, "object.json")))


def test_the_categories_threads_and_properties_of_2021_mean_the_same(tmp_path: Path) -> None:
    old = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
    document = small().document()
    for row in document["traceEvents"]:
        row |= {"cat": old[row["cat"]], "tid": str(row["tid"]), "ts": 1623143093496523 + int(row["ts"])}
    del document["baseTimeNanoseconds"], document["deviceProperties"]
    document["computeProperties"] = [{"id": 0, "major": 7, "minor": 0}]
    trace, new = read(written(tmp_path, document)), read(small().write(tmp_path, "new.json"))
    assert trace.origin == 1623143093496523
    assert trace.capability == (7, 0)
    assert sorted(trace.start.tolist()) == sorted(new.start.tolist())
    assert device_metrics(trace) == device_metrics(new)


def test_device_ids_and_streams_may_be_anything(tmp_path: Path) -> None:
    made = small()
    for row in made.rows:
        if row["cat"] == "kernel":
            row |= {"pid": 2, "tid": 0, "args": {"stream": 0, "correlation": row["args"]["correlation"]}}
    trace = read(made.write(tmp_path))
    assert set(trace.device[trace.on_device].tolist()) == {2}
    assert device_metrics(trace) is not None


def test_rows_that_are_no_work_are_left_out(tmp_path: Path) -> None:
    made = small()
    for cat in ("python_function", "cuda_sync", "gpu_user_annotation", "overhead", "cuda_event"):
        made.host("not work", 0, 5, cat)
    made.rows.append({"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 3})
    made.rows.append({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 3, "args": {"name": "python"}})
    assert rows(read(made.write(tmp_path))) == rows(read(small().write(tmp_path, "plain.json")))


def test_kernels_at_time_zero_and_negative_durations_are_left_out_and_counted(tmp_path: Path) -> None:
    made = small()
    for row in made.rows:
        row["ts"] += 1.6e15
    made.rows.append({"ph": "X", "cat": "Trace", "name": "span", "pid": "Spans", "tid": "t", "ts": 1.6e15, "dur": 3000})
    made.work("lost", 0, 5)
    made.work("backwards", 1.6e15 + 50, 1.6e15 + 40)
    trace = read(made.write(tmp_path))
    assert "lost" not in trace.names
    assert "backwards" not in trace.names
    assert any("1 rows far outside" in note for note in trace.notes)
    assert any("negative duration" in note for note in trace.notes)


@pytest.mark.parametrize("whole", [3, 11, 20])
def test_a_trace_cut_short_is_read_to_its_last_whole_event_and_says_so(tmp_path: Path, whole: int) -> None:
    text = json.dumps(small().document())
    cut = text.index(json.dumps(small().rows[whole])) + 40  # inside the event after `whole` ones
    trace = read(written(tmp_path, text[:cut].encode()))
    assert len(trace.kind) == whole
    assert any(f"read up to its last whole event, {whole} events" in note for note in trace.notes)
    assert trace.capability == (8, 0)


def test_a_gzip_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    made = Sample()
    for n in range(3000):
        made.host(f"aten::op{n * 7919 % 3001}", n, n + 0.5)
    packed = gzip.compress(json.dumps(made.document()).encode())
    trace = read(written(tmp_path, packed[: len(packed) // 2]))
    assert 100 < len(trace.kind) < 3000
    assert "the gzip data end early" in trace.notes


def test_quotes_not_escaped_in_a_name_cost_that_event_only(tmp_path: Path) -> None:
    text = json.dumps(small().document()).replace("ampere_sgemm_128x64_tn", 'lambda "x": y', 1)
    trace = read(written(tmp_path, text.encode()))
    assert len(trace.kind) == len(small().rows) - 1
    assert "1 events could not be read and were left out" in trace.notes


def test_text_that_is_not_utf8_and_values_of_the_wrong_type_are_tolerated(tmp_path: Path) -> None:
    text = json.dumps(small().document()).encode().replace(b"aten::mm", b"aten::\xff\xfe", 1)
    assert len(read(written(tmp_path, text)).kind) == len(small().rows)
    marked = b"\xef\xbb\xbf" + json.dumps(small().rows).encode()
    assert len(read(written(tmp_path, marked)).kind) == len(small().rows)
    made = small()
    made.rows[0] |= {"ts": "0.0", "args": "none"}
    made.rows[1] |= {"cat": None}
    made.rows[4]["args"]["correlation"] = 2**70
    trace = read(made.write(tmp_path))
    assert len(trace.kind) == len(small().rows) - 1


@pytest.mark.parametrize(
    ("data", "slug"),
    [
        (b"", "not-a-trace"),
        (b"import torch\n", "not-a-trace"),
        (b"\x89PNG\r\n", "not-a-trace"),
        (b"{}", "not-a-trace"),
        (b"[]", "not-a-trace"),
        (b'{"traceEvents": []}', "not-a-trace"),
        (b'{"traceEvents": 7}', "not-a-trace"),
        (b'{"schema": 1, "findings": []}', "not-a-trace"),
        (b"[" * 200_000, "not-a-trace"),
        (gzip.compress(b"not json", mtime=0), "not-a-trace"),
        (b"\x1f\x8bnot gzip", "not-a-trace"),
    ],
)
def test_what_is_no_trace_is_declined_by_name(tmp_path: Path, data: bytes, slug: str) -> None:
    path = written(tmp_path, data, "some.json")
    with pytest.raises(UsageError) as refused:
        read(path)
    assert refused.value.slug == slug
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_a_missing_file_and_a_directory_are_declined(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(UsageError, match="cannot be read") as refused:
            read(path)
        assert refused.value.slug == "trace-unreadable"


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    engine = zlib.compressobj(9, wbits=31)
    spaces = b" " * (1 << 20)
    bomb = (
        engine.compress(b'{"traceEvents": [') + b"".join(engine.compress(spaces) for _ in range(256)) + engine.flush()
    )
    with pytest.raises(UsageError) as refused:
        read(written(tmp_path, bomb))
    assert refused.value.slug == "trace-too-large"
    assert "96 MiB" in str(refused.value) or "80 MiB" in str(refused.value)  # stopped long before 256 MiB


def test_more_json_than_allowed_is_declined(tmp_path: Path) -> None:
    for path in (small().write(tmp_path), written(tmp_path, gzip.compress(json.dumps(small().document()).encode()))):
        with pytest.raises(UsageError) as refused:
            read(path, limit=1000)
        assert refused.value.slug == "trace-too-large"


PLAIN = json.dumps(small().document()).encode()
PACKED = gzip.compress(PLAIN)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([PLAIN, PACKED]), st.data())
def test_whatever_was_damaged_the_end_is_a_trace_or_a_clear_error(
    tmp_path: Path, whole: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        trace = read(written(tmp_path, bytes(damaged)))
    except UsageError as refused:
        trace, slug = None, refused.slug
    if trace is None:
        assert slug in {"not-a-trace", "trace-too-large"}
        return
    assert np.isfinite(trace.start).all()
    assert (trace.end >= trace.start).all()
    assert trace.kind.min() >= Kind.OP
    found = device_metrics(trace)
    operators(trace)
    if found is not None:
        assert found.busy + found.idle == pytest.approx(1)
