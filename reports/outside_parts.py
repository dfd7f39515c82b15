"""What is not the steps, as a report shows it: start-up, the ends of epochs, ranks, the machine. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from fasttrain_doctor.diagnosis import Diagnosis
from fasttrain_doctor.reports import words
from fasttrain_doctor.reports.shown import Bar, Fact, Segment

_START_WORTH = 1.0  # seconds of a start-up from which the summary tells it
_PART_WORTH = 0.1  # seconds of a part of it
_EPOCH_WORTH = 0.01  # share of the epoch

_BUSY = 0.1  # share of the window in which the training thread waited for a CPU, from which it is said

_START = {
    "imports": ("imports", "from the command's start until torch was imported"),
    "setup": ("set-up", "from there until the first batch was asked for: data set, model, optimizer"),
    "workers": ("workers", "making the loader's workers"),
    "first_batch": ("first batch", "waiting for the first batch"),
    "first_step": (
        "first step",
        "what computing the first step took beyond a usual one: lazy initialisation, compiling",
    ),
}
_EPOCH = {
    "steps": ("steps", "the mean step times the loader's length"),
    "start": ("start", "making the iterator and its workers, and its first batch beyond a usual wait"),
    "eval": ("evaluation", "batches of other loaders and forwards without gradients between two epochs"),
    "checkpoint": ("checkpoints", "saving between two epochs"),
    "logging": ("logging", "logging between two epochs"),
    "other": ("the rest", "all else between two epochs"),
}


def bars(diagnosis: Diagnosis) -> tuple[Bar, ...]:
    """Return the start-up and a whole epoch, each as a bar of its own scale."""
    found = []
    start = _parts(diagnosis.startup, _START)
    if start:
        found.append(_bar("start-up", start, _START, "once a run"))
    if diagnosis.epoch is not None and diagnosis.epoch.whole is not None:
        how = f"projected: {diagnosis.epoch.batches} batches at the mean step, and its end"
        found.append(_bar("an epoch", _parts(diagnosis.epoch, _EPOCH), _EPOCH, how))
    return tuple(found)


def _parts(owner: object, names: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    known = {name: getattr(owner, name, None) for name in names}
    return {name: seconds for name, seconds in known.items() if seconds}


def _bar(label: str, parts: Mapping[str, float], names: Mapping[str, tuple[str, str]], how: str) -> Bar:
    total = sum(parts.values())
    segments = tuple(
        Segment(name, names[name][0], seconds, seconds / total, words.seconds(seconds), share, names[name][1])
        for (name, seconds), share in zip(parts.items(), words.shares(list(parts.values())), strict=True)
    )
    return Bar(label, words.seconds(total), 1.0, segments, how)


def costs(diagnosis: Diagnosis) -> tuple[Fact, ...]:
    """Return the ends of an epoch whose length is not known: seconds, without a share."""
    epoch = diagnosis.epoch
    if epoch is None or epoch.whole is not None:
        return ()
    return tuple(
        Fact(f"each epoch: {_EPOCH[name][0]}", words.seconds(seconds), _EPOCH[name][1])
        for name, seconds in _parts(epoch, _EPOCH).items()
    )


def lines(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the summary's lines on a busy machine, start-up, epochs and ranks: those that are worth a word."""
    found = (
        _busy_line(diagnosis),
        _falling_line(diagnosis),
        _start_line(diagnosis),
        _epoch_line(diagnosis),
        ranks(diagnosis),
    )
    return tuple(said for said in found if said)


def _busy_line(diagnosis: Diagnosis) -> str:
    if diagnosis.queued is None or diagnosis.queued < _BUSY:
        return ""
    return (
        f"the training thread waited for a CPU {words.share(diagnosis.queued)} of the time: "
        "these times are those of a machine as busy as it was"
    )


def _falling_line(diagnosis: Diagnosis) -> str:
    if diagnosis.trend is None or diagnosis.trend >= 0:
        return ""
    steps = f" of {words.count(diagnosis.steps.measured, 'step')}" if diagnosis.steps else ""
    return (
        f"steps were still getting shorter, by {words.share(-diagnosis.trend)} over the window{steps}: "
        "watch more of them with --steps"
    )


def _start_line(diagnosis: Diagnosis) -> str:
    start = _parts(diagnosis.startup, _START)
    if diagnosis.step is None or sum(start.values()) < _START_WORTH:
        return ""
    named = [f"{_START[n][0]} {words.seconds(s)}" for n, s in start.items() if s >= _PART_WORTH]
    return f"start-up: {', '.join(named)}"


def _epoch_line(diagnosis: Diagnosis) -> str:
    epoch = diagnosis.epoch
    ends = {name: seconds for name, seconds in _parts(epoch, _EPOCH).items() if name != "steps"}
    shares = (epoch.shares if epoch is not None else None) or {}
    named = [
        f"{_EPOCH[name][0]} {words.seconds(seconds)}" + (f" ({words.share(shares[name])})" if name in shares else "")
        for name, seconds in ends.items()
        if (shares[name] >= _EPOCH_WORTH if name in shares else seconds >= _PART_WORTH)
    ]
    if not named or epoch is None:
        return ""
    whole = f" of {words.seconds(epoch.whole)}" if epoch.whole is not None else ""
    return f"an epoch{whole}: {', '.join(named)}"


def ranks(diagnosis: Diagnosis) -> str:
    """Return what is to be said of several ranks: how many, the slowest, and who the others wait for."""
    found = diagnosis.ranks
    if found is None or found.world < 2 or not found.step:
        return ""
    silent = f" ({found.world - found.reported} of them told nothing)" if found.reported < found.world else ""
    said = f"{found.world} ranks{silent}"
    if found.straggler is None:
        slowest = max(found.step, key=lambda name: found.step[name])
        return f"{said}, rank {slowest} the slowest: {words.seconds(found.step[slowest])} a step; no straggler"
    late = f"{said}; straggler: rank {found.straggler}, {words.seconds(found.step[found.straggler])} a step"
    others = [seconds for name, seconds in found.work.items() if name != found.straggler]
    usual = statistics.median(others) if others else 0.0
    own = found.work.get(found.straggler)
    return f"{late}, its own work {words.times(own / usual)} the others'" if own is not None and usual > 0 else late


def pressure(diagnosis: Diagnosis) -> tuple[Fact, ...]:
    """Return what pressed on the training during the window."""
    found = diagnosis.pressure
    if found is None:
        return ()
    waiting = "share of the window in which some task waited for it (pressure-stall figures of the kernel)"
    shares = (
        ("tasks waited for a CPU", found.cpu),
        ("tasks waited for a disk", found.io),
        ("tasks waited for memory", found.memory),
    )
    facts = [Fact(said, words.share(value), waiting) for said, value in shares if value is not None]
    if found.tree_cpu is not None:
        facts.append(Fact("cores kept busy", words.digits(found.tree_cpu), "by all of the script's processes"))
    if found.throttled is not None:
        how = "seconds in each second that the control group's CPU quota held threads back"
        facts.append(Fact("held back by the quota", words.seconds(found.throttled), how))
    if found.disk_read is not None:
        facts.append(Fact("read from disks", f"{words.size(found.disk_read)}/s", "of the whole machine"))
    if found.growth is not None:
        how = "resident memory of the script's processes, each second"
        facts.append(Fact("memory grows by", f"{words.size(found.growth)}/s", how))
    for reason, share in found.gpu_slowed_by.items():
        facts.append(
            Fact(f"GPU slowed: {reason}", words.share(share), "share of the window in which its clock was lowered")
        )
    return tuple(facts)
