"""The cheapest plan within noise of the best: fewer workers, shorter queues, less memory for the same speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fasttrain_doctor.tuners.fixes import Plan
from fasttrain_doctor.tuners.ladder import CHEAP
from fasttrain_doctor.tuners.ledger import Ledger
from fasttrain_doctor.tuners.space import Candidate

FEWER = 0.8  # a plan is cheaper where it takes this share of the workers, or of the batches held
ALIKE, LEAST = 0.985, 0.95  # mid and low end of the speedup at which a cheaper plan counts as equally fast


def price(plan: Plan) -> tuple[int, int]:
    """Return what a plan costs beside time: worker processes, then batches held in memory.

    Fewer than two batches a worker are not counted as cheaper: that saves little and leaves nothing for a slow one.
    """
    value = plan.get("dataloader-workers")
    if not isinstance(value, Mapping):
        return 0, 0
    workers = int(value.get("num_workers", 0))
    return workers, workers * max(2, int(value.get("prefetch_factor", 2)))


def _cheaper(plan: Plan, best: Plan) -> bool:
    (workers, held), (most, held_most) = price(plan), price(best)
    return workers <= FEWER * most or (workers == most and held <= FEWER * held_most)


def economise(ledger: Ledger, kept: Sequence[Candidate]) -> None:
    """Make the cheapest plan that is as fast as the best one the best one, after comparing the two in pairs."""
    if ledger.arms.over() or not kept:
        return
    top = ledger.gain(ledger.best) or 0.0
    enough = top - CHEAP - ledger.arms.noise.sd / 2.0
    alike = [
        plan
        for plan, gain in ledger.gains.values()
        if gain >= enough and plan.keys() == ledger.best.keys() and _cheaper(plan, ledger.best)
    ]
    if not alike:
        return
    cheaper = min(alike, key=price)
    fix = next((c.fix for c in kept if cheaper[c.fix.name] != ledger.best[c.fix.name]), None)
    if fix is None:
        return
    contest = ledger.compare(cheaper, ledger.best, fix, "search")
    speedup = contest.verdict.speedup
    if speedup is not None and speedup.mid >= ALIKE and speedup.low >= LEAST:
        ledger.take(contest, "as fast within noise, and cheaper: taken")
