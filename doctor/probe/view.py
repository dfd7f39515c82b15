"""A loader seen with other settings: iterators are made from it without touching the user's loader."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any


class View:
    """Delegates to a loader; ``settings`` and an endless index sampler come first."""

    _ftd_view = True

    def __init__(self, loader: Any, settings: Mapping[str, Any], timeout: int = 0) -> None:
        self._loader = loader
        self.num_workers = settings.get("num_workers", loader.num_workers)
        self.pin_memory = settings.get("pin_memory", loader.pin_memory)
        workers = self.num_workers > 0
        self.prefetch_factor = (settings.get("prefetch_factor") or loader.prefetch_factor or 2) if workers else None
        # Only used to reset an iterable data set's workers at its end: map-style arms never end.
        self.persistent_workers = workers and loader._dataset_kind != 0
        self.timeout = timeout if workers else 0
        # Forked, never spawned: in a script without a __main__ guard spawned workers would train again.
        self.multiprocessing_context = _fork() if workers else None
        self._index_sampler = _Endless(loader._index_sampler) if loader._dataset_kind == 0 else loader._index_sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Endless:
    """A sampler that starts over when it is exhausted, so that an arm outlives the script's epochs."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        for _ in itertools.count():
            empty = True
            for index in self._sampler:
                empty = False
                yield index
            if empty:
                return

    def __len__(self) -> int:
        return len(self._sampler)


def _fork() -> Any:
    import multiprocessing

    return multiprocessing.get_context("fork")


def make_iterator(view: View) -> Any:
    """Make a loader iterator from a view with every random state put back afterwards."""
    from torch.utils.data import dataloader

    with _same_random_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pinning, worker counts: what the script did not ask for is not its to read
        if view.num_workers == 0:
            return dataloader._SingleProcessDataLoaderIter(view)
        return dataloader._MultiProcessingDataLoaderIter(view)


class _same_random_state:
    def __enter__(self) -> None:
        import random
        import sys

        import torch

        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy = numpy.get_state() if numpy is not None else None

    def __exit__(self, *_: object) -> None:
        import random
        import sys

        import torch

        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
