"""The verdict in one sentence, and the command to go on with. Pure."""

from __future__ import annotations

import shlex
import sys
from typing import Literal

from fasttrain_doctor.diagnosis import Diagnosis, FindingFacts, Interval
from fasttrain_doctor.reports import words
from fasttrain_doctor.wording import OUT_OF_TIME

Tone = Literal["gain", "calm", "open", "broken"]

WORTHWHILE = 0.03  # a share of the step below which a bottleneck is not worth a trial (the search's own stopping rule)


def tone(diagnosis: Diagnosis) -> Tone:
    """Say how the run ended: a gain, calmly nothing to gain, an open question, or broken."""
    if diagnosis.step is None or diagnosis.status == "failed":
        return "broken"
    if diagnosis.tuned is not None:
        return "gain"
    if diagnosis.candidate is not None or _fastest(diagnosis) is not None:
        return "open"
    if _worthwhile(diagnosis) and not diagnosis.trials:
        return "open"
    return "calm"


def kicker(diagnosis: Diagnosis) -> str:
    """Return the verdict in two or three words."""
    if diagnosis.step is None or diagnosis.status == "failed":
        return "not measured"
    if diagnosis.tuned is not None:
        return "verified gain"
    if diagnosis.candidate is not None or _fastest(diagnosis) is not None:
        return "not confirmed"
    if diagnosis.trials:
        return "no proven gain"
    return "bottleneck found, nothing tried" if _worthwhile(diagnosis) else "nothing to gain"


def sentence(diagnosis: Diagnosis) -> str:
    """Return what to make of ``diagnosis``, in one sentence with its interval where one was measured."""
    begin = "interrupted: " if diagnosis.status == "interrupted" else ""
    return begin + _sentence(diagnosis) + _warned(diagnosis)


def _warned(diagnosis: Diagnosis) -> str:
    """Return what is to be looked at although it costs no time yet, where the ending would sound as if all were well."""
    rules = [finding.rule for finding in diagnosis.findings if finding.lost == 0]
    return f" But look at {words.series(rules)}." if rules and tone(diagnosis) == "calm" else ""


def _sentence(diagnosis: Diagnosis) -> str:
    script, step = diagnosis.script, diagnosis.step
    if step is None or diagnosis.status == "failed":
        reason = _first_reason(diagnosis)
        return reason if reason.startswith(script) else f"{script} could not be measured: {reason}"
    if (tuned := diagnosis.tuned) is not None:
        low, high = words.times(tuned.speedup.low)[:-1], words.times(tuned.speedup.high)[:-1]
        return (
            f"{script} trains {words.times(tuned.speedup.mid)} as fast ({low} to {high}) with "
            f"{words.series(tuned.settings)}, {words.LOSS_WORDS[tuned.loss]}."
        )
    if (candidate := diagnosis.candidate) is not None:
        gain = f" ran {words.interval(candidate.speedup)} but" if candidate.speedup else ""
        return f"No proven gain: {words.series(candidate.settings)}{gain} was not confirmed: {candidate.reason}."
    if (fastest := _fastest(diagnosis)) is not None:
        gain = words.interval(fastest)
        return f"No proven gain yet: the best of {len(diagnosis.trials)} trials ran {gain}, and was not confirmed."
    if diagnosis.trials:
        noise = f" the noise of ±{words.share(diagnosis.noise)}" if diagnosis.noise is not None else " the noise"
        tried = words.count(len({str(sorted(t.settings.items())) for t in diagnosis.trials}), "change")
        ended = "; there was no time for more" if _budget(diagnosis) else ""
        return f"No proven gain: {tried} tried, none of them faster beyond{noise}{ended}."
    if found := _worthwhile(diagnosis):
        largest = max(found, key=lambda finding: finding.lost)
        return (
            f"{words.count(len(found), 'bottleneck').capitalize()} found, the largest worth up to "
            f"{words.share(largest.lost)} of each {largest.of}; {'there was no time to try anything' if _budget(diagnosis) else 'nothing was tried'}."
        )
    steps = words.count(diagnosis.steps.measured, "step") if diagnosis.steps else "the steps"
    phases = diagnosis.phases or {}
    computing = sum(phases.get(name) or 0.0 for name in ("forward", "backward", "optimizer"))
    busy = f"{words.share(computing / step.mean)} of each {words.seconds(step.mean)} step is computing, and "
    return (
        f"Nothing to gain: {busy if computing >= 0.5 * step.mean else ''}no bottleneck worth "
        f"{words.share(WORTHWHILE)} of a step was found in {steps}."
    )


def next_command(diagnosis: Diagnosis, run: str = "") -> str | None:
    """Return the command to go on with, or None when there is nothing left to do."""
    if diagnosis.tuned is not None:
        return f"fasttrain-doctor apply{' ' + shlex.quote(run) if run else ''}"
    budget = _budget(diagnosis)
    if tone(diagnosis) == "calm" and diagnosis.status == "complete" and not budget:
        return None
    return again(diagnosis, budget)


def _budget(diagnosis: Diagnosis) -> str:
    """Return the option that gives trials the time they lacked; empty where they had enough."""
    short = (entry.why for entry in diagnosis.not_measured if entry.what == "trials")
    return next((why.rpartition(": ")[2] for why in short if why.startswith(OUT_OF_TIME)), "")


def again(diagnosis: Diagnosis, options: str = "") -> str:
    """Return the command that makes this diagnosis again, an interpreter named only where it is not our own."""
    command, said = list(diagnosis.command), ["fasttrain-doctor diagnose", *([options] if options else [])]
    if command and command[0].rsplit("/", 1)[-1].startswith("python"):
        python = command.pop(0)
        said += [] if python in ("python", "python3", sys.executable) else [f"--python {shlex.quote(python)}"]
    return " ".join([*said, shlex.join(command)])


def _worthwhile(diagnosis: Diagnosis) -> list[FindingFacts]:
    return [finding for finding in diagnosis.findings if finding.lost >= WORTHWHILE]


def _fastest(diagnosis: Diagnosis) -> Interval | None:
    """Return the largest speedup over the script as it is among trials judged faster."""
    faster = [t.speedup for t in diagnosis.trials if t.verdict == "faster" and t.speedup is not None and not t.over]
    return max(faster, key=lambda speedup: speedup.mid, default=None)


def _first_reason(diagnosis: Diagnosis) -> str:
    if diagnosis.degraded:
        return diagnosis.degraded[0]
    return diagnosis.not_measured[0].why if diagnosis.not_measured else "the script ended before enough steps had run"
