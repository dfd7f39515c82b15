"""Carries a confirmation out: starts the fresh processes and puts what they showed into the case."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fasttrain_doctor.diagnosis import Candidate, Projected, Tuned
from fasttrain_doctor.epochs import epoch_cost
from fasttrain_doctor.gather import target_of
from fasttrain_doctor.tuners import confirm
from fasttrain_doctor.tuners.bench import Block, SessionEnded
from fasttrain_doctor.tuners.confirm import Confirmation, ProcessResult
from fasttrain_doctor.tuners.fixes import Plan, plan_effect
from fasttrain_doctor.tuners.process import STEADY, WINDOW, Fresh, run_fresh
from fasttrain_doctor.tuners.project import RunCost, projected

if TYPE_CHECKING:
    from fasttrain_doctor.diagnosing import Diagnosing

BLOCKS = 6  # a process's steady steps are cut into about so many
MOST = 1500  # steady steps of one process


class _Runner:
    """Starts fresh processes of one diagnosis, alternating plan and none."""

    def __init__(self, work: Diagnosing) -> None:
        self._work = work
        watched = work.case.watched
        assert watched is not None
        self._loader = target_of(watched)
        self._own = watched.loader.num_workers if watched.loader is not None else 0
        self._batch = watched.breakdown.samples_per_step
        search = work.case.search
        gain = search.speedup.mid if search is not None and search.speedup is not None else 1.0
        self._step = {False: watched.breakdown.mean, True: watched.breakdown.mean / gain}
        self.startup: dict[bool, list[float]] = {False: [], True: []}

    def __call__(self, plan: Plan, seed: int) -> ProcessResult:
        """Run the script once; see ``confirm.RunProcess``."""
        work, tuned = self._work, bool(plan)
        if work.left() <= 0 and self.startup[tuned]:
            raise SessionEnded("the budget was used up")
        workers = _workers(plan, self._own)
        steps = math.ceil(WINDOW / self._step[tuned])
        count = min(MOST, max(STEADY, 3 * BLOCKS * max(1, workers), steps))
        work.progress.say(f"confirming in a fresh process, {'tuned' if tuned else 'as it is'} (pair {seed + 1})")
        setup = work.fresh_setup(plan, self._loader, seed)
        try:
            fresh = run_fresh(setup, count, max(3, 3 * workers), work.limits.timeout)
        finally:
            work.clean()
        self.startup[tuned].append(fresh.startup)
        return ProcessResult(self._blocks(fresh, workers), fresh.losses or None)

    def _blocks(self, fresh: Fresh, workers: int) -> tuple[Block, ...]:
        """Cut the steps into blocks that each hold whole rounds of the workers."""
        size = max(4, len(fresh.steps) // BLOCKS, 2 * workers)
        cuts = [fresh.steps[i : i + size] for i in range(0, len(fresh.steps) - size + 1, size)] or [fresh.steps]
        return tuple(
            Block(
                steps=len(part),
                seconds=sum(part),
                samples=None if self._batch is None else self._batch * len(part),
                step_seconds=part,
            )
            for part in cuts
        )


def _workers(plan: Mapping[str, Any], own: int) -> int:
    value = plan.get("dataloader-workers")
    return int(value.get("num_workers", own)) if isinstance(value, Mapping) else own


def confirm_plan(work: Diagnosing) -> None:
    """Confirm the search's winner, if there is one, and note it as tuned or as a candidate with the reason."""
    case = work.case
    result = case.search
    if result is None or not result.best_plan or case.evidence is None or result.noise is None:
        return
    plan = dict(result.best_plan)
    effect = plan_effect(plan, case.evidence)
    runner = _Runner(work)
    confirmation = confirm.confirm(runner, plan, effect=effect, noise=result.noise, deadline=work)
    facts = confirmation.facts(effect)
    case.trials.append(facts)
    if not confirmation.confirmed or confirmation.speedup is None:
        case.candidate = Candidate(
            settings=plan, effect=facts.effect, speedup=confirmation.speedup, reason=confirmation.reason
        )
        return
    case.tuned = Tuned(
        settings=plan,
        effect=facts.effect,
        speedup=confirmation.speedup,
        projected=_projected(work, runner, confirmation),
        loss="identical" if confirmation.loss.kind == "identical" else "within-envelope",
        confirmed=True,
        step=confirmation.step,
    )
    work.writer.plan({"plan": plan, "loader": target_of_case(work)})


def target_of_case(work: Diagnosing) -> dict[str, Any]:
    """Return the facts of the loader the plan is for."""
    assert work.case.watched is not None
    return target_of(work.case.watched)


def _projected(work: Diagnosing, runner: _Runner, done: Confirmation) -> Projected | None:
    """Project the gain over the planned run: its start-up as the fresh processes had it, its epochs as they are."""
    watched = work.case.watched
    if watched is None or done.step is None or done.baseline_step is None:
        return None
    before, after = runner.startup[False], runner.startup[True]
    epoch = epoch_cost(watched)
    batches = epoch.batches
    length = None if batches is None else batches / max(watched.breakdown.batches_per_step, 1.0)
    return projected(
        RunCost(sum(before) / len(before), epoch.start or 0.0, done.baseline_step),
        RunCost(sum(after) / len(after), epoch.start or 0.0, done.step),
        epochs=None,
        length=length,
    )
