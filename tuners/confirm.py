"""Confirmation: the winner against the script as it is, in fresh processes. Decisions only; starting them is passed in.

Processes differ more than blocks of one process do (memory layout, page cache, which core): 2.5 % where the error
within one was 1 %. So the unit here is a *process*, its time per sample the median of its blocks (whole blocks, so that
a loader's rhythm is inside each; one stalled block does not count). Processes run in pairs from the same seed, in the
order A B B A A B, and their log times are explained by the plan and by a steady drift of the machine: least squares
with a slope over the order in which they ran. Taking each pair's ratio by itself would remove drifts of any shape, but
leave two degrees of freedom after three pairs, an interval twice as wide; one slope leaves three (2n - 3), and what a
drift has beside its slope makes the residuals, and so the interval, larger.

The interval is Student's, at one of two looks declared beforehand (the first `pairs`, and `most`). Blocks of one
process are not independent evidence of the difference between processes, hence they buy no degrees of freedom; they
give a floor: processes that agree by luck may not claim less spread than their own blocks and the A/A blocks show.
Coverage and false confirmations are simulated in tests/test_confirm.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fasttrain_doctor import stats
from fasttrain_doctor.diagnosis import Interval, TrialFacts, VerdictKind
from fasttrain_doctor.evidence import Effect
from fasttrain_doctor.student import critical
from fasttrain_doctor.tuners.bench import ArmFailed, Block, Deadline, SessionEnded
from fasttrain_doctor.tuners.fixes import Plan
from fasttrain_doctor.tuners.losses import LossCheck, compare_losses
from fasttrain_doctor.tuners.verdict import Verdict, failed, judge

PAIRS, MOST = 3, 6
_LOOKS = 2
_MEDIAN = math.pi / 2  # variance of a median over that of a mean, Gaussian


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """What one process measured: its blocks, warm part dropped, and its losses from the first step (None: not read)."""

    blocks: tuple[Block, ...]
    losses: tuple[float, ...] | None


# Runs the script once from the start under a plan and a seed. Raises ArmFailed where the script fails, SessionEnded
# where nothing can be started any more.
RunProcess = Callable[[Plan, int], ProcessResult]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """How the winner fared. ``confirmed``: the gain held and the training is the one promised; else ``reason`` says why.

    ``step`` is the mean of seconds per step with the plan, ``baseline_step`` without.
    """

    plan: Plan
    confirmed: bool
    verdict: VerdictKind
    speedup: Interval | None
    loss: LossCheck
    reason: str
    ratios: tuple[float, ...] = ()
    step: float | None = None
    baseline_step: float | None = None
    steps: int = 0
    seconds: float = 0.0

    def facts(self, effect: Effect) -> TrialFacts:
        """Return the confirmation as a trial among the others."""
        return TrialFacts(
            settings=dict(self.plan),
            effect=effect.name.lower(),
            verdict=self.verdict,
            speedup=self.speedup,
            expected=None,
            pairs=len(self.ratios),
            reason=self.reason,
            stage="confirm",
            pair_ratios=list(self.ratios),
            steps=self.steps,
            seconds=self.seconds,
        )


@dataclass(slots=True)
class _Pairs:
    baseline: list[ProcessResult] = field(default_factory=list)
    candidate: list[ProcessResult] = field(default_factory=list)

    def complete(self) -> int:
        return min(len(self.baseline), len(self.candidate))


def confirm(
    run_process: RunProcess,
    plan: Plan,
    *,
    effect: Effect,
    noise: stats.Noise,
    pairs: int = PAIRS,
    most: int = MOST,
    deadline: Deadline | None = None,
) -> Confirmation:
    """Run pairs of fresh processes until the gain is decided: at least ``pairs``, at most ``most``.

    ``deadline`` keeps a further pair from being started, never one of the first ``pairs``.
    """
    done, ended = _Pairs(), ""
    verdict: Verdict | None = None
    loss = LossCheck("not-compared", "too few pairs of processes were finished")
    try:
        for pair in range(most):
            if pair >= pairs and deadline is not None and deadline.left() <= 0:
                ended = "the budget was used up"
                break
            _run_pair(run_process, plan, pair, done)
            if done.complete() in (pairs, most):
                loss = _losses(run_process, effect, done)
                verdict = judge(_comparison(done, noise), noise, loss=loss, complete=done.complete() == most)
                if verdict.kind != "inconclusive":
                    break
    except ArmFailed as failure:
        verdict = failed(failure.reason)
    except SessionEnded as ending:
        ended = ending.reason
    if ended or verdict is None:
        verdict = _cut(done, noise, loss, ended)
    return _outcome(plan, verdict, loss, done)


def _run_pair(run_process: RunProcess, plan: Plan, pair: int, done: _Pairs) -> None:
    """Run one pair, its seed shared, the order turned round from pair to pair.

    Raises:
        ArmFailed: the script failed under the plan, or as it is (then the reason says so).
    """
    for is_candidate in (False, True) if pair % 2 == 0 else (True, False):
        try:
            result = run_process(plan if is_candidate else {}, pair)
        except ArmFailed as failure:
            raise failure if is_candidate else ArmFailed(f"the script as it is failed: {failure.reason}") from failure
        if not result.blocks:
            raise ArmFailed("the process ended before one block was measured")
        (done.candidate if is_candidate else done.baseline).append(result)


def _log_cost(result: ProcessResult, *, per_sample: bool) -> tuple[float, float]:
    """Return the log of a process's time per sample (or step) and the variance its blocks leave in it."""
    logs = np.log(stats.costs(result.blocks, per_sample=per_sample))
    if len(logs) < 3:
        total = sum(b.seconds for b in result.blocks)
        units = sum((b.samples or 0.0) if per_sample else b.steps for b in result.blocks)
        return math.log(total / units), 0.0
    spread = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return float(np.median(logs)), _MEDIAN * spread**2 / len(logs)


def _comparison(done: _Pairs, noise: stats.Noise) -> stats.Comparison:
    n = done.complete()
    sides = [*done.baseline[:n], *done.candidate[:n]]
    per_sample = all(block.samples for result in sides for block in result.blocks)
    costs = [_log_cost(result, per_sample=per_sample) for result in sides]
    logs = np.array([cost for cost, _ in costs])
    place = np.array([[2 * i + i % 2, 2 * i + 1 - i % 2] for i in range(n)], dtype=np.float64)  # A B B A A B
    design = np.column_stack([np.ones(2 * n), np.concatenate([place[:, 0], place[:, 1]]), np.repeat([0.0, -1.0], n)])
    solved = np.linalg.lstsq(design, logs, rcond=None)[0]
    freedom = 2 * n - 3
    residual = math.sqrt(float(np.sum((logs - design @ solved) ** 2)) / freedom)
    blocks = min(len(result.blocks) for result in sides)
    floor = math.sqrt(max(float(np.mean([variance for _, variance in costs])), noise.sd**2 / 2.0 / blocks))
    error = max(residual, floor) * math.sqrt(float(np.linalg.inv(design.T @ design)[2, 2]))
    half, centre = critical(0.05 / _LOOKS / 2, freedom) * error, float(solved[2])
    return stats.Comparison(
        mid=math.exp(centre),
        low=math.exp(centre - half),
        high=math.exp(centre + half),
        pairs=n,
        ratios=_ratios(done),
        set_aside=(),
        error=error,
        freedom=freedom,
    )


def _losses(run_process: RunProcess, effect: Effect, done: _Pairs) -> LossCheck:
    n = done.complete()
    baseline = [result.losses for result in done.baseline[:n]]
    candidate = [result.losses for result in done.candidate[:n]]
    ours, theirs = _read(baseline), _read(candidate)
    if ours is None or theirs is None:
        return LossCheck("not-compared", "the losses could not be read")
    check = compare_losses(effect, ours, theirs)
    if effect is not Effect.EXACT or check.kind != "outside":
        return check
    return _repeats(run_process, ours, theirs, check)


def _read(runs: Sequence[tuple[float, ...] | None]) -> list[tuple[float, ...]] | None:
    read = [run for run in runs if run is not None]
    return read if len(read) == len(runs) else None


def _repeats(
    run_process: RunProcess, ours: list[tuple[float, ...]], theirs: list[tuple[float, ...]], check: LossCheck
) -> LossCheck:
    """Ask the script itself: where it does not repeat its own losses from one seed, identity proves nothing.

    Then the envelope decides, and the detail says so. One more process, only where identity was promised and missed.
    """
    try:
        again = run_process({}, 0).losses
    except (ArmFailed, SessionEnded):
        return check
    if again is None or compare_losses(Effect.EXACT, [ours[0]], [again]).kind != "outside":
        return check
    envelope = compare_losses(Effect.RESEEDED, ours, theirs)
    return LossCheck(
        envelope.kind, f"the script does not repeat its own losses from one seed; instead: {envelope.detail}"
    )


def _cut(done: _Pairs, noise: stats.Noise, loss: LossCheck, why: str) -> Verdict:
    if done.complete() < 2:
        return Verdict("inconclusive", None, f"{why} before two pairs of processes had run", loss)
    verdict = judge(_comparison(done, noise), noise, loss=loss, cut=why)
    if verdict.kind == "faster":  # a look that was not declared claims nothing
        return Verdict("inconclusive", verdict.speedup, f"{why} after {done.complete()} pairs of processes", loss)
    return verdict


def _outcome(plan: Plan, verdict: Verdict, loss: LossCheck, done: _Pairs) -> Confirmation:
    confirmed = verdict.kind == "faster" and loss.kept
    reason = verdict.reason if confirmed else _why_not(verdict, loss)
    blocks = [block for result in (*done.baseline, *done.candidate) for block in result.blocks]
    return Confirmation(
        plan=dict(plan),
        confirmed=confirmed,
        verdict=verdict.kind,
        speedup=verdict.speedup,
        loss=loss,
        reason=reason,
        ratios=_ratios(done),
        step=_step(done.candidate),
        baseline_step=_step(done.baseline),
        steps=sum(block.steps for block in blocks),
        seconds=sum(block.seconds for block in blocks),
    )


def _ratios(done: _Pairs) -> tuple[float, ...]:
    pairs = list(zip(done.baseline, done.candidate, strict=False))
    per_sample = all(block.samples for pair in pairs for result in pair for block in result.blocks)
    costs = [[_log_cost(result, per_sample=per_sample)[0] for result in pair] for pair in pairs]
    return tuple(math.exp(ours - theirs) for ours, theirs in costs)


def _step(results: Sequence[ProcessResult]) -> float | None:
    steps = [math.exp(_log_cost(result, per_sample=False)[0]) for result in results]
    return sum(steps) / len(steps) if steps else None


def _why_not(verdict: Verdict, loss: LossCheck) -> str:
    if verdict.kind == "changed-training":
        return f"the training changed: {loss.detail}"
    if verdict.kind == "faster":
        return f"the losses were not compared: {loss.detail}"
    if verdict.kind == "failed":
        return f"it failed in a fresh process: {verdict.reason}"
    return f"fresh processes did not confirm the gain: {verdict.reason}"
