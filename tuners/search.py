"""The search: A/A blocks, each finding's fixes, then Optuna over the numeric knobs of what survived.

Everything a trial claims comes from a `Contest`, pairs of blocks with an interval; single looks only choose what goes
into one. The winner is for `confirm` to prove in fresh processes. The only module that imports Optuna.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, IntDistribution

from fasttrain_doctor import stats
from fasttrain_doctor.diagnosis import Interval, TrialFacts
from fasttrain_doctor.evidence import Effect, Evidence
from fasttrain_doctor.rules import Finding, Rule
from fasttrain_doctor.tuners.arms import Arms, key
from fasttrain_doctor.tuners.bench import ArmFailed, Bench, Deadline
from fasttrain_doctor.tuners.economy import economise
from fasttrain_doctor.tuners.fixes import Fix, Knob, Plan, Value, all_fixes
from fasttrain_doctor.tuners.guided import guided, with_knob
from fasttrain_doctor.tuners.ledger import Ledger
from fasttrain_doctor.tuners.space import WORTH, Candidate, Skipped, space

GAIN = math.log(1.01)  # the search stops where no more than this can be expected
PATIENCE = 4  # looks that together must have brought GAIN
MOST_LOOKS = 16  # of the numeric search

Knobs = Mapping[str, tuple[Candidate, Knob]]  # "fix.key" -> where it belongs, its range


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the search found.

    ``best_plan`` is empty where nothing was faster; ``speedup`` is its gain over the script as it is, None where
    nothing was or the end came first; ``seconds`` is the time spent in blocks.
    """

    trials: tuple[TrialFacts, ...]
    best_plan: Plan
    speedup: Interval | None
    noise: stats.Noise | None
    stopped_because: str
    skipped: tuple[Skipped, ...]
    seconds: float


def search(
    bench: Bench,
    evidence: Evidence,
    findings: Sequence[tuple[Rule, Finding]],
    *,
    allow: Effect,
    budget: Deadline,
    max_workers: int | None = None,
    on_trial: Callable[[TrialFacts], None] = lambda _: None,
    fixes: Mapping[str, Fix] | None = None,
    seed: int = 0,
) -> SearchResult:
    """Find the fastest plan whose effect is allowed, as far as the budget and the session reach.

    A plan that fails is a trial with its reason. The end of the session or of the budget ends the search with what is
    known; ``stopped_because`` says which, or that nothing more was to be gained.
    """
    catalogue = all_fixes() if fixes is None else fixes
    options = space(evidence, findings, catalogue, allow=allow, max_workers=max_workers)
    loader = evidence.loader
    arms = Arms(
        bench,
        budget,
        workers=loader.num_workers if loader is not None else 0,
        prefetch=(loader.prefetch_factor or 0) if loader is not None else 0,
    )
    ledger = Ledger(arms, evidence, catalogue, on_trial)

    def result(reason: str, noise: stats.Noise | None, skipped: Sequence[Skipped] = ()) -> SearchResult:
        speedup = ledger.over_script() if ledger.best else None
        everything = (*options.skipped, *skipped)
        return SearchResult(
            tuple(ledger.trials), dict(ledger.best), speedup, noise, arms.ended or reason, everything, arms.seconds
        )

    def untried(why: str) -> list[Skipped]:
        little = "at most {:.1%} of the step to gain"
        return [Skipped(c.fix.name, why if c.bound > WORTH else little.format(c.bound)) for c in options.candidates]

    if all(c.bound <= WORTH for c in options.candidates):
        return result(f"no fix may bring more than {WORTH:.0%}", None, untried(""))
    try:
        noise = arms.aa()
    except ArmFailed as failure:  # the script as it is does not run in blocks: nothing can be compared with it
        return result(f"the script as it is could not be run in blocks: {failure.reason}", None)
    if noise is None:
        return result("", None, untried(arms.ended))
    kept, skipped = guided(ledger, options.candidates)
    reason = f"no fix left may bring more than {WORTH:.0%}"
    if kept and not arms.over():
        reason = _numeric(ledger, kept, allow, seed)
        economise(ledger, kept)
    ledger.settle()
    if ledger.best and not ledger.measured() and not arms.over():
        last = list(ledger.best)[-1]
        ledger.compare(dict(ledger.best), {}, catalogue[last], "search")
    return result(reason, noise, skipped)


def _numeric(ledger: Ledger, kept: Sequence[Candidate], allow: Effect, seed: int) -> str:
    """Explore the knobs of the kept fixes together, starting from all that is known; return why it stopped."""
    base = dict(ledger.best)
    knobs: Knobs = {
        f"{c.fix.name}.{knob.key}": (c, near)
        for c in kept
        for knob in c.knobs
        if (count := _turned(base, c.fix, knob)) is not None and (near := _near(knob, count)).high > near.low
    }
    if not knobs:
        return f"no fix left may bring more than {WORTH:.0%}, and none has a knob to turn"
    distributions: dict[str, BaseDistribution] = {
        name: IntDistribution(knob.low, knob.high, log=knob.log) for name, (_, knob) in knobs.items()
    }
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=4, multivariate=True)
    study = optuna.create_study(sampler=sampler)
    told = _tell_known(ledger, study, knobs, distributions)
    _enqueue_neighbours(study, base, knobs)
    start = top = ledger.gain(base) or 0.0
    worth = max(GAIN, ledger.arms.noise.sd)  # a single look shows no less
    chosen, history = base, list[float]()
    for _ in range(4 * MOST_LOOKS):
        settled = len(history) >= PATIENCE and top - max([start, *history[:-PATIENCE]]) < worth
        if settled or len(history) >= MOST_LOOKS or ledger.arms.over():
            break
        trial = study.ask(distributions)
        plan = _plan(base, knobs, trial.params)
        if key(plan) in told:  # a point that was measured already, at the price of nothing
            study.tell(trial, told[key(plan)])
            continue
        changed = next((c for c, _ in knobs.values() if plan[c.fix.name] != base[c.fix.name]), kept[0])
        gain = ledger.look(plan, changed.fix, "search") if ledger.effect(plan) <= allow else None
        if gain is not None and gain > top + worth:  # too good? a stall beside it looks like that; once more
            again = ledger.look(plan, changed.fix, "search")
            gain = gain if again is None else min(gain, again)
        if gain is None:
            if ledger.arms.ended:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                break
            trial.set_constraint("runs", 1.0)  # infeasible: the sampler turns away from what is near it
        told[key(plan)] = -(gain or 0.0)
        study.tell(trial, told[key(plan)])
        history.append(gain or 0.0)
        if gain is not None and gain > top:
            top, chosen = gain, plan
    if top - start >= worth and not ledger.arms.over():
        changed = next(c for c, _ in knobs.values() if chosen[c.fix.name] != base[c.fix.name])
        ledger.earnest(chosen, changed.fix, "search")
    return f"the last {PATIENCE} of {len(history)} further settings gained less than {math.expm1(worth):.1%}"


def _near(knob: Knob, count: int) -> Knob:
    """Return the part of a knob's range within a factor of two: the guided part has been further out already."""
    if not knob.log:
        return knob
    return Knob(knob.key, max(knob.low, count // 2), max(knob.low, min(knob.high, 2 * count)), log=True)


def _tell_known(
    ledger: Ledger, study: optuna.Study, knobs: Knobs, distributions: dict[str, BaseDistribution]
) -> dict[str, float]:
    """Give the study every point the guided part has measured; return them by plan."""
    told: dict[str, float] = {}
    for name, (plan, gain) in ledger.gains.items():
        counts = {k: _turned(plan, c.fix, knob) for k, (c, knob) in knobs.items()}
        params = {k: n for k, n in counts.items() if n is not None and knobs[k][1].low <= n <= knobs[k][1].high}
        if len(params) == len(knobs) and plan.keys() == ledger.best.keys():
            told[name] = -gain
            study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=-gain))
    return told


def _enqueue_neighbours(study: optuna.Study, base: Plan, knobs: Knobs) -> None:
    """Ask first for what lies next to the best point: one knob doubled or halved."""
    here = {name: _turned(base, c.fix, knob) or knob.low for name, (c, knob) in knobs.items()}
    for name, (_, knob) in reversed(list(knobs.items())):  # the last knobs are those the ladder has not climbed
        for count in (here[name] * 2, here[name] // 2):
            if knob.low <= count <= knob.high:
                study.enqueue_trial({**here, name: count}, skip_if_exists=True)


def _turned(plan: Plan, fix: Fix, knob: Knob) -> int | None:
    value = plan.get(fix.name)
    count = value.get(knob.key) if isinstance(value, Mapping) else None
    return int(count) if isinstance(count, int) else None


def _plan(base: Plan, knobs: Knobs, params: Mapping[str, int]) -> dict[str, Value]:
    plan = dict(base)
    for name, (candidate, knob) in knobs.items():
        plan[candidate.fix.name] = with_knob(plan[candidate.fix.name], knob.key, int(params[name]))
    return plan
