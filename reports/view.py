"""A diagnosis as a report shows it: every number and sentence of console and HTML is made here. Pure.

What was not measured is said with its reason, never shown as 0.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fasttrain_doctor.diagnosis import Diagnosis
from fasttrain_doctor.reports import (
    hardware_parts,
    loader_parts,
    outside_parts,
    sentence,
    step_parts,
    trial_parts,
    words,
)
from fasttrain_doctor.reports.shown import Alert, Fact, ReportView

_SAME = 0.1  # share of the step by which another window's may differ and count as the same

_MACHINE_LABELS = {
    "platform": "system", "cores": "CPU cores usable", "logical_cores": "CPU cores present", "memory": "memory",
    "memory_free": "memory free at the start", "shm_free": "shared memory free at the start", "python": "Python",
    "torch": "torch", "torch_cuda": "CUDA of torch", "cpu_flags": "CPU features", "interop_threads": "threads, between operators",
    "intraop_threads": "threads, within operators",
}  # fmt: skip


def view(diagnosis: Diagnosis, samples: Sequence[Mapping[str, Any]] = (), run: str = "") -> ReportView:
    """Return what a report of ``diagnosis`` shows.

    Args:
        diagnosis: the whole diagnosis.
        samples: readings of the hardware, in order (``Run.samples()``).
        run: the run's id or path, for commands that need it; empty for the latest.
    """
    trials = trial_parts.tried(diagnosis)
    return ReportView(
        script=diagnosis.script,
        tone=sentence.tone(diagnosis),
        kicker=sentence.kicker(diagnosis),
        verdict=diagnosis.verdict or sentence.sentence(diagnosis),
        started=diagnosis.started.replace("T", " ")[:16],
        command=shlex.join(diagnosis.command),
        headline=_headline(diagnosis),
        place=_place(diagnosis),
        phase_line=_phase_line(diagnosis),
        floor_line=_floor_line(diagnosis),
        inside_lines=loader_parts.lines(diagnosis),
        outside_lines=outside_parts.lines(diagnosis),
        alerts=_alerts(diagnosis),
        facts=_facts(diagnosis),
        bars=step_parts.bars(diagnosis),
        phases=step_parts.phase_table(diagnosis),
        plan=trial_parts.plan(diagnosis, run),
        actions=trial_parts.actions(diagnosis),
        rest=step_parts.rest(diagnosis),
        trials=trials,
        noise=diagnosis.noise,
        noise_text=_noise(diagnosis),
        timeline=step_parts.timeline(diagnosis),
        loop_lines=step_parts.hot_lines(diagnosis),
        loader=loader_parts.facts(diagnosis),
        sample=loader_parts.bar(diagnosis),
        tail=loader_parts.tail(diagnosis),
        stages=loader_parts.stages(diagnosis),
        transforms=loader_parts.transforms(diagnosis),
        hot_lines=loader_parts.hot_lines(diagnosis),
        outside=outside_parts.bars(diagnosis),
        outside_facts=outside_parts.costs(diagnosis),
        operators=step_parts.operators(diagnosis),
        device=tuple(_device_fact(key, value) for key, value in (diagnosis.device or {}).items()),
        hardware=hardware_parts.charts(samples),
        pressure=outside_parts.pressure(diagnosis),
        not_measured=tuple(Fact(entry.what, entry.why) for entry in diagnosis.not_measured),
        absent=_absent(diagnosis, samples),
        environment=_environment(diagnosis),
        files=tuple(diagnosis.moved),
        reproduce=_reproduce(diagnosis, run),
        next_command=sentence.next_command(diagnosis, run),
    )


def _headline(diagnosis: Diagnosis) -> str:
    where = _hardware_name(diagnosis)
    if diagnosis.step is None:
        return f"{diagnosis.script}: no step was measured, {where}"
    steps = f"{words.count(diagnosis.steps.measured, 'step')}, " if diagnosis.steps else ""
    noise = f" (±{words.share(diagnosis.noise)})" if diagnosis.noise is not None else ""
    return f"{diagnosis.script}: {words.seconds(diagnosis.step.mean)} per step (mean), {steps}{where}{noise}"


def _hardware_name(diagnosis: Diagnosis) -> str:
    gpus = [str(gpu.get("name")) for gpu in diagnosis.machine.get("gpus") or []]
    if gpus:
        return gpus[0] if len(gpus) == 1 else f"{len(gpus)} x {gpus[0]}"
    cores = diagnosis.machine.get("cores")
    return f"CPU only ({cores:g} cores)" if isinstance(cores, (int, float)) else "CPU only"


def _place(diagnosis: Diagnosis) -> str:
    loop = diagnosis.loop
    if loop is None or loop.file is None:
        return ""
    said = f"loop {_short(loop.file, diagnosis)}" + (f":{_lines(loop.lines)}" if loop.lines else "")
    train = next((item for item in loop.loaders if item.role == "train" and item.file), None)
    if train is None:
        return f"{said}, no loader"
    return f"{said}, batches from {_short(train.file or '', diagnosis)}:{train.line}"


def _lines(lines: tuple[int, int]) -> str:
    return f"{lines[0]}-{lines[1]}" if lines[1] > lines[0] else str(lines[0])


def _short(file: str, diagnosis: Diagnosis) -> str:
    """Return the script's own name for its file; any other file as it is."""
    return diagnosis.script if file.endswith(f"/{diagnosis.script}") else file


def _phase_line(diagnosis: Diagnosis) -> tuple[str, ...]:
    if diagnosis.step is None:
        return ()
    scale = diagnosis.step.mean
    return tuple(f"{name} {words.milliseconds(value, scale)}" for name, value in step_parts.phase_parts(diagnosis))


def _floor_line(diagnosis: Diagnosis) -> str:
    if diagnosis.floor is None:
        return ""
    ceiling = f"{diagnosis.floor.ceiling:.1f}x" if diagnosis.floor.ceiling >= 1.05 else "nothing to gain"
    said = f"at most {ceiling} from the data side" if ceiling.endswith("x") else f"{ceiling} from the data side"
    return f"floor {words.seconds(diagnosis.floor.step)}{_when(diagnosis)}: {said}"


def _when(diagnosis: Diagnosis) -> str:
    """Name the step that the floor was measured in turn with, where it is not the one shown: the machine had changed."""
    floor, step = diagnosis.floor, diagnosis.step
    if floor is None or step is None or abs(floor.baseline - step.mean) <= _SAME * step.mean:
        return ""
    return f" where the step was {words.seconds(floor.baseline)}"


def _noise(diagnosis: Diagnosis) -> str:
    return f"±{words.share(diagnosis.noise)}" if diagnosis.noise is not None else "not measured"


def _alerts(diagnosis: Diagnosis) -> tuple[Alert, ...]:
    alerts = []
    if diagnosis.unprotected:
        items = tuple(f"{change.path}: {change.what}" for change in diagnosis.unprotected)
        alerts.append(Alert(True, "files of yours were changed and could not be put back", items))
    if diagnosis.status == "failed":
        alerts.append(Alert(True, "the run failed", tuple(diagnosis.degraded)))
    elif diagnosis.degraded:
        alerts.append(Alert(False, "part of this could not be measured as it should be", tuple(diagnosis.degraded)))
    if diagnosis.status == "interrupted":
        alerts.append(Alert(False, "interrupted", ("what was measured until then is shown",)))
    return tuple(alerts)


def _facts(diagnosis: Diagnosis) -> tuple[Fact, ...]:
    step, steps = diagnosis.step, diagnosis.steps
    if step is None:
        return ()
    spread = f"median {words.seconds(step.median)}; four in five steps took {words.seconds(step.p10)} to "
    facts = [Fact("per step", words.seconds(step.mean), f"mean; {spread}{words.seconds(step.p90)}")]
    if steps is not None:
        if steps.samples_per_step is not None and step.mean > 0:
            rate = words.digits(steps.samples_per_step / step.mean)
            facts.append(
                Fact("samples a second", rate, f"{steps.samples_per_step:g} samples a step over the mean step")
            )
        how = f"after {words.count(steps.warmup, 'warm-up step')}; borders found by the {steps.found_by}"
        facts.append(Fact("steps measured", str(steps.measured), how))
    facts.append(Fact("noise", _noise(diagnosis), "the script against itself: half-width of the 95% interval"))
    if diagnosis.queued is not None:
        how = "share of the window in which the training thread could have run but waited for a CPU"
        facts.append(Fact("waited for a CPU", words.share(diagnosis.queued), how))
    if diagnosis.trend is not None:
        grew = "grew" if diagnosis.trend > 0 else "fell"
        facts.append(Fact(f"the step {grew} by", words.share(abs(diagnosis.trend)), "over the window, of its mean"))
    if diagnosis.floor is not None:
        how = "the step over its floor, which replays one cached batch"
        facts.append(Fact("ceiling from data", words.times(diagnosis.floor.ceiling), how))
    if diagnosis.overhead is not None:
        how = f"{words.seconds(diagnosis.overhead.per_step)} per step"
        facts.append(Fact("cost of watching", words.share(diagnosis.overhead.share), how))
    return tuple(facts)


def _device_fact(key: str, value: object) -> Fact:
    said = key.replace("_", " ")
    if isinstance(value, Mapping):
        parts = (
            f"{name} {words.share(item) if isinstance(item, float) else words.plain(item)}"
            for name, item in value.items()
        )
        return Fact(said, ", ".join(parts) or "none")
    if key.endswith("_bytes") and isinstance(value, (int, float)):
        return Fact(said.removesuffix(" bytes"), words.size(value))
    return Fact(said, words.share(value) if isinstance(value, float) else words.plain(value))


def _absent(diagnosis: Diagnosis, samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return, for each section with nothing to show, why."""
    absent = {}
    no_steps = "no step was measured"
    if diagnosis.step is None:
        absent["step"] = absent["timeline"] = step_parts.reason(diagnosis, "steps", no_steps)
    if diagnosis.loader is None:
        absent["loader"] = step_parts.reason(diagnosis, "loader", "the loop draws its batches from no loader")
    elif why := next((entry.why for entry in diagnosis.not_measured if entry.what == "look"), ""):
        absent["inside"] = why
    if not diagnosis.operators:
        absent["operators"] = step_parts.reason(diagnosis, "operators", "the deep pass did not run")
    if not samples:
        absent["hardware"] = step_parts.reason(diagnosis, "samples", "no readings were kept")
    if not diagnosis.trials:
        nothing = "no bottleneck was large enough to try a change" if diagnosis.step else no_steps
        absent["trials"] = step_parts.reason(diagnosis, "trials", nothing)
    return absent


def _environment(diagnosis: Diagnosis) -> tuple[Fact, ...]:
    machine = diagnosis.machine
    facts = [Fact("fasttrain-doctor", diagnosis.tool)]
    for gpu in machine.get("gpus") or []:
        memory = f", {words.size(gpu['memory'])}" if gpu.get("memory") else ""
        driver = f", driver {gpu['driver']}" if gpu.get("driver") else ""
        facts.append(Fact("GPU", f"{gpu.get('name')}{memory}{driver}"))
    for key, value in machine.items():
        if key == "gpus" or value is None or value in ([], ()):
            continue
        sized = key in {"memory", "memory_free", "shm_free"} and isinstance(value, (int, float))
        facts.append(
            Fact(_MACHINE_LABELS.get(key, key.replace("_", " ")), words.size(value) if sized else words.plain(value))
        )
    if said := outside_parts.ranks(diagnosis):
        facts.append(Fact("ranks", said))
    if diagnosis.debug is not None:
        modes = "; ".join(f"{mode.name} ({mode.how})" for mode in diagnosis.debug)
        facts.append(Fact("modes for debugging", modes or "none"))
    return tuple(facts)


def _reproduce(diagnosis: Diagnosis, run: str) -> tuple[Fact, ...]:
    facts = [Fact("diagnose it again", sentence.again(diagnosis))]
    if run:
        facts.append(Fact("make this report again", f"fasttrain-doctor report {shlex.quote(run)}"))
    if diagnosis.tuned is not None:
        script = " ".join(sentence.again(diagnosis).split(" ")[2:])
        facts.append(Fact("train with what was found", f"fasttrain-doctor run {script}"))
    return tuple(facts)
