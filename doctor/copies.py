"""From COPY records to what copying to the device cost the host. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fasttrain_doctor.evidence import Copies
from fasttrain_doctor.recorded import Process
from fasttrain_doctor.records import Kind
from fasttrain_doctor.steps import Step, Steps

PINNED, NON_BLOCKING = 1, 2  # bits of a COPY record's flag


def copies_of(process: Process, steps: Steps, measured: Sequence[Step]) -> Copies | None:
    """Return the training thread's copies that the host waited for, per step; None where no copy was seen."""
    if not measured:
        return None
    first, last = measured[0].start, measured[-1].end
    seen = [r for r in process.of(Kind.COPY) if r.thread == steps.thread and first <= r.t0 < last]
    if not seen:
        return None
    places = {int(f["id"]): f"{f['file']}:{f['line']}" for f in process.facts_of("place")}
    where: Counter[str] = Counter()
    pageable = blocking = pageable_bytes = blocking_bytes = 0
    for r in seen:
        if not r.flag & PINNED:
            pageable += r.t1 - r.t0
            pageable_bytes += r.a
        elif not r.flag & NON_BLOCKING:
            blocking += r.t1 - r.t0
            blocking_bytes += r.a
        else:
            continue
        if r.b in places:
            where[places[r.b]] += r.t1 - r.t0
    count = len(measured)
    return Copies(
        pageable=pageable / 1e9 / count,
        blocking=blocking / 1e9 / count,
        pageable_bytes=pageable_bytes / count,
        blocking_bytes=blocking_bytes / count,
        place=where.most_common(1)[0][0] if where else None,
    )
