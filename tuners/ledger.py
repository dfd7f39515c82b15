"""What the search knows so far: the best plan, what each plan gained over the script as it is, and every trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from fasttrain_doctor import stats
from fasttrain_doctor.diagnosis import Interval, TrialFacts
from fasttrain_doctor.evidence import Effect, Evidence
from fasttrain_doctor.tuners.arms import FAIR, SHARE, Arms, Contest, key
from fasttrain_doctor.tuners.bench import ArmFailed
from fasttrain_doctor.tuners.fixes import Fix, Plan, Value

Stage = Literal["guided", "search"]


@dataclass(slots=True)
class Ledger:
    """Looks at plans, compares them in earnest, and writes down what came of it.

    ``gains`` holds, for each plan that ran, the log of its speedup over the script as it is; ``side_gain`` the speedup
    that the kept fixes of a side brought.
    """

    arms: Arms
    evidence: Evidence
    fixes: Mapping[str, Fix]
    on_trial: Callable[[TrialFacts], None]
    best: dict[str, Value] = field(default_factory=dict)
    gains: dict[str, tuple[Plan, float]] = field(default_factory=lambda: {key({}): ({}, 0.0)})
    side_gain: dict[str, float] = field(default_factory=lambda: {"data": 1.0, "compute": 1.0})
    trials: list[TrialFacts] = field(default_factory=list)
    chain: list[Contest] = field(default_factory=list)  # those that made `best` what it is
    contests: list[tuple[int, str, Contest]] = field(default_factory=list)  # place of its trial, fix, and it

    def gain(self, plan: Plan) -> float | None:
        """Return the log speedup of a plan over the script as it is, None if it never ran."""
        known = self.gains.get(key(plan))
        return None if known is None else known[1]

    def look(self, plan: Plan, fix: Fix, stage: Stage) -> float | None:
        """Return a plan's log speedup over the script as it is, from one block; None when it failed or time is up."""
        before = self.arms.seconds
        try:
            ratio = self.arms.look(plan, self.best, self._guess(plan, fix))
        except ArmFailed as failure:
            self._note(plan, fix, stage, verdict="failed", reason=failure.reason, seconds=self.arms.seconds - before)
            return None
        if ratio is None:
            return None
        self._note(
            plan,
            fix,
            stage,
            verdict="inconclusive",
            reason="a single look, to choose what to compare in pairs",
            pair_ratios=[math.exp(ratio)],
            pairs=1,
            seconds=self.arms.seconds - before,
        )
        total = ratio + (self.gain(self.best) or 0.0)
        self.gains[key(plan)] = dict(plan), total
        return total

    def earnest(self, plan: Plan, fix: Fix, stage: Stage, share: float = SHARE) -> bool:
        """Compare a plan with the best one in pairs; keep it, and return True, when it is faster."""
        contest = self.compare(plan, self.best, fix, stage, share)
        speedup = contest.verdict.speedup
        if speedup is None or contest.verdict.kind == "failed":
            self.gains.pop(key(plan), None)
            return False
        self.gains[key(plan)] = dict(plan), (self.gain(self.best) or 0.0) + math.log(speedup.mid)
        if contest.verdict.kind != "faster":
            return False
        self.side_gain[fix.side] *= speedup.mid
        self.best = dict(plan)
        self.chain.append(contest)
        return True

    def take(self, contest: Contest, reason: str) -> None:
        """Make the plan of the last comparison the best one although it is no faster, and say why in its trial."""
        self.trials[-1] = replace(self.trials[-1], reason=f"{self.trials[-1].reason}; {reason}")
        self.best = dict(contest.plan)
        self.chain.append(contest)

    def compare(self, plan: Plan, over: Plan, fix: Fix, stage: Stage, share: float = SHARE) -> Contest:
        """Compare two plans in pairs, for a share of the time left, and write it down."""
        most = FAIR if stage == "search" else stats.LOOKS[-1]  # late gains are small: not worth as much time
        contest = self.arms.contest(plan, over, guess=self._guess(plan, fix), most=most, share=share)
        speedup = contest.verdict.speedup
        self._note(
            plan,
            fix,
            stage,
            over=over,
            verdict=contest.verdict.kind,
            reason=contest.verdict.reason,
            speedup=speedup,
            pairs=len(contest.ratios),
            pair_ratios=list(contest.ratios),
            steps=contest.steps,
            seconds=contest.seconds,
        )
        self.contests.append((len(self.trials) - 1, fix.name, contest))
        return contest

    def settle(self, alpha: float = 0.05) -> None:
        """Apply Holm's correction over all arms compared; what does not survive it leaves the best plan again."""
        survived = stats.holm([contest.p for *_, contest in self.contests], alpha)
        for (place, name, contest), holds in reversed(list(zip(self.contests, survived, strict=True))):
            if contest.verdict.kind != "faster" or holds:
                continue
            reason = f"{self.trials[place].reason}; not beyond chance among {len(survived)} plans compared"
            self.trials[place] = replace(self.trials[place], verdict="inconclusive", reason=reason)
            self.chain = [kept for kept in self.chain if kept is not contest]
            if contest.plan.get(name) == self.best.get(name):
                self.best = {k: v for k, v in {**self.best, name: contest.over.get(name)}.items() if v is not None}

    def over_script(self) -> Interval | None:
        """Return the best plan's interval over the script as it is: measured, or else put together from its steps.

        The steps are independent comparisons, so that their log half-widths add up in squares. None where the chain
        of comparisons does not lead to the best plan.
        """
        for *_, contest in reversed(self.contests):
            if not contest.over and key(contest.plan) == key(self.best) and contest.verdict.speedup is not None:
                return contest.verdict.speedup
        if not self.chain or self.chain[0].over or key(self.chain[-1].plan) != key(self.best):
            return None
        steps = [contest.verdict.speedup for contest in self.chain]
        mid, down, up = 0.0, 0.0, 0.0
        for (before, after), step in zip(pairwise([None, *self.chain]), steps, strict=True):
            if step is None or after is None or (before is not None and key(before.plan) != key(after.over)):
                return None
            mid += math.log(step.mid)
            down += math.log(step.mid / step.low) ** 2
            up += math.log(step.high / step.mid) ** 2
        return Interval(mid=math.exp(mid), low=math.exp(mid - down**0.5), high=math.exp(mid + up**0.5))

    def measured(self) -> bool:
        """Return whether the best plan was itself compared with the script as it is."""
        return any(not contest.over and key(contest.plan) == key(self.best) for *_, contest in self.contests)

    def _guess(self, plan: Plan, fix: Fix) -> float | None:
        """Return how long a step of a plan may take, for the length of its first block."""
        step = self.arms.step(self.best)
        expected = self.expected(plan, self.best, fix)
        return step if step is None or expected is None else step / expected

    def expected(self, plan: Plan, over: Plan, fix: Fix) -> float | None:
        """Return the speedup a fix expects of its value in one plan over that in another, by the evidence alone."""
        gains = [fix.expected(self.evidence, p[fix.name]) if fix.name in p else 1.0 for p in (plan, over)]
        there, here = gains
        return None if there is None or here is None or there <= 0 or here <= 0 else there / here

    def effect(self, plan: Plan) -> Effect:
        """Return what a plan may change about the training."""
        return max((self.fixes[n].effect(self.evidence, v) for n, v in plan.items()), default=Effect.EXACT)

    def _note(self, plan: Plan, fix: Fix, stage: Stage, over: Plan | None = None, **facts: Any) -> None:
        over = dict(self.best if over is None else over)
        trial = TrialFacts(
            settings=dict(plan),
            effect=self.effect(plan).name.lower(),
            expected=self.expected(plan, over, fix),
            stage=stage,
            over=dict(over),
            **{"speedup": None, "pairs": 0, **facts},
        )
        self.trials.append(trial)
        self.on_trial(trial)
