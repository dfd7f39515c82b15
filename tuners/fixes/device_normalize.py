"""Load pictures as bytes and turn them into normalised floats on the device, in one pass.

``ToTensor`` and ``Normalize`` at the end of a dataset's transforms make four bytes of each one, on the host: four times
as much to collate, to pass between processes and to copy. Here the view of the loader hands out bytes, which are moved
and normalised before the script sees the batch. The script asks for batches as before and gets the same numbers,
already on the device its model is on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fasttrain_doctor.evidence import Effect, Evidence, Phase
from fasttrain_doctor.tuners.fixes import Change, Fix, Options, Value
from fasttrain_doctor.tuners.fixes._accelerator import copy_share, missing
from fasttrain_doctor.tuners.fixes._bytes import COLLATE, Bytes, as_bytes, at, spread, tail
from fasttrain_doctor.tuners.fixes._nested import replaced

WORTH = 0.03


class _Normalizing:
    """Where the model is, and how the batches of its loader become floats there."""

    def __init__(self) -> None:
        self._bytes: Bytes | None = None
        self._device: Any = None

    def dataset(self, loader: Any) -> Any:
        """Return the loader's dataset handing out bytes, None where that cannot be trusted."""
        self._bytes = as_bytes(loader)
        return None if self._bytes is None else self._bytes.dataset

    def model(self, module: Any) -> None:
        """Note where the model is; nothing of it changes, so there is nothing to undo."""
        first = next(iter(module.parameters()), None)
        self._device = None if first is None else first.device

    def batches(self, fetch: Callable[[], Any]) -> Callable[[], Any]:
        """Return ``fetch`` with the pictures of its batches as normalised floats."""

        def following() -> Any:
            batch, held = fetch(), self._bytes
            if held is None:
                return batch
            images = at(batch, held.place)
            return batch if images is None else replaced(batch, lambda t: self._floats(held, t) if t is images else t)

        return following

    def _floats(self, held: Bytes, images: Any) -> Any:
        import torch

        from fasttrain_doctor.kernels.normalize import normalize

        if not isinstance(images, torch.Tensor) or images.dtype != torch.uint8 or images.dim() != 4:
            return images  # a batch of the loader as it was, from before the change
        if self._device is not None:  # before the first forward the script still moves the batch itself
            images = images.to(self._device, non_blocking=images.is_pinned() if self._device.type == "cuda" else False)
        return normalize(images, *spread(held.mean, held.std, images.shape[1]))


def _refusal(evidence: Evidence) -> str:
    loader = evidence.loader
    if reason := missing(evidence):
        return reason
    if loader is None:
        return "no training loader was seen: the batches are made some other way"
    if loader.kind != "torch" or loader.iterable:
        return "only a torch loader over a dataset with an index can be asked for bytes instead"
    if loader.transforms is None or tail(loader.transforms) == 0:
        return "the dataset's `transform` is no torchvision Compose ending in ToTensor or ToTensor, Normalize"
    if loader.collate is not None and loader.collate != COLLATE:
        return f"`{loader.collate}` makes the batches: what it does with floats is not known to work on bytes"
    if loader.moved is not True:
        return "the script was not seen to copy its pictures to the device as they come"
    share = _share(evidence)
    if share is not None and share < WORTH:
        return f"making floats and copying them take at most {share:.1%} of the step"
    return ""


def _share(evidence: Evidence) -> float | None:
    """Return the most it could save: exposed copies, and preparing in the part of it that a step waits for."""
    parts = (copy_share(evidence), evidence.breakdown.share(Phase.PREPARE))
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def options(evidence: Evidence) -> Options:
    """Offer it where the loader's pictures end in ToTensor and Normalize and go to the device as they come."""
    reason = _refusal(evidence)
    return Options(reason=reason) if reason else Options((True,))


def effect(_: Evidence, __: Value) -> Effect:
    """Judge: the same arithmetic with one rounding less."""
    return Effect.ROUNDING


def expected(evidence: Evidence, _: Value) -> float | None:
    """Guess that three quarters of the copies go, and a tenth of the preparing."""
    copies, preparing = copy_share(evidence) or 0.0, evidence.breakdown.share(Phase.PREPARE) or 0.0
    return 1 / (1 - min(0.75 * copies + 0.1 * preparing, 0.9))


def install(value: Value) -> Change:
    """Ask the dataset for bytes, normalise them on the device of the model.

    Raises:
        ValueError: the value is not ``true``.
    """
    if value is not True:
        raise ValueError(f"device-normalize takes true, got {value!r}")
    held = _Normalizing()
    return Change(dataset=held.dataset, model=held.model, batches=held.batches)


def applied(_: Value) -> str:
    """Word the change."""
    return "pictures loaded as bytes, normalised on the device"


FIX = Fix(
    name="device-normalize",
    summary="load pictures as bytes and normalise them on the device in one pass",
    effect=effect,
    options=options,
    install=install,
    applied=applied,
    expected=expected,
    device_only=True,
)
