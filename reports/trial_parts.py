"""What was tried, as a report shows it: findings with their trials, the plan, the search. Pure."""

from __future__ import annotations

import math
from typing import Any

from fasttrain_doctor.diagnosis import Diagnosis, FindingFacts, TrialFacts, Tuned
from fasttrain_doctor.reports import words
from fasttrain_doctor.reports.shown import Action, Fact, Plan, Strip, Tried

STAGE_WORDS = {"guided": "for a finding", "search": "search", "confirm": "confirmation"}


def tried(diagnosis: Diagnosis) -> tuple[Tried, ...]:
    """Return every trial, worded, in the order they ran."""
    return tuple(_tried(trial, diagnosis) for trial in diagnosis.trials)


def fresh(trial: TrialFacts) -> dict[str, Any]:
    """Return what a trial changed against the plan it was compared with."""
    return {fix: value for fix, value in trial.settings.items() if trial.over.get(fix) != value}


def _tried(trial: TrialFacts, diagnosis: Diagnosis) -> Tried:
    changed = fresh(trial) or trial.settings
    verified = _is_verified(trial, diagnosis.tuned)
    word = "verified" if verified else words.VERDICT_WORDS[trial.verdict]
    notes = [f"{trial.effect}, {words.LOSS_WORDS[diagnosis.tuned.loss]}"] if verified and diagnosis.tuned else []
    if trial.reason:
        notes.append(trial.reason)
    elif trial.verdict == "faster" and not verified:
        notes.append(f"{trial.effect}, {_fate(changed, diagnosis.tuned)}")
    if trial.over:
        notes.append(f"on top of {words.series(trial.over)}")
    return Tried(
        what=words.settings(changed),
        fixes=tuple(changed),
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
        total=_total(trial, diagnosis),
        note="; ".join(notes),
        strip=_strip(trial, diagnosis),
    )


def _fate(changed: dict[str, Any], tuned: Tuned | None) -> str:
    """Say what became of a change that was faster in its trial."""
    if tuned is None:
        return "not confirmed"
    refined = {fix: tuned.settings[fix] for fix in changed if fix in tuned.settings}
    return f"refined in the confirmed plan to {words.settings(refined)}" if refined else "not in the confirmed plan"


def _total(trial: TrialFacts, diagnosis: Diagnosis) -> float | None:
    """Return a trial's speedup over the script as it is, when every plan it was built on was measured too."""
    ratio, over = (trial.speedup.mid if trial.speedup else None), trial.over
    for earlier in reversed(diagnosis.trials[: diagnosis.trials.index(trial)]):
        if over and earlier.settings == over and earlier.speedup and ratio is not None:
            ratio, over = ratio * earlier.speedup.mid, earlier.over
    return None if over else ratio


def _strip(trial: TrialFacts, diagnosis: Diagnosis) -> Strip | None:
    """Place a trial's pairs and interval on the scale of all trials."""
    if trial.speedup is None:
        return None
    noise = diagnosis.noise
    known = [x for t in diagnosis.trials if t.speedup for x in (t.speedup.low, t.speedup.high, *t.pair_ratios)]
    known += [1.0] if noise is None else [1 / (1 + noise), 1 + noise]
    low, high = min(x for x in known if x > 0) / 1.03, max(known) * 1.03

    def at(ratio: float) -> float:
        return min(1.0, max(0.0, math.log(max(ratio, low) / low) / math.log(high / low)))

    around = f"; the script against itself varies by ±{words.share(noise)}" if noise is not None else ""
    return Strip(
        dots=tuple(at(ratio) for ratio in trial.pair_ratios),
        low=at(trial.speedup.low),
        mid=at(trial.speedup.mid),
        high=at(trial.speedup.high),
        same=at(1.0),
        noise=None if noise is None else (at(1 / (1 + noise)), at(1 + noise)),
        ends=(words.times(low), words.times(high)),
        said=f"{words.interval(trial.speedup)} from {words.count(trial.pairs, 'pair')}"
        + (f" ({', '.join(words.times(ratio) for ratio in trial.pair_ratios)})" if trial.pair_ratios else "")
        + around,
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
    kept = set(diagnosis.tuned.settings) if diagnosis.tuned else set()
    gains = [t.speedup.mid for t in best if t.speedup and t.verdict == "faster" and kept & set(fresh(t))]
    names = {name for trial in best for name in trial.settings}
    why = {entry.what: entry.why for entry in diagnosis.not_measured}
    return Action(
        code=finding.code,
        rule=finding.rule,
        lost=_lost(finding),
        lost_share=finding.lost,
        message=finding.message,
        evidence=tuple(Fact(key, words.evidence(key, value)) for key, value in finding.evidence.items()),
        tried=shown,
        untried=tuple(Fact(fix, why.get(fix, "")) for fix in finding.fixes if fix not in names),
        command="fasttrain-doctor apply" if gains else f"fasttrain-doctor explain {finding.rule}",
        gain=max(gains, default=0.0),
    )


def _lost(finding: FindingFacts) -> str:
    return f"up to {words.share(finding.lost)} of the {finding.of}" if finding.lost > 0 else "costs no time yet"


def _best(fix: str, diagnosis: Diagnosis) -> TrialFacts | None:
    """Return the trial that speaks for a fix: against plans without it, a verified one, else that of most pairs."""
    mine = [trial for trial in diagnosis.trials if fix in fresh(trial) and trial.stage != "confirm"]

    def worth(trial: TrialFacts) -> tuple[int, bool, bool, bool, int, float]:
        faster = trial.verdict == "faster"
        return (
            -len(fresh(trial)),
            fix not in trial.over,
            _is_verified(trial, diagnosis.tuned),
            faster,
            0 if faster else trial.pairs,  # looked at again, it is the later word that counts
            trial.speedup.mid if trial.speedup else 0.0,
        )

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
