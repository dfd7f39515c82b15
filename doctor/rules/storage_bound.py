"""IO003: the reads that the step waits for come from a disk that cannot deliver them sooner."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence, Phase
from fasttrain_doctor.rules import Finding, Rule, waiting
from fasttrain_doctor.wording import line, size

LEAST = 0.03  # as for any wait for reads
AGREES = 0.5  # of the wait for reads that the kernel must have seen some task stalled on storage
# Of the bytes that samples read, the part that devices must have delivered: with less the page cache serves them.
FROM_DEVICE = 0.5
LEAST_READ = 1e6  # bytes per second, where it is not known what samples read: about a hundred seeks of a disk


def _from_device(evidence: Evidence, read: float) -> bool:
    """Whether devices delivered what the samples read, at ``read`` bytes per second."""
    look, breakdown = evidence.look, evidence.breakdown
    if look is not None and look.storage_bytes is not None and look.read_bytes:
        return look.storage_bytes >= FROM_DEVICE * look.read_bytes and read > 0
    if look is not None and look.read_bytes is not None and breakdown.samples_per_step:
        wanted = look.read_bytes * breakdown.samples_per_step / breakdown.mean
        return read >= FROM_DEVICE * wanted and read >= LEAST_READ
    return read >= LEAST_READ


def check(evidence: Evidence) -> Finding | None:
    """Fire where the wait for reads, the kernel's stall figures and the devices' own all say that it is the storage."""
    pressure, io, waits = evidence.pressure, evidence.breakdown.share(Phase.IO), waiting(evidence)
    if pressure is None or pressure.io is None or pressure.disk_read is None or io is None or waits is None:
        return None
    lost = min(io, waits, pressure.io)
    if lost < LEAST or pressure.io < AGREES * io or not _from_device(evidence, pressure.disk_read):
        return None
    workers = 0 if evidence.loader is None else evidence.loader.num_workers
    message = line(
        f"the storage keeps each step waiting {lost:.0%} of its time",
        f"{size(pressure.disk_read)}/s from disk",
        f"stalled {pressure.io:.0%} of the time",
        "read less, or from a faster disk",
    )
    facts: dict[str, object] = {
        "share": lost,
        "io_share": io,
        "stalled": pressure.io,
        "disk_read": pressure.disk_read,
        "num_workers": workers,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="IO003", name="storage-bound", fixes=("dataloader-workers",), check=check)
