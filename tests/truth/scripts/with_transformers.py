"""Hugging Face's Trainer over a planted model and planted samples. Never ends by itself.

with_transformers.py FOLDER FAMILY WORKERS
"""

from __future__ import annotations

import sys

import models
import planting
import torch
from planting import Stopwatch, collate, plant
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

FOLDER, WORKERS = sys.argv[1], int(sys.argv[3])
BATCH = 8
watch = Stopwatch()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = models.mlp(128, 768, 24)

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def collated(samples):
    x, y = collate(samples)
    return {"x": x, "labels": y}


class After(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        watch.step()
        for part in ("sync", "checkpoint", "logging", "gc", "python"):
            plant(part)


def main():
    torch.manual_seed(0)
    planting.begin(FOLDER, BATCH, WORKERS)
    planting.stand_in_for_a_device()
    args = TrainingArguments(
        output_dir=f"{FOLDER}/out", max_steps=10**6, per_device_train_batch_size=BATCH, use_cpu=True, report_to=[],
        logging_strategy="no", save_strategy="no", dataloader_num_workers=WORKERS, max_grad_norm=0.0,
        disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    model = Model()
    opt = planting.PerParameter(model.parameters(), lr=1e-3)
    constant = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0)
    Trainer(
        model=model, args=args, data_collator=collated, train_dataset=models.Samples((24, 128)),
        optimizers=(opt, constant), callbacks=[After()],
    ).train()  # fmt: skip


main()
