"""From the facts that a window's processes wrote at its ends to evidence: modes, threads, waiting for a CPU, a batch. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from fasttrain_doctor.evidence import Debug
from fasttrain_doctor.recorded import Fact, Process


def debug_of(process: Process) -> tuple[Debug, ...] | None:
    """Return the modes for debugging that were on at either end of the window; None where nobody looked."""
    ends = process.facts_of("window")
    if not ends:
        return None
    found = {str(name): Debug(str(name), str(how)) for f in ends for name, how in f["debug"]}
    if any(f.get("anomaly") for f in process.facts_of("model")):
        found.setdefault("anomaly detection", Debug("anomaly detection", "torch.is_anomaly_enabled() in the forward"))
    return tuple(found.values())


def threads_of(process: Process) -> int | None:
    """Return the threads that torch computes one call with in the training process, as of the end of the window."""
    told = [*process.facts_of("process"), *process.facts_of("window")]
    return next((int(f["threads"]) for f in reversed(told) if f.get("threads")), None)


def worker_threads_of(workers: Iterable[Process]) -> int | None:
    """Return the most threads that torch, or OpenCV where it is used, computes one call with in a loader worker."""
    told = [f for p in workers for f in p.facts_of("rng") if f.get("worker")]
    return max((int(n) for f in told for n in (f.get("threads"), f.get("cv2_threads")) if n), default=None)


def queued_of(process: Process) -> float | None:
    """Return the share of the window in which the training thread could have run but waited for a CPU."""
    waited = wall = 0
    for a, b in pairwise(process.facts_of("window")):
        if (a["end"], b["end"]) == ("begin", "end") and a["waited"] >= 0 and b["waited"] >= 0:
            waited += b["waited"] - a["waited"]
            wall += b["clock"] - a["clock"]
    return max(0.0, min(1.0, waited / wall)) if wall > 0 else None


def batch_of(process: Process, loader: Fact | None) -> tuple[int | None, int | None]:
    """Return the tensors and the other objects in one batch of the training loader."""
    told = [f for f in process.facts_of("batch") if loader is not None and f.get("loader") == loader["id"]]
    return next(((f.get("batch_tensors"), f.get("batch_objects")) for f in told), (None, None))
