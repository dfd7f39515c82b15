"""What is planted, where it must be found, and which rules may name it; and the schedules of doses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.truth.running import Doses

SHARES = (0.05, 0.1, 0.2, 0.4, 0.6)  # of the step
LOUD = 0.2  # from this share of the step on a rule must speak
PAIR = (0.3, 0.2)  # shares of two causes at once


@dataclass(frozen=True)
class Cause:
    """``answer`` is the name that it must be given, ``part`` the phase or the part of ``other`` that it lies in.

    ``rules`` may name it as well; none: no rule can know that a model should be faster than it is. That workers which
    compute wait for a CPU is as true as that they compute, on two cores, and so is that a loop without a loader has none.
    """

    name: str
    place: str
    part: str
    answer: str
    rules: tuple[str, ...]
    in_data: bool = False
    with_workers: bool = False  # planted only where workers prepare the batches


BARE = "data-outside-loader"
CPU = ("input-wait-cpu", "worker-contention", BARE)
CAUSES = (
    Cause("slow read", "read", "io", "read", ("input-wait-io", "small-files", "storage-bound", BARE), in_data=True),
    Cause("slow decode", "decode", "prepare", "decode", CPU, in_data=True),
    Cause("decode in a pool", "pool", "prepare", "decode", CPU, in_data=True),
    Cause("slow transform", "transform", "prepare", "transform", CPU, in_data=True),
    Cause("slow collate", "collate", "prepare", "collate", ("slow-collate", *CPU), in_data=True),
    Cause("lock held elsewhere", "lock", "lock", "lock", ("lock-wait", BARE), in_data=True),
    Cause("one slow sample in 16", "sample", "io", "sample", ("straggler-sample", "input-wait-io"), in_data=True),
    Cause(
        "too few workers",
        "spread",
        "data",
        "workers",
        ("input-wait-io", *CPU),
        in_data=True,
        with_workers=True,
    ),
    Cause("slow forward", "forward", "forward", "forward", ()),
    Cause("slow backward", "backward", "backward", "backward", ()),
    Cause("per-parameter optimizer", "optimizer", "optimizer", "optimizer", ("slow-optimizer",)),
    Cause("blocking read", "sync", "sync", "sync", ("host-sync-in-loop",)),
    Cause("checkpoint", "checkpoint", "checkpoint", "checkpoint", ("checkpoint-stall",)),
    Cause("logging pause", "logging", "logging", "logging", ("logging-in-loop",)),
    Cause("evaluation in the loop", "eval", "eval", "eval", ("eval-dominates",)),
    Cause("garbage collection", "gc", "gc", "gc", ("gc-pauses",)),
    Cause("host work in the loop", "python", "python", "python", ("host-work-in-loop",)),
)
BY_PLACE = {cause.place: cause for cause in CAUSES}

# What each script can have planted: Lightning and Trainer bring their own evaluation, which is no part of a step; what a
# loop without a loader does between its update and its next forward is the making of a batch, whatever it is.
MISSING = {
    "lightning": ("evaluation in the loop",),
    "transformers": ("evaluation in the loop",),
    "tabular": ("slow collate", "one slow sample in 16", "host work in the loop"),
}

# Two at once: one where the data is made and one where it is used, or both on one side.
PAIRS = (
    ("read", "forward"), ("decode", "optimizer"), ("transform", "logging"), ("collate", "backward"),
    ("read", "checkpoint"), ("decode", "eval"), ("lock", "forward"), ("forward", "logging"),
    ("backward", "gc"), ("optimizer", "sync"), ("read", "decode"), ("checkpoint", "logging"),
    ("sample", "backward"), ("pool", "logging"), ("transform", "gc"), ("read", "collate"),
    ("python", "forward"), ("sync", "read"), ("eval", "backward"), ("gc", "decode"),
    ("logging", "read"), ("forward", "transform"), ("optimizer", "read"), ("sync", "collate"),
    ("checkpoint", "decode"), ("backward", "read"), ("python", "read"), ("forward", "optimizer"),
    ("logging", "sync"), ("eval", "read"),
)  # fmt: skip


def causes_of(family: str, workers: int) -> list[Cause]:
    """Return what is planted in a script: with workers only what they do."""
    missing = MISSING.get(family, ())
    return [c for c in CAUSES if c.name not in missing and (c.in_data if workers else not c.with_workers)]


def pairs_of(family: str, families: Sequence[str]) -> list[tuple[str, str]]:
    """Return a script's share of the two-cause cases: each goes to one of the families that can have both planted."""
    out = []
    for i, pair in enumerate(PAIRS):
        able = [f for f in families if {*pair} <= {cause.place for cause in causes_of(f, 0)}]
        if able and able[i % len(able)] == family:
            out.append(pair)
    return out


def schedule(causes: Iterable[Cause], shares: Sequence[float], pairs: Iterable[tuple[str, str]] = ()) -> list[Doses]:
    """Return blocks of doses with a block of none before and after every three."""
    wanted = [*_single(causes, shares), *(dict(zip(pair, PAIR, strict=True)) for pair in pairs)]
    out: list[Doses] = [{}]
    for i, doses in enumerate(wanted):
        out.append(doses)
        if i % 3 == 2:
            out.append({})
    return out if not out[-1] else [*out, {}]


def _single(causes: Iterable[Cause], shares: Sequence[float]) -> Iterator[Doses]:
    for cause in causes:
        for share in shares:
            yield {cause.place: share}
