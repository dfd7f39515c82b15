"""What watching costs the watched: `make bench-overhead` prints the table.

Blocks of steps with our hooks and with torch's own functions put back alternate within one process, so that drift of the
machine cancels; the figure is the median difference of neighbouring blocks with its 95 % interval (of order statistics).
Workers swap by themselves, within one worker; a start and its memory are pairs of processes.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from fasttrain_doctor.environment import child_environment
from tests.hooks_swapped import Hooks

PAIRS = 60  # of blocks
BLOCK_SECONDS = 0.02
STARTS = 8  # pairs of processes


@dataclass(frozen=True)
class Cost:
    """A difference in seconds, with its interval, and what it is a part of."""

    mid: float
    low: float
    high: float
    base: float

    @property
    def share(self) -> float:
        return self.mid / self.base


def cost(with_hooks: Sequence[float], without: Sequence[float]) -> Cost:
    """Return the median difference of pairs; its 95 % interval is that of the sign test, which assumes no shape."""
    differences = sorted(a - b for a, b in zip(with_hooks, without, strict=True))
    n = len(differences)
    reach = round(0.98 * n**0.5)  # 1.96 standard deviations of a binomial's sqrt(n) / 2
    middle = n // 2
    low, high = differences[max(0, middle - reach)], differences[min(n - 1, middle + reach)]
    return Cost(statistics.median(differences), low, high, statistics.median(without))


# -- loops: each returns what does one step ---------------------------------------------------------------------------


class Points(Dataset[tuple[torch.Tensor, int]]):
    """Points that cost next to nothing to make."""

    def __init__(self, size: int) -> None:
        self.x = torch.randn(size, 8)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i], i % 4


class Block(nn.Module):
    """Ten small modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Tanh() for _ in range(10)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Deep(nn.Module):
    """A root with 250 modules below it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 4)
        self.body = nn.Sequential(*(nn.Tanh() for _ in range(248)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.first(x))


Step = Callable[[], Any]


def train(net: Callable[[torch.Tensor], torch.Tensor], parameters: Any, batches: Iterator[Any]) -> Step:
    """Return a plain training step."""
    optimizer = torch.optim.SGD(parameters, 0.01)

    def step() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def made(size: int = 16) -> Iterator[Any]:
    return itertools.repeat((torch.randn(size, 8), torch.arange(size) % 4))


def loaded(size: int = 16) -> Iterator[Any]:
    loader = DataLoader(Points(65536), batch_size=size)
    return itertools.chain.from_iterable(iter(loader) for _ in itertools.count())


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def tiny() -> Step:
    net = small()
    return train(net, net.parameters(), made())


def with_loader() -> Step:
    net = small()
    return train(net, net.parameters(), loaded())


def deep() -> Step:
    net = Deep()
    return train(net, net.parameters(), loaded(4))


def many_classes() -> Step:
    """250 modules of 25 classes, each of which the loop calls by itself; their layers are of a class it calls as well."""
    classes = [type(f"Block{i}", (Block,), {}) for i in range(22)]
    parts = [nn.Linear(8, 4), nn.Tanh(), nn.Sequential(nn.Identity()), *(cls() for cls in classes)]

    def net(x: torch.Tensor) -> torch.Tensor:
        for part in parts:
            x = part(x)
        return x

    return train(net, parts[0].parameters(), loaded(4))


def five_ms() -> Step:
    net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(12)))
    x, y = torch.randn(512, 256), torch.arange(512) % 4
    return train(net, net.parameters(), ((x, y) for _ in loaded(64)))


def gan() -> Step:
    """Two models, two optimizers, three forwards, two backwards."""
    generator, critic = small(), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    of_generator = torch.optim.Adam(generator.parameters(), 1e-4)
    of_critic = torch.optim.Adam(critic.parameters(), 1e-4)
    batches = loaded()

    def step() -> None:
        x, _ = next(batches)
        fake = generator(x)
        of_critic.zero_grad()
        (critic(fake.detach()).mean() - critic(x[:, :4]).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()

    return step


LOOPS: dict[str, Callable[[], Step]] = {
    "no loader, small step": tiny,
    "loader in the process": with_loader,
    "250 modules, one root": deep,
    "250 modules, 25 called by the loop": many_classes,
    "two optimizers (GAN)": gan,
    "about 5 ms": five_ms,
}


def measure(hooks: Hooks, step: Step) -> tuple[Cost, Cost]:
    """Alternate blocks of steps with and without hooks, each pair in the other order: wall time, and the thread's CPU."""
    hooks.on()
    for _ in range(8):  # every class is hooked until three updates have been seen
        step()
    hooks.settle()
    began = time.perf_counter()
    for _ in range(20):
        step()
    steps = max(2, round(BLOCK_SECONDS / ((time.perf_counter() - began) / 20)))
    wall: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(PAIRS):
        for watched in (True, False) if pair % 2 else (False, True):
            (hooks.on if watched else hooks.off)()
            step()
            began, computed = time.perf_counter(), time.thread_time()
            for _ in range(steps):
                step()
            cpu[watched].append((time.thread_time() - computed) / steps)
            wall[watched].append((time.perf_counter() - began) / steps)
    return cost(wall[True], wall[False]), cost(cpu[True], cpu[False])


# -- workers ----------------------------------------------------------------------------------------------------------


class Timed(Dataset[tuple[int, int]]):
    """In its worker, swaps hooks every ``BATCHES`` batches and tells when each batch was begun, on two clocks."""

    BATCHES = 16

    def __init__(self, hooks: Hooks, batch: int, batches: int) -> None:
        self.hooks, self.batch, self.batches = hooks, batch, batches

    def __len__(self) -> int:
        return self.batch * self.batches

    def __getitem__(self, i: int) -> tuple[int, int]:
        if i % self.batch:
            return 0, 0
        info = get_worker_info()
        own = i // self.batch // (info.num_workers if info else 1)
        if own % self.BATCHES == 0:
            (self.hooks.on if own // self.BATCHES % 2 else self.hooks.off)()
        return time.perf_counter_ns(), time.process_time_ns()


def in_workers(hooks: Hooks, batch: int) -> tuple[Cost, Cost]:
    """Return the cost per sample in two workers that never wait: wall time, and the worker's CPU."""
    hooks.on()
    blocks = PAIRS if batch < 64 else PAIRS // 4
    loader = DataLoader(Timed(hooks, batch, 4 * Timed.BATCHES * blocks), batch, num_workers=2, prefetch_factor=16)
    begun: tuple[list[list[int]], list[list[int]]] = ([], [])  # of each worker: both clocks by batch
    for number, clocks in enumerate(loader):
        begun[number % 2].append([int(c[0]) for c in clocks])
    found = []
    for clock in (0, 1):
        times: dict[bool, list[float]] = {True: [], False: []}
        for own in begun:
            for block in range(len(own) // Timed.BATCHES):
                part = [both[clock] for both in own[block * Timed.BATCHES + 1 : (block + 1) * Timed.BATCHES]]
                took = [b - a for a, b in itertools.pairwise(part)]
                times[bool(block % 2)].append(statistics.median(took) / batch / 1e9)
        count = min(len(t) for t in times.values())
        found.append(cost(times[True][:count], times[False][:count]))
    return found[0], found[1]


# -- a start, and its memory ------------------------------------------------------------------------------------------

FIVE_STEPS = """
import torch
net = torch.nn.Linear(8, 4); optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(5):
    optimizer.zero_grad(); net(torch.ones(2, 8)).sum().backward(); optimizer.step()
import os; print(sum(os.times()[:2]))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


def starts(folder: Path) -> tuple[Cost, Cost, Cost]:
    """Return the cost of a start in seconds, in seconds of CPU, and in bytes of resident memory after it."""
    watched_env = child_environment(os.environ, token="bench", probe_dir=folder)
    watched_env["FASTTRAIN_DOCTOR_GUARD"] = str(folder)
    columns: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    for pair in range(STARTS + 1):
        for watched in (True, False) if pair % 2 else (False, True):
            began = time.perf_counter()
            child = subprocess.Popen(
                [sys.executable, "-c", FIVE_STEPS], env=watched_env if watched else None, stdout=subprocess.PIPE
            )
            said = child.communicate()[0]
            took = time.perf_counter() - began
            cpu, kilobytes = map(float, said.split())
            if pair:  # the first pair fills the page cache
                columns[watched].append((took, cpu, 1024 * kilobytes))
    with_hooks, without = (list(zip(*columns[watched], strict=True)) for watched in (True, False))
    seconds, computed, memory = (cost(a, b) for a, b in zip(with_hooks, without, strict=True))
    return seconds, computed, memory


def line(name: str, found: Cost, unit: float, word: str) -> str:
    return (
        f"{name:<38}{found.base / unit:>10.1f}{found.mid / unit:>9.2f} {word}"
        f"  ({found.low / unit:.2f} to {found.high / unit:.2f})  {100 * found.share:.2f} %"
    )


def main(chosen: Sequence[str]) -> None:
    """Print a line per loop, per batch size in workers, and for a start."""
    torch.set_num_threads(1)
    print(f"{'':<38}{'alone':>10}{'watched':>10}")
    with tempfile.TemporaryDirectory() as folder:
        hooks = Hooks(folder)
        for name, loop in LOOPS.items():
            if not chosen or any(c in name for c in chosen):
                hooks.fresh()
                wall, cpu = measure(hooks, loop())
                print(line(f"{name}, a step", wall, 1e-6, "us"), flush=True)
                print(line("  of it the thread's CPU", cpu, 1e-6, "us"), flush=True)
        for batch in (1, 16, 256):
            name = f"2 workers, batch of {batch}, a sample"
            if not chosen or any(c in name for c in chosen):
                hooks.fresh()
                wall, cpu = in_workers(hooks, batch)
                print(line(name, wall, 1e-6, "us"), flush=True)
                print(line("  of it the worker's CPU", cpu, 1e-6, "us"), flush=True)
        if not chosen or "start" in chosen:
            seconds, computed, memory = starts(Path(folder))
            print(line("a start and five steps", seconds, 1.0, "s"), flush=True)
            print(line("  of it CPU", computed, 1.0, "s"), flush=True)
            print(line("memory after it", memory, 1e6, "MB"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
