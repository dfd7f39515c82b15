"""What a hook that could not be put on, or failed, takes from what is known of a step: in plain words, and which phases.

A phase that nobody saw is not one that took no time: its time is in ``other``, and it is null.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fasttrain_doctor.evidence import Breakdown, Phase


@dataclass(frozen=True, slots=True)
class Loss:
    """What is not known without a hook. ``parts`` are parts of ``other``."""

    words: str
    phases: tuple[Phase, ...] = ()
    parts: tuple[str, ...] = ()


_DATA = (Phase.IO, Phase.PREPARE)
_BY_HOOK = {
    "loading": Loss("waits for the loader are not seen, so io and prepare are unknown", _DATA),
    "fetching": Loss("fetches are not seen, so io and prepare cannot be told apart", _DATA),
    "forward": Loss("forwards are not seen: forward is unknown and part of other", (Phase.FORWARD,)),
    "backward": Loss("backwards are not seen: backward is unknown and part of other", (Phase.BACKWARD,)),
    "optimizer": Loss("optimizer steps are not seen: optimizer is unknown and part of other", (Phase.OPTIMIZER,)),
    "zero_grad": Loss("zero_grad is not seen: its time is part of other"),
    "clipping": Loss("clipping is not seen: its time is part of other"),
    "scaler": Loss("gradient scalers are not followed: updates that they skip are not counted as steps"),
    "spans": Loss("checkpoints, logging, collectives and garbage collection are not told from the rest of other", (),
                  ("checkpoint", "logging", "collective", "gc")),
    "device": Loss("an accelerator would not be seen: copies to it are unknown", (Phase.H2D,)),
    "model": Loss("a model is not described: its size, precision and compilation are unknown"),
    "looking": Loss("there is no look inside the loader"),
    "fork": Loss("processes that the script forks are not watched"),
    "plan": Loss("the plan was not installed: this run shows the script as it is"),
    "seed": Loss("unseeded generators start anew in each run, so losses are not comparable"),
    "next": Loss("a wait for the loader was not seen, so io and prepare are unknown", _DATA),
    "loader": Loss("a loader was not seen, so io and prepare are unknown", _DATA),
    "fetch": Loss("a fetch was not seen, so io and prepare cannot be told apart", _DATA),
}  # fmt: skip


def of(what: str) -> Loss | None:
    """Return what is lost where a hook named so was noted as degraded; None where that is in its reason already."""
    return _BY_HOOK.get(what.removeprefix("hook-"))


def without(breakdown: Breakdown, lost: Iterable[str]) -> Breakdown:
    """Return the breakdown with what was lost as unknown: null, and no longer 0."""
    losses = [loss for what in lost if (loss := of(what)) is not None]
    phases = {p for loss in losses for p in loss.phases}
    parts = {p for loss in losses for p in loss.parts}
    if not phases and not parts:
        return breakdown
    return replace(
        breakdown,
        phases={p: None if p in phases else s for p, s in breakdown.phases.items()},
        other={p: None if p in parts else s for p, s in breakdown.other.items()},
    )
