"""A plain loop over one family of data and model, with everything that can be planted in it. Never ends by itself.

plain.py FOLDER FAMILY WORKERS
"""

from __future__ import annotations

import sys

import models
import planting
import torch
from planting import Stopwatch, collate, noted, plant, planted, queued
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER, FAMILY, WORKERS = sys.argv[1], sys.argv[2], int(sys.argv[3])
BATCH = 8
ROWS = 192  # in a batch of the tabular family


def in_memory():
    """Batches of rows cut from tensors, as loops without a loader make them."""
    rows, at = torch.randn(64 * ROWS, 64), 0
    while True:
        for place in ("read", "decode", "pool", "lock", "transform"):
            plant(place)
        at = (at + ROWS) % len(rows)
        yield rows[at : at + ROWS], torch.arange(ROWS) % 4


def evaluate(net, held_out):
    """Two batches without gradients, with what is planted between them: all of it is the evaluation."""
    t0, q0, c0 = planting.time.perf_counter(), queued(), planting.time.thread_time()
    net.eval()
    with torch.no_grad():
        for i, (x, _) in enumerate(held_out):
            net(x)
            if not i:
                plant("eval", whole=True)
    net.train()
    noted("eval", t0, q0, c0)


def main():
    torch.manual_seed(0)
    planting.begin(FOLDER, BATCH, WORKERS)
    planting.stand_in_for_a_device()
    made, shape = models.FAMILIES[FAMILY]
    net = made()
    net(torch.ones(1, *shape))  # sizes what is lazy
    if FAMILY == "tabular":
        batches = in_memory()
    else:
        data = models.Stream(shape) if FAMILY == "iterable" else models.Samples(shape)
        batches = iter(DataLoader(data, batch_size=BATCH, num_workers=WORKERS, collate_fn=collate))
    opt = planting.PerParameter(net.parameters(), lr=1e-3)
    held_out = DataLoader(TensorDataset(torch.ones(2, *shape), torch.zeros(2)), batch_size=1)
    watch = Stopwatch()
    while True:
        watch.step()
        x, y = next(batches)
        watch.lap("data")
        opt.zero_grad()
        watch.lap("optimizer")
        loss = nn.functional.cross_entropy(net(x), y)
        watch.lap("forward")
        loss.backward()
        watch.lap("backward")
        opt.step()
        watch.lap("optimizer")
        for part in ("sync", "checkpoint", "logging", "gc", "python"):
            plant(part)
            watch.lap(part)
        if planted("eval"):
            evaluate(net, held_out)
            watch.lap("eval")


main()
