"""Keeps the script's random stream the same under a plan that keeps workers from epoch to epoch, or no longer does.

Each new loader iterator draws a base seed from the script's generator (torch 2.14, ``_BaseDataLoaderIter.__init__``); one
that is reset draws none. Without this the second epoch's order, and every random number after it, would be another's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from fasttrain_doctor.probe import unseen

_kept: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators that live on only because of a plan
_ended: weakref.WeakSet[Any] = weakref.WeakSet()  # loaders that would have kept theirs


def persistent(loader: Any) -> bool:
    """Whether the loader resets one iterator for each epoch instead of making a new one."""
    return bool(loader.persistent_workers and loader.num_workers > 0)


def kept(iterator: Any) -> None:
    """Note an iterator that is reset where the script's own loader would make a new one."""
    _kept.add(iterator)


def spared(loader: Any, was_persistent: bool) -> bool:
    """Whether the iterator about to be made must draw no base seed, because the script's own would only be reset.

    Args:
        loader: the loader as the plan has it.
        was_persistent: whether the script has it reset its iterator; only told before the plan has changed it.
    """
    if was_persistent and not persistent(loader):
        _ended.add(loader)
        return False  # the first is made in either case
    return loader in _ended


def install() -> None:
    """Draw a base seed at each reset of a kept iterator, before its sampler starts over."""
    import torch
    from torch.utils.data import dataloader

    original: Callable[..., Any] = dataloader._MultiProcessingDataLoaderIter._reset

    @unseen.wraps(original)
    def _reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if self in _kept:
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            return original(self, loader, *args, **kwargs)
        except BaseException as error:
            unseen.strip(error)
            raise

    dataloader._MultiProcessingDataLoaderIter._reset = _reset  # type: ignore[method-assign]
