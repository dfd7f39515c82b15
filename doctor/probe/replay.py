"""Replay: the loader hands out one cached batch again and again, to see what the step costs when data is free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fasttrain_doctor.probe import loading
from fasttrain_doctor.probe.view import View, make_iterator


def source(kind: str, loader: Any, arm: Any) -> Callable[[], Any]:
    """Return a source of one cached batch: ``free`` from here, ``ready`` cloned and sent by two workers."""
    view = View(loader, {"num_workers": 0})
    batch = loading.native_next(make_iterator(view))
    if kind == "free":
        return lambda: fresh(batch)
    ready = View(loader, {"num_workers": 2, "prefetch_factor": 2}, timeout=40)
    ready.__dict__.update(
        dataset=_Clones(batch),
        _dataset_kind=0,
        _auto_collation=False,
        _index_sampler=_Zeros(),
        collate_fn=_same,
        worker_init_fn=None,
    )
    arm.iterator = make_iterator(ready)
    return lambda: loading.native_next(arm.iterator)


def fresh(value: Any, clone: bool = False) -> Any:
    """Rebuild the containers of a batch (loops pop from dicts and edit lists); its tensors are the same or clones."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone() if clone else value
    if isinstance(value, dict):
        rebuilt = {k: fresh(v, clone) for k, v in value.items()}
        return rebuilt if type(value) is dict else _as(value, rebuilt)
    if isinstance(value, tuple):
        items = [fresh(v, clone) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [fresh(v, clone) for v in value]
    import copy

    return copy.copy(value)


def _as(value: Any, rebuilt: dict[Any, Any]) -> Any:
    import copy

    out = copy.copy(value)
    try:
        out.update(rebuilt)
    except (TypeError, AttributeError):
        return copy.copy(value)
    return out


class _Clones:
    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __getitem__(self, index: int) -> Any:
        return fresh(self.batch, clone=True)

    def __len__(self) -> int:
        return 1 << 30


class _Zeros:
    def __iter__(self) -> Any:
        import itertools

        return itertools.repeat(0)

    def __len__(self) -> int:
        return 1 << 30


def _same(value: Any) -> Any:
    return value
