"""A training loop that carries a Change out as the probe does, small enough to read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils.data import DataLoader

from fasttrain_doctor.tuners.fixes import Change

Loss = Callable[[Any, Any], torch.Tensor]


def train(
    change: Change,
    model: torch.nn.Module,
    optimizers: tuple[Any, ...],
    loader: DataLoader[Any],
    loss: Loss,
    steps: int,
    accumulate: int = 1,
    between: Callable[[], None] = lambda: None,
) -> list[float]:
    """Train for some steps with ``change`` switched on; returns each step's losses, and undoes the change."""
    settings: dict[str, Any] = {"num_workers": loader.num_workers} | dict(change.loader)
    dataset = change.dataset(loader) if change.dataset is not None else None
    view = DataLoader(loader.dataset if dataset is None else dataset, loader.batch_size, **settings)
    source: Callable[[], Any] = iter(view).__next__
    fetch = change.batches(source) if change.batches is not None else source
    undo: list[Callable[[], None] | None] = [change.model(model)] if change.model is not None else []
    losses = []
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for _ in range(accumulate):
            with ExitStack() as context:
                batch = fetch()
                if change.forward is not None:
                    context.enter_context(change.forward(model))
                root = loss(model, batch)
            losses.append(float(root.detach()))
            if change.backward is not None:
                # An optimizer is known once it has stepped.
                change.backward(torch.autograd.backward, root, optimizers if step else ())
            else:
                root.backward()
        between()
        for optimizer in optimizers:
            if change.optimizer is not None and step == 0:
                undo.append(change.optimizer(optimizer))
            if change.step is not None:
                change.step(optimizer.step, optimizer)
            else:
                optimizer.step()
    for put_back in undo:
        if put_back is not None:
            put_back()
    if change.close is not None:
        change.close()
    return losses
