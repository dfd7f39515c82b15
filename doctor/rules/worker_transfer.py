"""DL006: passing batches from workers to the training process costs more than it should."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule, pressed_by_others, waiting, work
from fasttrain_doctor.wording import duration, line, size

LEAST = 0.03  # another number of workers changes nothing about the training, so it is named once larger than noise
# Each tensor is a piece of shared memory of its own: made, sent as a descriptor, opened and mapped. A sample of an image
# and its label needs two, one of a detector about ten.
MANY_TENSORS = 16
MANY_OBJECTS = 1000  # pickled one by one; a batch of 256 with an id and a name each has half of it
BIG_LIST = 100_000  # samples from which a Python list of them is large: 10 MB of objects and more


def _contents(evidence: Evidence) -> str:
    tensors, objects = evidence.batch_tensors or 0, evidence.batch_objects or 0
    parts = [f"{tensors} tensors"] if tensors >= MANY_TENSORS else []
    if objects >= MANY_OBJECTS:
        parts.append(f"{objects} Python objects")
    return f"{', '.join(parts)} a batch" if parts else ""


def _copied(evidence: Evidence) -> str:
    """Say that memory grows by copies of what forked workers share: they count references in it, and so write to it."""
    growth = None if evidence.pressure is None else evidence.pressure.growth
    loader = evidence.loader
    if growth is None or growth <= 0 or loader is None or loader.start_method not in (None, "fork"):
        return ""
    large = (loader.dataset_length or 0) >= BIG_LIST
    return f"memory grows {size(growth)}/s: big lists to arrays" if large else ""


def check(evidence: Evidence) -> Finding | None:
    """Fire where packing and unpacking take a share of the step, or waiting for a batch longer than making it."""
    loader, breakdown, fetches, waits = evidence.loader, evidence.breakdown, evidence.fetches, waiting(evidence)
    if loader is None or loader.num_workers == 0 or fetches is None or waits is None:
        return None
    workers, mean, inline = loader.num_workers, breakdown.mean, work(evidence)
    # Workers that are given less work per step than the step waits are not what it waits for: the hand-off is.
    passes = inline is not None and not pressed_by_others(evidence)  # else each hand-off takes two turns of theirs
    trivial = max(0.0, waits - (inline or 0.0) / mean) if passes else 0.0
    # The training thread unpacks between two steps; packing keeps each worker from its next batch.
    spent = (fetches.unpack or 0.0) + (fetches.pack or 0.0) / workers
    handled = min(waits, spent / mean)
    lost = max(trivial, handled)
    if lost < LEAST:
        return None
    contents, copied = _contents(evidence), _copied(evidence)
    if trivial >= handled:
        said = f"workers take longer to pass batches on than to make them, {lost:.0%} of each step"
        made = f"{duration(inline or 0.0)} of work, {duration(waits * mean)} of waiting"
        usual = [f"num_workers={workers}", made, "try 0", copied]
        details = [contents, "merge them", *usual] if contents else usual
    else:
        said = f"passing batches between processes takes {lost:.0%} of each step"
        unpacked = f"{duration(fetches.unpack)} to unpack" if fetches.unpack else ""
        details = [contents or unpacked, copied, "return fewer, larger tensors" if contents else "try fewer workers"]
    facts: dict[str, object] = {
        "share": lost,
        "unpack_seconds": fetches.unpack,
        "pack_seconds": fetches.pack,
        "inline_seconds": inline,
        "batch_tensors": evidence.batch_tensors,
        "batch_objects": evidence.batch_objects,
        "num_workers": workers,
        "growth_bytes": None if evidence.pressure is None else evidence.pressure.growth,
    }
    return Finding(line(said, *details), lost, facts)


RULE = Rule(code="DL006", name="worker-transfer", fixes=("dataloader-workers",), check=check)
