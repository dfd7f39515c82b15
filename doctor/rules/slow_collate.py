"""DL005: putting samples together into a batch takes a large part of fetching it."""

from __future__ import annotations

from fasttrain_doctor.evidence import Evidence
from fasttrain_doctor.rules import Finding, Rule, spared
from fasttrain_doctor.wording import duration, line, name

LEAST = 0.03  # as for any wait for data
LARGE = 0.25  # share of a fetch; stacking tensors is part of any fetch, and is not what to look at below that


def check(evidence: Evidence) -> Finding | None:
    """Fire where collation is a large share of fetches that the step waits for."""
    fetches, breakdown = evidence.fetches, evidence.breakdown
    if fetches is None or fetches.item is None or not fetches.collate:
        return None
    part = fetches.collate / (fetches.item + fetches.collate)
    lost = spared(evidence, part)
    if part < LARGE or lost is None or lost < LEAST:
        return None
    function = None if evidence.loader is None else evidence.loader.collate
    took = ""
    if breakdown.samples_per_step is not None and breakdown.batches_per_step > 0:
        took = f"{duration(fetches.collate * breakdown.samples_per_step / breakdown.batches_per_step)} a batch"
    usual = function is None or function.rpartition(".")[2] == "default_collate"
    hint = "index whole batches, batch_size=None" if usual else "stack once, in tensors"
    message = line(
        f"collation is {part:.0%} of making a batch and costs {lost:.0%} of each step",
        took,
        "" if function is None else f"`{name(function.rpartition('.')[2])}`",
        hint,
    )
    facts: dict[str, object] = {
        "share_of_fetch": part,
        "collate_seconds": fetches.collate,
        "item_seconds": fetches.item,
        "collate": function,
    }
    return Finding(message, lost, facts)


RULE = Rule(code="DL005", name="slow-collate", fixes=("dataloader-workers",), check=check)
