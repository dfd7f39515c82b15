"""What the look inside and the records of fetches say of the loader, as it is made public."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from pathlib import Path

from fasttrain_doctor import evidence
from fasttrain_doctor.diagnosis import LOOKED_AT, Fetching, HotLine, LoaderFacts, Lock, Pressure, Reads, Transform
from fasttrain_doctor.evidence import Fetches, Look
from fasttrain_doctor.gather import Watched
from fasttrain_doctor.redact import redact

_LONGEST = 120  # characters of a source line that are kept
NOT_LOOKED = "there was no look inside"


def loader_facts(watched: Watched, look: Look | None) -> LoaderFacts | None:
    """Return the training loader as it is made public; None where no loader is asked."""
    loader = watched.loader
    if loader is None:
        return None
    timed = None if look is None else look.transforms
    return LoaderFacts(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        batch_size=loader.batch_size,
        transforms=None if timed is None else [Transform(name=name, seconds=seconds) for name, seconds in timed],
        hot_lines=None if look is None else hot_lines(look.item_lines),
        stages=dict(look.stages) if look is not None and look.stages else None,
        fetches=_fetching(watched.fetches),
        reads=_reads(look),
        lock=None
        if look is None or look.blocked_on_lock is None
        else Lock(share=look.blocked_on_lock, place=look.lock_place),
    )


def hot_lines(found: Sequence[evidence.HotLine]) -> list[HotLine]:
    """Return lines with their text, read from the user's files; secrets in it are masked."""
    return [
        HotLine(file=h.file, line=h.line, function=h.function, seconds=h.seconds, code=_code(h.file, h.line))
        for h in found
    ]


def _code(file: str, line: int) -> str | None:
    try:
        # Code may say that it is from a pipe or a terminal: opening that would wait for somebody.
        text = linecache.getline(file, line).strip() if Path(file).is_file() else ""
    except ValueError:  # a name that no file can have: code made at run time
        return None
    return redact(text)[:_LONGEST] if text else None


def _fetching(fetches: Fetches | None) -> Fetching | None:
    if fetches is None:
        return None
    return Fetching(**{name: getattr(fetches, name) for name in Fetches.__slots__})


def _reads(look: Look | None) -> Reads | None:
    if look is None or (look.opens is None and look.read_calls is None and look.read_bytes is None):
        return None
    return Reads(opens=look.opens, calls=look.read_calls, bytes=look.read_bytes, storage=look.storage_bytes)


def pressure_facts(pressure: evidence.Pressure | None) -> Pressure | None:
    """Return the pressure as it is made public."""
    if pressure is None:
        return None
    fields = {name: getattr(pressure, name) for name in evidence.Pressure.__slots__}
    return Pressure(**(fields | {"gpu_slowed_by": dict(pressure.gpu_slowed_by)}))


def unseen(watched: Watched, look: Look | None, pressure: evidence.Pressure | None) -> Mapping[str, str]:
    """Return why each part of what is made public here is null, by its name in the JSON."""
    out = {}
    if pressure is None:
        out["pressure"] = "no sample of the machine fell into the window"
    if not watched.process.facts_of("window"):
        out["debug"] = "the process that trains told nothing at the window's ends"
    if look is None:
        of_loader = watched.loader is not None
        out |= {part: NOT_LOOKED for part in ("look", *LOOKED_AT) if of_loader or part in ("look", "loop.hot_lines")}
    elif watched.loader is not None:
        public = loader_facts(watched, look)
        seen = {name: getattr(public, name, None) for name in LOOKED_AT if "." not in name}
        out |= {name: _UNSEEN.get(name, "the look saw none") for name, value in seen.items() if value is None}
    if watched.loader is not None and watched.fetches is None:
        out["fetches"] = "the loader's fetches went past the hooks"
    return out


_UNSEEN = {
    "transforms": "no transforms that can be timed one by one were found",
    "stages": "no sample was fetched during the look",
    "reads": "no opening or reading of files was counted",
    "lock": "no fetch was blocked long enough to tell",
}
