"""The inside of the loader as a report shows it: stages of one sample, transforms, hottest lines, slow samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fasttrain_doctor.diagnosis import Diagnosis, Fetching, HotLine
from fasttrain_doctor.reports import words
from fasttrain_doctor.reports.shown import Bar, Fact, Segment, Table

WORTH = 0.02  # share of the step below which data is left out of the summary
_LEAST = 0.01  # share of a sample below which a stage is left out of the summary's line
_TAIL = 0.05  # share of the fetching that slow samples take from which they are named
_QUIET = 0.05  # share of the fetching threads' time spent waiting for a core, up to which slow samples can be counted

STAGE_WORDS: Mapping[str, str] = {
    "sampler": "sampler",
    "read": "read",
    "decode": "decode",
    "transform": "transform",
    "item": "own code",
    "collate": "collate",
    "transfer": "transfer",
    "pin": "pin",
}
STAGE_MEANING: Mapping[str, str] = {
    "sampler": "drawing the sample's index",
    "read": "opening and reading files: blocked in the kernel",
    "decode": "in an imaging, audio or compression library",
    "transform": "the transforms",
    "item": "the rest of __getitem__",
    "collate": "putting samples together to a batch",
    "transfer": "sending the batch from a worker to the main process",
    "pin": "copying the batch into pinned memory",
}


def facts(diagnosis: Diagnosis) -> tuple[Fact, ...]:
    """Return the training loader's settings as the script has them, and how busy its workers were."""
    loader = diagnosis.loader
    if loader is None:
        return ()
    found = [
        Fact("num_workers", str(loader.num_workers)),
        Fact("prefetch_factor", "none" if loader.prefetch_factor is None else str(loader.prefetch_factor)),
        Fact("pin_memory", words.plain(loader.pin_memory)),
        Fact("persistent_workers", words.plain(loader.persistent_workers)),
        Fact("batch_size", "set by the sampler" if loader.batch_size is None else str(loader.batch_size)),
    ]
    if diagnosis.epoch and diagnosis.epoch.batches is not None:
        found.append(Fact("batches an epoch", str(diagnosis.epoch.batches)))
    if diagnosis.contention is not None:
        how = "share of the loader threads' time they were ready to run but had to wait for a CPU"
        found.append(Fact("waiting for a CPU", words.share(diagnosis.contention), how))
    if loader.fetches is not None and loader.fetches.busy is not None:
        how = "share of the workers' time spent fetching"
        if loader.fetches.idle is not None:
            how += f"; {words.share(loader.fetches.idle)} of it they had nothing to do, because enough was fetched"
        found.append(Fact("workers busy", words.share(loader.fetches.busy), how))
    if loader.lock is not None and loader.lock.share > 0:
        how = f"share of the blocked time of fetches; most of it at {loader.lock.place}" if loader.lock.place else ""
        found.append(Fact("waiting for a lock", words.share(loader.lock.share), how))
    if loader.reads is not None and loader.reads.opens is not None:
        how = f"{words.size(loader.reads.bytes)} a sample" if loader.reads.bytes is not None else ""
        found.append(Fact("files opened a sample", f"{loader.reads.opens:.3g}", how))
    return tuple(found)


def _stages(diagnosis: Diagnosis) -> dict[str, float]:
    """Return seconds per sample of each stage that was seen; without a look inside what the fetches' records tell."""
    loader = diagnosis.loader
    if loader is None:
        return {}
    if loader.stages:
        return {name: seconds for name in STAGE_WORDS if (seconds := loader.stages.get(name)) is not None}
    known = loader.fetches
    if known is None or known.item is None:
        return {}
    return {"item": known.item} | ({"collate": known.collate} if known.collate is not None else {})


def bar(diagnosis: Diagnosis) -> Bar | None:
    """Return one sample's time by stage, as a bar."""
    parts = {name: seconds for name, seconds in _stages(diagnosis).items() if seconds > 0}
    total = sum(parts.values())
    if not parts or total <= 0:
        return None
    looked = diagnosis.loader is not None and diagnosis.loader.stages
    how = "from stacks sampled in every process" if looked else "from the records of each fetch"
    shares = words.shares(list(parts.values()))
    segments = tuple(
        Segment(
            key=name,
            label=_stage_word(name, bool(looked)),
            seconds=seconds,
            width=seconds / total,
            text=words.seconds(seconds),
            share=share,
            how=f"{STAGE_MEANING[name]}; {how}",
        )
        for (name, seconds), share in zip(parts.items(), shares, strict=True)
    )
    return Bar("a sample", words.seconds(total), 1.0, segments, f"seconds of all processes for one sample, {how}")


def _stage_word(name: str, looked: bool) -> str:
    return "__getitem__" if name == "item" and not looked else STAGE_WORDS[name]


def tail(diagnosis: Diagnosis) -> str:
    """Return what slow samples cost, in words; empty where they cost little."""
    known = diagnosis.loader.fetches if diagnosis.loader else None
    # A thread that is put off the CPU in the middle of a sample makes it look slow.
    if known is None or known.tail is None or known.tail - (diagnosis.contention or 0.0) < _TAIL:
        return ""
    return f"slow samples take {words.share(known.tail)} of the fetching{_which(known, diagnosis.contention or 0.0)}"


def _which(known: Fetching, queue: float) -> str:
    said = []
    if known.slow_share and queue <= _QUIET:  # where threads queue for a core many samples are made a little slow
        every = round(1 / max(known.slow_share, 1e-9))  # rarer than any window could show
        said.append(f"1 in {every}" if known.slow_share < 0.4 else words.share(known.slow_share))
    if known.slowest is not None and known.median is not None:
        at = f", index {known.slowest_index}" if known.slowest_index is not None else ""
        said.append(f"up to {words.seconds(known.slowest)}{at}; the median is {words.seconds(known.median)}")
    return f" ({', '.join(said)})" if said else ""


def lines(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the summary's lines on the loader: stages, costliest transform, hottest line, slow samples."""
    step, parts = diagnosis.step, _stages(diagnosis)
    if step is None or not parts or (diagnosis.data or 0.0) < WORTH * step.mean:
        return ()
    total = sum(parts.values())
    if total <= 0:
        return ()
    looked = bool(diagnosis.loader and diagnosis.loader.stages)
    shown = [name for name, seconds in parts.items() if seconds >= _LEAST * total]
    said = [
        f"{_stage_word(name, looked)} {words.milliseconds(parts[name], total)}{_costliest(diagnosis, name, total)}"
        for name in shown
    ]
    found = [f"inside the loader: {' | '.join(said)} ms a sample{_hottest(diagnosis)}"]
    return tuple(found + ([slow] if (slow := tail(diagnosis)) else []))


def _costliest(diagnosis: Diagnosis, stage: str, total: float) -> str:
    timed = diagnosis.loader.transforms if diagnosis.loader else None
    if stage != "transform" or not timed or len(timed) < 2:
        return ""
    top = max(timed, key=lambda item: item.seconds)
    return f" ({_short(top.name)} {words.milliseconds(top.seconds, total)})"


def _hottest(diagnosis: Diagnosis) -> str:
    found = diagnosis.loader.hot_lines if diagnosis.loader else None
    if not found:
        return ""
    top = max(found, key=lambda hot: hot.seconds)
    return f"; hottest line {top.file.rpartition('/')[2]}:{top.line}"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def stages(diagnosis: Diagnosis) -> Table | None:
    """Return a batch's way from disk to the model: what the loop waits for, and what happens behind compute."""
    phases, hidden = diagnosis.phases or {}, diagnosis.hidden or {}
    names = [("io", "read"), ("prepare", "prepare"), ("h2d", "copy to the device")]
    known = [(key, said) for key, said in names if phases.get(key) is not None or hidden.get(key) is not None]
    if not known:
        return None
    totals = [(phases.get(key) or 0.0) + (hidden.get(key) or 0.0) for key, _ in known]
    longest = max(totals)
    rows = tuple((said, _time(phases, key), _time(hidden, key)) for key, said in known)
    head = ("stage", "the loop waits", "behind compute")
    return Table("From disk to the model, per step", head, rows, tuple(t / longest if longest else 0.0 for t in totals))


def _time(values: Mapping[str, float | None], key: str) -> str:
    value = values.get(key)
    return "not measured" if value is None else words.seconds(value)


def transforms(diagnosis: Diagnosis) -> Table | None:
    """Return seconds per sample in each transform, costliest first."""
    found = diagnosis.loader.transforms if diagnosis.loader else None
    if not found:
        return None
    ordered = sorted(found, key=lambda item: -item.seconds)
    top = ordered[0].seconds
    rows = tuple((_short(item.name), words.seconds(item.seconds)) for item in ordered)
    widths = tuple(item.seconds / top if top else 0.0 for item in ordered)
    return Table("Transforms", ("transform", "per sample"), rows, widths)


def hot_lines(diagnosis: Diagnosis) -> Table | None:
    """Return the lines of the user's code that cost a sample most."""
    found = diagnosis.loader.hot_lines if diagnosis.loader else None
    return line_table("Hottest lines of a sample", found, "per sample") if found else None


def line_table(title: str, found: list[HotLine], unit: str) -> Table:
    """Return source lines with the time spent in each, costliest first."""
    ordered = sorted(found, key=lambda hot: -hot.seconds)
    top = ordered[0].seconds
    rows = tuple(
        (f"{hot.file}:{hot.line}", hot.function, hot.code or "", words.seconds(hot.seconds)) for hot in ordered
    )
    widths = tuple(hot.seconds / top if top else 0.0 for hot in ordered)
    return Table(title, ("line", "in", "code", unit), rows, widths)
