"""Where the numbers in the pages of fixes come from: ``python -m tests.measure_fixes workers|fused|amp``.

Each arm runs in interleaved rounds; printed are the mean milliseconds per step of each arm's best half of rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from fasttrain_doctor.tuners.fixes import Change, all_fixes

ROUNDS = 6


class Waits(Dataset[torch.Tensor]):
    """Samples that each wait 4 ms, as for a disk or a network, and need no CPU."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.full((64,), float(index))


def report(arms: dict[str, Callable[[int], None]], steps: int) -> None:
    took: dict[str, list[float]] = {name: [] for name in arms}
    for run in arms.values():
        run(max(steps // 4, 2))
    for _ in range(ROUNDS):
        for name, run in arms.items():
            start = time.perf_counter()
            run(steps)
            took[name].append((time.perf_counter() - start) / steps)
    best = {name: sum(sorted(times)[: ROUNDS // 2]) / (ROUNDS // 2) for name, times in took.items()}
    base = next(iter(best.values()))
    for name, seconds in best.items():
        print(f"| {name} | {seconds * 1e3:.2f} | {base / seconds:.2f}x |")


def workers() -> None:
    """Batches of 16 samples of 4 ms and a small model, by number of workers."""
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for count in (0, 2, 8, 16, 24):
        change = all_fixes()["dataloader-workers"].install({"num_workers": count, "prefetch_factor": 2})
        batches = iter(DataLoader(Waits(), 16, **change.loader))
        for _ in range(3 + count * 4):
            next(batches)
        steps, start = 40 if count < 8 else 240, time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            model(next(batches)).sum().backward()
            optimizer.step()
        print(f"| {count} | {(time.perf_counter() - start) / steps * 1e3:.2f} |")
        del batches


def _steps(optimizer: Any) -> Callable[[int], None]:
    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.step()

    return run


def fused() -> None:
    """The step alone, on 100 tensors of 20,000 elements."""
    arms = {}
    for cls in (torch.optim.AdamW, torch.optim.SGD):
        for switched in (False, True):
            parameters = [torch.nn.Parameter(torch.randn(20_000)) for _ in range(100)]
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer = cls(parameters, 1e-3)
            change = all_fixes()["fused-optimizer"].install(True)
            if switched and change.optimizer is not None:
                change.optimizer(optimizer)
            arms[f"{cls.__name__}{', fused' if switched else ''}"] = _steps(optimizer)
    report(dict(list(arms.items())[:2]), 40)
    report(dict(list(arms.items())[2:]), 40)


def _forward(model: Any, x: torch.Tensor, change: Change) -> Callable[[int], None]:
    def run(steps: int) -> None:
        for _ in range(steps):
            with change.forward(model) if change.forward is not None else nullcontext():
                loss = model(x).square().mean()
            loss.backward()
            model.zero_grad()

    return run


def amp() -> None:
    """Forward and backward in bfloat16 on the CPU: wide layers, and narrow ones."""
    for width, batch in ((1024, 256), (64, 32)):
        layers: Iterable[Any] = (torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(4))
        model, x = torch.nn.Sequential(*layers), torch.randn(batch, width)
        with_amp = all_fixes()["amp"].install("bfloat16")
        arms = {f"width {width}": _forward(model, x, Change()), "bfloat16": _forward(model, x, with_amp)}
        report(arms, 10 if width > 100 else 200)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"workers": workers, "fused": fused, "amp": amp}[sys.argv[1]]()
