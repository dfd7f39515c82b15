"""From the samples of the machine to what pressed on the training during its window. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

from fasttrain_doctor.evidence import Pressure
from fasttrain_doctor.sampling import Sample
from fasttrain_doctor.trend import steady_slope

# Reasons of NVML for a lower clock that slow nothing down, or that somebody has asked for.
_NOT_SLOWED = frozenset({"idle", "application-clocks", "display-clocks"})
_IN_USE = 0.5  # of the busiest GPU's use: one used less is not what the training runs on
_GREW = 0.05  # of the resident memory, over the window: below that it is the allocator's breathing
_GREW_BYTES = 16 << 20


def pressure_of(samples: Sequence[Sample], first: int, last: int) -> Pressure | None:
    """Return the means over a window; None where no sample tells of it.

    Args:
        samples: in order of time.
        first: begin of the window, in ns of the records' clock.
        last: its end.
    """
    inside = [b for a, b in pairwise(samples) if _within(a.t, b.t, first, last)]
    if not inside:
        return None
    return Pressure(
        cpu=_share(s.waiting_cpu if s.group_waiting_cpu is None else s.group_waiting_cpu for s in inside),
        io=_share(s.waiting_io for s in inside),
        memory=_share(s.waiting_memory for s in inside),
        throttled=_mean(s.throttled for s in inside),
        disk_read=_mean(s.disk_read for s in inside),
        tree_cpu=_mean(s.tree_cpu for s in inside),
        growth=_growth(inside),
        gpu_slowed_by=_slowed(inside),
        gpu_busy=max(_busy(inside).values(), default=None),
    )


def _within(before: int, t: int, first: int, last: int) -> bool:
    """Whether a sample tells of the window: its rates are over the time since the one before.

    Half of that time must lie in the window, or half of a window that is shorter than it.
    """
    common = min(t, last) - max(before, first)
    return common > 0 and 2 * common >= min(t - before, last - first)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def _share(values: Iterable[float | None]) -> float | None:
    mean = _mean(values)
    return None if mean is None else min(1.0, mean)  # the kernel and we read our clocks at other moments


def _growth(samples: Sequence[Sample]) -> float | None:
    known = [(s.t / 1e9, float(s.tree_memory)) for s in samples if s.tree_memory is not None]
    if not known:
        return None
    times, sizes = zip(*known, strict=True)
    slope = steady_slope(times, sizes)
    if slope is None:
        return None
    grew = abs(slope) * (times[-1] - times[0])
    return slope if grew >= max(_GREW_BYTES, _GREW * statistics.median(sizes)) else None


def _busy(samples: Sequence[Sample]) -> dict[int, float]:
    """Return each GPU's mean use."""
    count = max((len(s.gpus) for s in samples), default=0)
    means = {i: _mean(s.gpus[i].busy for s in samples if i < len(s.gpus)) for i in range(count)}
    return {i: mean for i, mean in means.items() if mean is not None}


def _slowed(samples: Sequence[Sample]) -> tuple[tuple[str, float], ...]:
    """Return for each reason the share of samples in which it slowed a GPU in use, the most frequent first.

    Of several GPUs the one that was slowed longest: the others wait for it.
    """
    busy = _busy(samples)
    limit = _IN_USE * max(busy.values(), default=0.0)
    worst: dict[str, float] = {}
    for i in (i for i, mean in busy.items() if mean >= limit):
        told = [reasons for s in samples if i < len(s.gpus) and (reasons := s.gpus[i].slowed_by) is not None]
        for reason in {reason for reasons in told for reason in reasons} - _NOT_SLOWED:
            share = sum(reason in reasons for reasons in told) / len(told)
            worst[reason] = max(worst.get(reason, 0.0), share)
    return tuple(sorted(worst.items(), key=lambda entry: (-entry[1], entry[0])))
