"""Lightning's Trainer over a planted model and planted samples. Never ends by itself.

with_lightning.py FOLDER FAMILY WORKERS
"""

from __future__ import annotations

import sys

import lightning
import models
import planting
import torch
from planting import Stopwatch, collate, plant
from torch import nn
from torch.utils.data import DataLoader

FOLDER, WORKERS = sys.argv[1], int(sys.argv[3])
BATCH = 8
watch = Stopwatch()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = models.mlp(128, 768, 24)

    def training_step(self, batch, i):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return planting.PerParameter(self.net.parameters(), lr=1e-3)


class After(lightning.Callback):
    def on_train_batch_end(self, *args):
        watch.step()
        for part in ("sync", "checkpoint", "logging", "gc", "python"):
            plant(part)


def main():
    torch.manual_seed(0)
    planting.begin(FOLDER, BATCH, WORKERS)
    planting.stand_in_for_a_device()
    trainer = lightning.Trainer(
        max_epochs=1000, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[After()],
    )  # fmt: skip
    trainer.fit(
        Module(), DataLoader(models.Samples((24, 128)), batch_size=BATCH, num_workers=WORKERS, collate_fn=collate)
    )


main()
