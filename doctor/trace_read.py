"""Read a Kineto trace file, whole, cut short or damaged, into columns."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fasttrain_doctor.errors import UsageError
from fasttrain_doctor.trace_columns import KINDS, Ints, Kind, Trace

LIMIT = 4 << 30  # bytes of JSON: about 12 GB of memory at the peak
PIECE = 1 << 20
# Real traces shrink 7 to 31 times under gzip, repeated rows made by a program 100 times; 1032 is all that gzip can do.
BOMB_RATIO, BOMB_FROM = 300, 64 << 20
DAMAGED = 1000  # events that may be unreadable before the rest is given up: each may cost a scan of the rest
OPENING = re.compile(r'\{\s*"(?:ph|name|cat|pid|tid|ts|args|id)"\s*:')


class _Args(msgspec.Struct, gc=False):
    correlation: int = -1
    device: int = -1
    bytes: int = -1


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = math.nan
    dur: float = math.nan
    args: _Args | None = None


class _Document(msgspec.Struct):
    events: list[_Event] | None = msgspec.field(name="traceEvents", default=None)
    properties: msgspec.Raw = msgspec.field(name="deviceProperties", default=msgspec.Raw(b"null"))
    properties_2021: msgspec.Raw = msgspec.field(name="computeProperties", default=msgspec.Raw(b"null"))
    base: int | float | str | None = msgspec.field(name="baseTimeNanoseconds", default=None)


def read(path: str | Path, limit: int = LIMIT) -> Trace:
    """Read a trace (``.json`` or gzip, told by content).

    Raises UsageError where there is no file, where it is no trace, or where it holds more than ``limit`` bytes of JSON.
    """
    path = Path(path)
    notes: list[str] = []
    raw = _load(path, limit, notes)
    document = _decode(raw, path, notes)
    del raw
    assert document.events is not None
    trace = _columns(document, notes)
    if not len(trace.kind):
        raise UsageError("not-a-trace", f"{path}: holds no operator, call or kernel, so there is nothing to analyse")
    return trace


def _load(path: Path, limit: int, notes: list[str]) -> bytes:
    """Return the file's bytes, unpacked where they are gzip."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not packed:
                raw = file.read(limit + 1)
            else:
                raw = _unpack(iter(lambda: file.read(PIECE), b""), path, limit, notes)
    except OSError as error:
        raise UsageError("trace-unreadable", f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > limit:
        raise UsageError("trace-too-large", f"{path}: holds more than {limit >> 20} MiB; profile fewer steps")
    return raw


def _unpack(pieces: Iterator[bytes], path: Path, limit: int, notes: list[str]) -> bytes:
    """Unpack gzip members piece by piece, so that a file that unpacks to more than it should never fills the memory."""
    out, taken, engine = bytearray(), 0, zlib.decompressobj(wbits=31)
    for piece in pieces:
        taken += len(piece)
        while piece:
            try:
                out += engine.decompress(piece, 16 * PIECE)
            except zlib.error:
                notes.append("the gzip data are damaged: read up to the damage")
                return bytes(out)
            piece = engine.unconsumed_tail  # noqa: PLW2901  (what is left of it)
            if len(out) > limit or (len(out) > BOMB_FROM and len(out) > BOMB_RATIO * taken):
                size = f"{taken >> 10} KiB unpack to more than {len(out) >> 20} MiB"
                raise UsageError("trace-too-large", f"{path}: {size}: not read")
            if engine.eof and (piece := engine.unused_data):
                if piece[:2] != b"\x1f\x8b":
                    return bytes(out)
                engine = zlib.decompressobj(wbits=31)
    if not engine.eof:
        notes.append("the gzip data end early")
    return bytes(out)


def _decode(raw: bytes, path: Path, notes: list[str]) -> _Document:
    opening = raw[:PIECE].lstrip(b"\xef\xbb\xbf \t\r\n")[:1]  # a byte order mark is allowed
    if opening not in {b"{", b"["}:
        what = "is empty" if not raw.strip() else "is not JSON"
        raise UsageError("not-a-trace", f"{path}: {what}; a Kineto trace is a JSON object with `traceEvents`")
    try:
        if opening == b"[":
            return _Document(events=msgspec.json.decode(raw, type=list[_Event]))
        document = msgspec.json.decode(raw, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        document = _recover(raw.decode("utf-8-sig", errors="replace"), notes)
    if document.events is None:
        raise UsageError("not-a-trace", f"{path}: is JSON without `traceEvents`, so it is no Kineto trace")
    return document


def _recover(text: str, notes: list[str]) -> _Document:
    """Read event by event what a strict reader refuses; what cannot be read is counted and left out."""
    top = re.search(r'"traceEvents"\s*:\s*\[', text)
    at = top.end() if top else (text.find("[") + 1 if text.lstrip().startswith("[") else -1)
    if at <= 0:
        return _Document()
    decoder, events, bad, closed = json.JSONDecoder(strict=False), list[_Event](), 0, False
    skip = re.compile(r"[\s,]*")
    while bad <= DAMAGED:
        blank = skip.match(text, at)
        assert blank is not None  # it matches the empty text
        at = blank.end()
        if at >= len(text) or text[at] == "]":
            closed = at < len(text)
            break
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            following = OPENING.search(text, at + 1)
            bad += 1
            if following is None:
                break
            at = following.start()
            continue
        if (event := _tolerant(found)) is not None:
            events.append(event)
        else:
            bad += 1
    if not closed:
        notes.append(f"the trace ends early: read up to its last whole event, {len(events)} events")
        bad -= 1  # the one it ends in
    if bad > 0:
        notes.append(f"{bad} events could not be read and were left out")
    head = re.search(r'"(?:device|compute)Properties"\s*:\s*', text[:PIECE])
    properties: object = None
    if head:
        try:
            properties = decoder.raw_decode(text, head.end())[0]
        except (ValueError, RecursionError):
            notes.append("the device's properties could not be read")
    return _Document(events=events, properties=msgspec.Raw(msgspec.json.encode(properties)))


def _tolerant(found: object) -> _Event | None:
    """Return the event a JSON value holds, field by field, or None when it is no event."""
    if not isinstance(found, dict):
        return None
    args = found.get("args")
    given: dict[str, Any] = args if isinstance(args, dict) else {}
    return _Event(
        ph=str(found.get("ph", "")),
        cat=str(found.get("cat") or ""),
        name=str(found.get("name", "")),
        pid=str(found.get("pid", -1)),
        tid=str(found.get("tid", -1)),
        ts=_number(found.get("ts")),
        dur=_number(found.get("dur")),
        args=_Args(*(_whole(given.get(key)) for key in ("correlation", "device", "bytes"))),
    )


def _number(value: object) -> float:
    if not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _whole(value: object) -> int:
    number = _number(value)
    return int(number) if math.isfinite(number) else -1


def _columns(document: _Document, notes: list[str]) -> Trace:
    events = [e for e in document.events or () if e.ph == "X" and e.cat.lower() in KINDS]
    span = next((e for e in document.events or () if e.ph == "X" and e.cat == "Trace" and e.dur > 0), None)
    start = np.array([e.ts for e in events], dtype=np.float64)
    length = np.array([e.dur for e in events], dtype=np.float64)
    kind = np.array([KINDS[e.cat.lower()] for e in events], dtype=np.int64)
    good = np.isfinite(start) & np.isfinite(length) & (length >= 0)
    if lost := int((~good).sum()):
        notes.append(f"{lost} rows without a time or with a negative duration were left out")
    good &= _plausible(start, start + length, kind, span, good, notes)
    kept = [e for e, ok in zip(events, good.tolist(), strict=True) if ok]
    start, length, kind = start[good], length[good], kind[good]
    origin = float(start.min()) if len(start) else 0.0
    names: dict[str, int] = {}
    threads: dict[tuple[str, str], int] = {}
    none = _Args()
    base = _number(document.base)
    return Trace(
        kind=kind,
        name=np.array([names.setdefault(e.name, len(names)) for e in kept], dtype=np.int64),
        thread=np.array([threads.setdefault((str(e.pid), str(e.tid)), len(threads)) for e in kept], dtype=np.int64),
        start=start - origin,
        end=start - origin + length,
        correlation=_ints([(e.args or none).correlation for e in kept]),
        device=_ints([_device(e, k) for e, k in zip(kept, kind.tolist(), strict=True)]),
        bytes=_ints([(e.args or none).bytes for e in kept]),
        names=tuple(names),
        threads=tuple(threads),
        origin=origin + (base / 1000 if math.isfinite(base) else 0.0),
        capability=_capability(document),
        notes=tuple(notes),
    )


def _plausible(start: Any, end: Any, kind: Ints, span: _Event | None, good: Any, notes: list[str]) -> Any:
    """Say which rows lie near the recorded span: traces of 2021 hold kernels at time 0 (kineto#109)."""
    if span is not None and math.isfinite(span.ts):
        low, high = span.ts, span.ts + span.dur
    elif (host := good & (kind <= Kind.RUNTIME)).any():
        low, high = float(start[host].min()), float(end[host].max())
    else:
        return good
    margin = max(high - low, 60e6)
    near: Any = (start >= low - margin) & (end <= high + margin)
    if lost := int((good & ~near).sum()):
        notes.append(f"{lost} rows far outside the recorded span were left out")
    return near


def _device(event: _Event, kind: int) -> int:
    """Return the device a row ran on: its argument, else the number that stands where a process does."""
    if kind < Kind.KERNEL:
        return -1
    if event.args is not None and event.args.device >= 0:
        return event.args.device
    return _whole(event.pid)


def _ints(values: list[int]) -> Ints:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([v if -(2**63) <= v < 2**63 else -1 for v in values], dtype=np.int64)


def _capability(document: _Document) -> tuple[int, int] | None:
    for raw, keys in (
        (document.properties, ("computeMajor", "computeMinor")),
        (document.properties_2021, ("major", "minor")),
    ):
        try:
            found = msgspec.json.decode(raw)
            return int(found[0][keys[0]]), int(found[0][keys[1]])
        except (msgspec.MsgspecError, TypeError, KeyError, IndexError, ValueError):
            continue
    return None
