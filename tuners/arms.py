"""Runs arms on a bench: blocks of the right length, pairs in the right order, single looks that share a reference.

The only state of the search that touches the bench: what each arm's step took when last seen, which reference block
is still fresh, how many seconds of blocks have run, and whether the session has ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fasttrain_doctor import stats
from fasttrain_doctor.tuners.bench import ArmFailed, Bench, Block, Deadline, SessionEnded
from fasttrain_doctor.tuners.fixes import Plan
from fasttrain_doctor.tuners.verdict import Verdict, failed, hopeless, judge

USED_UP = "the budget was used up"
BLOCK_SECONDS = 0.3  # what a block should last: 1 % of it is well above the clock and the scheduler's wake-ups
LONGEST_BLOCK = 3.0  # seconds; a block of slow steps is cut there
LEAST_STEPS = 8  # below, the place of a block in the loader's rhythm shows
FEWEST_STEPS = 4  # for steps so slow that eight would take too long
# pairs up to which an arm is given up that cannot gain this much: the longer it takes, the less a small gain is worth
GIVE_UP = ((3, stats.MARGIN), (5, 0.02), (10_000, 0.03))
SHARE = 0.12  # of the time left: more than that no single comparison gets, once it has had its fair number of pairs
AA_SHARE, AA_LEAST = 0.25, 3  # of the time left goes to the noise, which must leave some for trials; blocks at least
FAIR = 8  # pairs; from here on one may be trimmed
FRESH = 2  # candidate blocks that may share one reference block


def key(plan: Plan) -> str:
    """Return a plan's identity."""
    return json.dumps(plan, sort_keys=True, default=dict)


def queue(plan: Plan, workers: int, prefetch: int) -> int:
    """Return how many batches lie ready at most under a plan; ``workers`` and ``prefetch`` are the script's own."""
    value = plan.get("dataloader-workers")
    if isinstance(value, Mapping):
        workers = int(value.get("num_workers", workers))
        prefetch = int(value.get("prefetch_factor", prefetch or 2))
    return workers * prefetch


def _vague(comparison: stats.Comparison) -> bool:
    """Return whether a faster plan's interval is too wide to plan with: a stall in the first pairs does that."""
    return comparison.pairs < FAIR and 1.0 < comparison.low < 1.0 + 0.5 * (comparison.mid - 1.0)


@dataclass(frozen=True, slots=True)
class Contest:
    """A plan against another, decided or not. ``plan`` against ``over``; ``p`` is that of "gains at most 1 %"."""

    plan: Plan
    over: Plan
    verdict: Verdict
    ratios: tuple[float, ...] = ()
    steps: int = 0
    seconds: float = 0.0
    p: float = 1.0


@dataclass(slots=True)
class Arms:
    """Runs blocks until the deadline or the end of the session; ``ended`` then says which."""

    bench: Bench
    deadline: Deadline
    workers: int = 0
    prefetch: int = 0
    noise: stats.Noise = field(default_factory=lambda: stats.Noise(0.02, 2))
    seconds: float = 0.0
    ended: str = ""
    _step: dict[str, float] = field(default_factory=dict)
    _reference: tuple[str, Block, int] | None = None  # plan, block, candidate blocks since

    def over(self) -> bool:
        """Return whether no more blocks can be run."""
        if not self.ended and self.deadline.left() <= 0:
            self.ended = USED_UP
        return bool(self.ended)

    def step(self, plan: Plan) -> float | None:
        """Return the seconds a step of ``plan`` took when it was last run, None if it never was."""
        return self._step.get(key(plan))

    def block(self, plan: Plan, guess: float | None = None) -> Block | None:
        """Run a block, None when no more can be run; ``guess`` is a step's seconds for a plan not seen before.

        A new arm whose block turns out too short to speak for it (shorter than its queue, which would flatter it) is
        run again at the right length.

        Raises:
            ArmFailed: see `Bench.block`.
        """
        for attempt in range(2):
            if self.over():
                return None
            step = self._step.get(key(plan), guess)
            steps = self._length(plan, step)
            try:
                block = self.bench.block(plan, steps)
            except SessionEnded as ending:
                self.ended = ending.reason
                return None
            self.seconds += block.seconds
            if block.steps <= 0 or block.seconds <= 0:
                raise ArmFailed("the block held no step")
            self._step[key(plan)] = block.seconds / block.steps
            if attempt or block.steps * 2 > self._length(plan, self._step[key(plan)]):
                return block
        return None

    def _length(self, plan: Plan, step: float | None) -> int:
        """Return how many steps a block of ``plan`` should hold: time enough, and twice what lies in its queue."""
        if step is None:
            return LEAST_STEPS
        wanted = max(LEAST_STEPS, math.ceil(BLOCK_SECONDS / step), 2 * queue(plan, self.workers, self.prefetch))
        affordable = int(LONGEST_BLOCK / step)
        least = LEAST_STEPS if LEAST_STEPS * step <= LONGEST_BLOCK else FEWEST_STEPS
        return max(least, min(wanted, affordable))

    def aa(self, blocks: int = 5, most: int = 9, loud: float = 0.015) -> stats.Noise | None:
        """Measure the noise by equal blocks of the script as it is; more where it is loud, fewer where steps are slow."""
        seen: list[Block] = []
        before, affordable = self.seconds, AA_SHARE * self.deadline.left()
        while len(seen) < most:
            affords = self.seconds - before < affordable
            wanted = len(seen) < blocks or stats.noise(seen).sd > loud
            if len(seen) >= AA_LEAST and not (affords and wanted):
                break
            block = self.block({})
            if block is None:
                return None
            seen.append(block)
        self.noise = stats.noise(seen)
        self._reference = (key({}), seen[-1], 0)
        return self.noise

    def look(self, plan: Plan, over: Plan, guess: float | None = None) -> float | None:
        """Return the log speedup of one block of ``plan`` over a fresh one of ``over``; None: no more blocks.

        A block of ``over`` serves two candidates, the one after it and the one after that. Good enough to choose what
        to compare in earnest, never a verdict.

        Raises:
            ArmFailed: see `Bench.block`.
        """
        if self._reference is None or self._reference[0] != key(over) or self._reference[2] >= FRESH:
            reference = self.block(over)
            if reference is None:
                return None
            self._reference = (key(over), reference, 0)
        name, reference, used = self._reference
        candidate = self.block(plan, guess)
        self._reference = (name, reference, used + 1)
        return None if candidate is None else float(stats.log_ratios([reference], [candidate])[0])

    def contest(
        self,
        plan: Plan,
        over: Plan,
        guess: float | None = None,
        most: int = stats.LOOKS[-1],
        share: float = SHARE,
    ) -> Contest:
        """Compare ``plan`` with ``over`` pair by pair, until it is decided, hopeless, or all declared pairs ran.

        ``most`` limits the pairs; once there are `FAIR`, they may take no more than ``share`` of the time left. The end
        of the budget or of the session leaves it inconclusive.
        """
        sides: dict[bool, list[Block]] = {False: [], True: []}
        before, steps = self.seconds, 0
        most, affordable = min(most, self._pairs_at_most()), share * self.deadline.left()
        self._reference = None
        verdict: Verdict | None = None
        comparison: stats.Comparison | None = None
        for pair, is_candidate in stats.block_order(most):
            try:
                block = self.block(plan if is_candidate else over, guess if is_candidate else None)
            except ArmFailed as failure:
                side = "" if is_candidate else "the plan it is compared with failed: "
                verdict, comparison = failed(side + failure.reason), None
                break
            if block is None:
                break
            sides[is_candidate].append(block)
            steps += block.steps
            if len(sides[True]) != len(sides[False]) or pair == 0:
                continue
            comparison = self._compare(sides)
            spent = comparison.pairs >= FAIR and self.seconds - before > affordable
            if comparison.pairs in stats.LOOKS or spent:
                verdict = judge(comparison, self.noise, complete=spent or comparison.pairs >= most)
                if spent or (verdict.kind != "inconclusive" and not _vague(comparison)):
                    break
            worth = next(worth for pairs, worth in GIVE_UP if comparison.pairs <= pairs)
            if (dropped := hopeless(comparison, self.noise, worth)) is not None:
                comparison = dropped
                verdict = judge(dropped, self.noise)
                if verdict.kind == "inconclusive":
                    reason = f"{dropped.pairs} pairs: given up, at most {dropped.high - 1:.1%} to gain"
                    verdict = Verdict("no-difference", verdict.speedup, reason)
                break
        if verdict is None or (verdict.kind == "inconclusive" and self.ended):
            verdict = self._unfinished(comparison)
        p = comparison.p_above(1.0 + stats.MARGIN, len(stats.LOOKS)) if comparison is not None else 1.0
        ratios = comparison.ratios if comparison is not None else ()
        return Contest(plan, over, verdict, ratios, steps, self.seconds - before, p)

    def _pairs_at_most(self) -> int:
        """Return the last declared look that this machine's noise makes necessary, for an effect of 4 %."""
        needed = stats.pairs_needed(self.noise.sd, 0.04, len(stats.LOOKS))
        return next((look for look in stats.LOOKS if look >= max(FAIR, needed)), stats.LOOKS[-1])

    def _compare(self, sides: dict[bool, list[Block]]) -> stats.Comparison:
        return stats.compare(sides[False], sides[True], looks=len(stats.LOOKS), floor=self.noise.sd)

    def _unfinished(self, comparison: stats.Comparison | None) -> Verdict:
        if comparison is None:
            return Verdict("inconclusive", None, f"{self.ended} before two pairs had run")
        if comparison.pairs < stats.LOOKS[0]:  # its interval would reach from nothing to billions
            return Verdict("inconclusive", None, f"{self.ended} before {stats.LOOKS[0]} pairs had run")
        return judge(comparison, self.noise, cut=self.ended)
