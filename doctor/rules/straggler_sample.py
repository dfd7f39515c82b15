"""DL004: a few samples take much longer than the others, and the step waits for them."""

from __future__ import annotations

from fasttrain_doctor.evidence import TAIL, Evidence, Fetches
from fasttrain_doctor.rules import Finding, Rule, spared
from fasttrain_doctor.wording import duration, line

LEAST = 0.03  # as for any wait for data
FEW = 0.25  # share of the samples up to which they are a few; with more the data is simply of two kinds
QUIET = 0.05  # share of the fetching threads' time spent waiting for a core, up to which counting slow samples is right
FEWEST = 2  # one slow sample in a window may be a hiccup of the machine


def _slow_share(fetches: Fetches, queue: float) -> float | None:
    """Return which share of the samples is slow; None: not known.

    Where threads queue for cores many samples are made a little slow. Then as many as would make the tail if each were
    as slow as the slowest: those it hardly counts.
    """
    if queue <= QUIET or fetches.slow_share is None:
        return fetches.slow_share
    if fetches.slowest is None or fetches.median is None or fetches.tail is None or fetches.item is None:
        return fetches.slow_share
    beyond = fetches.slowest - TAIL * fetches.median
    return min(fetches.slow_share, fetches.tail * fetches.item / beyond) if beyond > 0 else fetches.slow_share


def check(evidence: Evidence) -> Finding | None:
    """Fire where what a few samples take beyond the usual costs a share of the step; name the slowest."""
    fetches = evidence.fetches
    if fetches is None or fetches.tail is None or not fetches.item:
        return None
    queue = evidence.breakdown.contention or 0.0
    slow = _slow_share(fetches, queue)
    if slow is None or slow > FEW or slow * fetches.samples < FEWEST:
        return None
    # A thread that is put off the CPU in the middle of a sample makes it look slow: that is no fault of the sample.
    tail = fetches.tail * fetches.item / (fetches.item + (fetches.collate or 0.0)) - queue
    lost = spared(evidence, max(0.0, tail))
    if lost is None or lost < LEAST:
        return None
    slowest = "" if fetches.slowest is None else f"the slowest {duration(fetches.slowest)}"
    if slowest and fetches.slowest_index is not None:
        slowest = f"{slowest}: index {fetches.slowest_index}"
    usual = "" if fetches.median is None else f"median {duration(fetches.median)}"
    message = line(
        f"slow samples, 1 in {1 / slow:.0f} over {TAIL:g}x the median, cost {lost:.0%} of each step",
        slowest,
        usual,
        "shrink or cache them",
    )
    facts: dict[str, object] = {
        "tail": fetches.tail,
        "slow_share": slow,
        "slowest_seconds": fetches.slowest,
        "slowest_index": fetches.slowest_index,
        "median_seconds": fetches.median,
        "samples": fetches.samples,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="DL004", name="straggler-sample", fixes=("dataloader-workers",), check=check)
