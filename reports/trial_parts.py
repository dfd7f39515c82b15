"""What was tried, as a report shows it: findings with their trials, the plan, the search. Pure."""

from __future__ import annotations

from fasttrain_doctor.diagnosis import Diagnosis, FindingFacts, TrialFacts, Tuned
from fasttrain_doctor.reports import words
from fasttrain_doctor.reports.shown import Action, Fact, Plan, Tried

STAGE_WORDS = {"guided": "for a finding", "search": "search", "confirm": "confirmation"}


def tried(diagnosis: Diagnosis) -> tuple[Tried, ...]:
    """Return every trial, worded, in the order they ran."""
    return tuple(_tried(trial, diagnosis) for trial in diagnosis.trials)


def _tried(trial: TrialFacts, diagnosis: Diagnosis) -> Tried:
    verified = _is_verified(trial, diagnosis.tuned)
    word = "verified" if verified else words.VERDICT_WORDS[trial.verdict]
    notes = [f"{trial.effect}, {words.LOSS_WORDS[diagnosis.tuned.loss]}"] if verified and diagnosis.tuned else []
    if trial.reason:
        notes.append(trial.reason)
    elif trial.verdict == "faster" and not verified:
        notes.append(f"{trial.effect}, not {'in the confirmed plan' if diagnosis.tuned else 'confirmed'}")
    return Tried(
        what=words.settings(trial.settings),
        fixes=tuple(trial.settings),
        stage=STAGE_WORDS[trial.stage],
        verdict=word,
        key="verified" if verified else trial.verdict,
        speedup=words.interval(trial.speedup) if trial.speedup else "not measured",
        interval=trial.speedup,
        ratios=tuple(trial.pair_ratios),
        effect=trial.effect,
        effect_meaning=words.EFFECT_MEANING.get(trial.effect, ""),
        expected=words.times(trial.expected) if trial.expected is not None else "no forecast",
        expected_ratio=trial.expected,
        pairs=words.count(trial.pairs, "pair"),
        seconds=words.seconds(trial.seconds),
        cost=trial.seconds,
        note="; ".join(notes),
    )


def _is_verified(trial: TrialFacts, tuned: Tuned | None) -> bool:
    """Say whether every setting of the trial is in the confirmed plan, with the same value."""
    if tuned is None or not tuned.confirmed or trial.verdict != "faster" or not trial.settings:
        return False
    return all(tuned.settings.get(name) == value for name, value in trial.settings.items())


def actions(diagnosis: Diagnosis) -> tuple[Action, ...]:
    """Return the findings with what was tried against each: largest verified gain first, then largest loss."""
    found = [_action(finding, diagnosis) for finding in diagnosis.findings]
    return tuple(sorted(found, key=lambda action: (-action.gain, -action.lost_share)))


def _action(finding: FindingFacts, diagnosis: Diagnosis) -> Action:
    best = [trial for fix in finding.fixes if (trial := _best(fix, diagnosis)) is not None]
    shown = tuple(_tried(trial, diagnosis) for trial in best)
    verified = [t.speedup.mid for t in best if t.speedup and _is_verified(t, diagnosis.tuned)]
    names = {name for trial in best for name in trial.settings}
    return Action(
        code=finding.code,
        rule=finding.rule,
        lost=words.share(finding.lost),
        lost_share=finding.lost,
        message=finding.message,
        evidence=tuple(Fact(key, words.evidence(key, value)) for key, value in finding.evidence.items()),
        tried=shown,
        untried=tuple(fix for fix in finding.fixes if fix not in names),
        command="fasttrain-doctor apply" if verified else f"fasttrain-doctor explain {finding.rule}",
        gain=max(verified, default=0.0),
    )


def _best(fix: str, diagnosis: Diagnosis) -> TrialFacts | None:
    """Return the trial that speaks for a fix: of plans that added it last, a verified one, else the fastest."""
    mine = [t for t in diagnosis.trials if t.settings and list(t.settings)[-1] == fix and t.stage != "confirm"]

    def worth(trial: TrialFacts) -> tuple[bool, bool, float]:
        faster = trial.verdict == "faster"
        return _is_verified(trial, diagnosis.tuned), faster, trial.speedup.mid if trial.speedup else 0.0

    return max(mine, key=worth, default=None)


def plan(diagnosis: Diagnosis, run: str = "") -> Plan | None:
    """Return the confirmed plan, or the candidate with the reason it was not."""
    if (tuned := diagnosis.tuned) is not None:
        confirmations = [t for t in diagnosis.trials if t.stage == "confirm" and t.settings == tuned.settings]
        pairs = confirmations[-1].pairs if confirmations else 0
        said = f"confirmed in {words.count(pairs, 'fresh pair')}" if pairs else "confirmed in fresh runs"
        facts = [
            Fact("per training sample", words.interval(tuned.speedup), f"95% interval, {said} of processes"),
            *_projected(tuned),
            Fact("training", words.LOSS_WORDS[tuned.loss], "compared with the script as it is, from the same seed"),
        ]
        return Plan(
            True, tuple(words.fix_settings(*item) for item in tuned.settings.items()), words.interval(tuned.speedup),
            tuple(facts), tuned.effect, words.EFFECT_MEANING.get(tuned.effect, ""), said,
            f"fasttrain-doctor apply {run}".strip(),
        )  # fmt: skip
    if (candidate := diagnosis.candidate) is not None:
        speedup = words.interval(candidate.speedup) if candidate.speedup else "not measured"
        return Plan(
            False, tuple(words.fix_settings(*item) for item in candidate.settings.items()), speedup,
            (Fact("in trials", speedup, "95% interval; a fresh comparison did not bear it out"),), candidate.effect,
            words.EFFECT_MEANING.get(candidate.effect, ""), candidate.reason, "",
        )  # fmt: skip
    return None


def _projected(tuned: Tuned) -> list[Fact]:
    projected = tuned.projected
    if projected is None:
        return []
    how = "start-up, epoch starts and steps together"
    facts = []
    if projected.speedup is not None:
        over = f"over the planned {projected.epochs:g} epochs" if projected.epochs is not None else "over the run"
        facts.append(Fact(over, words.times(projected.speedup), how))
    if projected.break_even_steps is not None:
        facts.append(Fact("pays after", words.count(round(projected.break_even_steps), "step"), how))
    return facts
