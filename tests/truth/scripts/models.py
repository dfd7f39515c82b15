"""Models and samples of the planted scripts: a few milliseconds of real computing a step. ``FAMILIES`` holds them all."""

from __future__ import annotations

import planting
import torch
from planting import Planted
from torch import nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Samples(Dataset):
    """Endless: no epoch ends while it is measured."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.x = torch.ones(shape)
        self.transform = planting.augment

    def __len__(self) -> int:
        return 1 << 17

    def __getitem__(self, i: int):
        return planting.sample(self.x, i, self.transform)


class Stream(IterableDataset):
    """The same as a stream, split among workers."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.x = torch.ones(shape)
        self.transform = planting.augment

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, 1 << 40, step):
            yield planting.sample(self.x, i, self.transform)


class Tokens(nn.Module):
    """A small transformer over the rows of its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).mean(1)


def mlp(inputs: int, width: int, rows: int = 1) -> Planted:
    """Two wide layers over each of a sample's ``rows``, and a head."""
    body = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Flatten())
    return Planted(body, nn.Linear(width * rows, 4))


def cnn() -> Planted:
    """Two convolutions and a head."""
    body = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3, stride=2), nn.ReLU(), nn.Flatten())
    return Planted(body, nn.LazyLinear(4))


def transformer() -> Planted:
    """Two encoder layers and a head."""
    return Planted(Tokens(112), nn.Linear(112, 4))


# Model and shape of a sample.
FAMILIES = {
    "map": (lambda: mlp(128, 768, 24), (24, 128)),
    "iterable": (lambda: mlp(128, 768, 24), (24, 128)),
    "cnn": (cnn, (3, 48, 48)),
    "transformer": (transformer, (40, 112)),
    "tabular": (lambda: mlp(64, 768), (64,)),
}
