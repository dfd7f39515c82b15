"""DL004: a few samples take much longer than the others, and the step waits for them."""

from __future__ import annotations

from fasttrain_doctor.evidence import TAIL, Evidence
from fasttrain_doctor.rules import Finding, Rule, spared
from fasttrain_doctor.wording import duration, line

LEAST = 0.03  # as for any wait for data
FEW = 0.25  # share of the samples up to which they are a few; with more the data is simply of two kinds
FEWEST = 2  # one slow sample in a window may be a hiccup of the machine


def check(evidence: Evidence) -> Finding | None:
    """Fire where what a few samples take beyond the usual costs a share of the step; name the slowest."""
    fetches = evidence.fetches
    if fetches is None or fetches.tail is None or not fetches.item or fetches.slow_share is None:
        return None
    if fetches.slow_share > FEW or fetches.slow_share * fetches.samples < FEWEST:
        return None
    # A thread that is put off the CPU in the middle of a sample makes it look slow: that is no fault of the sample.
    queue = evidence.breakdown.contention or 0.0
    tail = fetches.tail * fetches.item / (fetches.item + (fetches.collate or 0.0)) - queue
    lost = spared(evidence, max(0.0, tail))
    if lost is None or lost < LEAST:
        return None
    one_in = round(1 / fetches.slow_share)
    slowest = "" if fetches.slowest is None else f"the slowest {duration(fetches.slowest)}"
    if slowest and fetches.slowest_index is not None:
        slowest = f"{slowest}: index {fetches.slowest_index}"
    usual = "" if fetches.median is None else f"median {duration(fetches.median)}"
    message = line(
        f"slow samples, 1 in {one_in} over {TAIL:g}x the median, cost {lost:.0%} of each step",
        slowest,
        usual,
        "shrink or cache them",
    )
    facts: dict[str, object] = {
        "tail": fetches.tail,
        "slow_share": fetches.slow_share,
        "slowest_seconds": fetches.slowest,
        "slowest_index": fetches.slowest_index,
        "median_seconds": fetches.median,
        "samples": fetches.samples,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="DL004", name="straggler-sample", fixes=("dataloader-workers",), check=check)
