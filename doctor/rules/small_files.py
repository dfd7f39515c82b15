"""IO002: the wait for reads is one for many small ones."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Look, Phase
from fasttrain_doctor.rules import Finding, Rule, waiting
from fasttrain_doctor.wording import count, duration, line, size

LEAST = 0.03  # as for any wait for reads
# Bytes up to which a file is small: a disk moves as many in the 2 ms, a network store in the 1 ms and a flash drive in
# the 0.1 ms that it takes to get to them. Above, the bytes count and not their number.
SMALL_FILE = 256 << 10
SMALL_READ = 16 << 10  # bytes a call; read-ahead and the C library's buffers hide less than that only in sequence
# Of the bytes read the part that must have come from a device: what the page cache serves is not what a fetch waits for,
# and then it is blocked in a sleep or a request.
FROM_DEVICE = 0.5
OPENED = 0.5  # files per sample from which each sample opens its own
CALLS = 8.0  # read calls per sample from which they are many


def _shape(look: Look) -> str | None:
    """Say in which way the reads are small; None where they are not, or that was not seen."""
    if look.read_bytes is None or look.storage_bytes is None or look.storage_bytes < FROM_DEVICE * look.read_bytes:
        return None
    if look.opens is not None and look.opens >= OPENED and look.read_bytes / look.opens <= SMALL_FILE:
        return f"{_number(look.opens)} files a sample, {size(look.read_bytes / look.opens)} each"
    if look.read_calls is not None and look.read_calls >= CALLS and look.read_bytes / look.read_calls <= SMALL_READ:
        return f"{_number(look.read_calls)} reads a sample, {size(look.read_bytes / look.read_calls)} each"
    return None


def _number(value: float) -> str:
    return count(float(f"{value:.2g}"))


def check(evidence: Evidence) -> Finding | None:
    """Fire where the step waits for reads, fetches were seen blocked meanwhile, and the reads are small and of a device."""
    look, breakdown = evidence.look, evidence.breakdown
    io, waits, samples = breakdown.share(Phase.IO), waiting(evidence), breakdown.samples_per_step
    read = None if look is None else look.stages.get("read")
    if look is None or io is None or waits is None or read is None or not samples:
        return None
    # Of the wait counts only what was seen to be blocked inside the samples: not a sampler's or a collation's.
    blocked = (breakdown.phases[Phase.IO] or 0.0) + (breakdown.hidden.get("io") or 0.0)
    of_it = min(1.0, read * samples / blocked) if blocked > 0 else 0.0
    lost = min(io, waits) * of_it
    shape = _shape(look)
    if shape is None or lost < LEAST:
        return None
    workers = 0 if evidence.loader is None else evidence.loader.num_workers
    message = line(
        f"small reads take {lost:.0%} of each step",
        shape,
        f"{duration(read)} of waiting a sample",
        "pack samples into larger files" if look.opens is not None and look.opens >= OPENED else "read more at once",
    )
    facts: dict[str, object] = {
        "share": lost,
        "opens": look.opens,
        "read_calls": look.read_calls,
        "read_bytes": look.read_bytes,
        "read_seconds": read,
        "num_workers": workers,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="IO002", name="small-files", fixes=("dataloader-workers",), check=check)
