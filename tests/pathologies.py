"""Training loops slowed by one known cause each, with a variant that is not. Prints which rules speak of each:

    python -m tests.truth --pathologies

What people reported about their own training, in miniature; a rule must name the slow variant and not the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.conftest import environment
from tests.watched import HEAD

LOOP = """
model = globals().get("model") or nn.Sequential(
    nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
opt = globals().get("opt") or torch.optim.SGD(model.parameters(), 0.01)
learn = globals().get("learn") or (lambda x, y: loss_of(model(x), y))
between = globals().get("between") or (lambda: None)
after = globals().get("after") or (lambda step: None)
def batches():
    while True: yield from loader
for step, (x, y) in enumerate(batches()):
    opt.zero_grad()
    learn(x, y).backward()
    between()
    opt.step()
    after(step)
    if step == STEPS: break
"""
PREAMBLE = """
class Items(Dataset):
    def __init__(self, make, n=4000): self.make, self.n = make, n
    def __len__(self): return self.n
    def __getitem__(self, i): return self.make(i)
def rows(n=4096, batch=64, **more): return DataLoader(TensorDataset(torch.randn(n, 64), torch.arange(n) % 4), batch, **more)
class Device(nn.Module):  # computes elsewhere, for so long
    def __init__(self, seconds): super().__init__(); self.seconds = seconds
    def forward(self, x): time.sleep(self.seconds); return x
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
"""


@dataclass(frozen=True)
class Pathology:
    """A loop in which ``SLOW`` makes the difference; ``rule`` must speak where it is set, and must not where it is not.

    ``rule`` is None where no rule may speak of the difference: the popular advice did not help. ``quick``: a few steps
    show it, without a look inside, also on a busy machine. ``needs`` are packages.
    """

    name: str
    rule: str | None
    body: str
    quick: bool = False
    needs: tuple[str, ...] = ()

    def script(self, slow: bool, steps: int) -> str:
        """The whole script."""
        return f"{HEAD}\nSLOW, STEPS = {slow}, {steps}\n{PREAMBLE}{textwrap.dedent(self.body)}{LOOP}"


PATHOLOGIES = [
    Pathology(
        "workers_zero_io_wait",
        "input-wait-io",
        """
        def late(i): time.sleep(0.001); return torch.ones(64), i % 4
        loader = DataLoader(Items(late), 8, num_workers=0 if SLOW else 2, persistent_workers=not SLOW)
        model = nn.Sequential(Device(0.04), nn.Linear(64, 4))
        """,
    ),
    Pathology(
        "too_many_workers_cpu_bound",
        "worker-contention",
        """
        def busy(i): burn(0.002 if SLOW else 0.0002); return torch.ones(64), i % 4
        loader = DataLoader(Items(busy), 8, num_workers=8 if SLOW else 1, persistent_workers=True)
        model = nn.Sequential(Device(0.005), nn.Linear(64, 4))
        """,
    ),
    Pathology(
        "workers_on_trivial_data",
        "worker-transfer",
        """
        loader = rows(6400, 8, num_workers=2 if SLOW else 0)
        """,
    ),
    Pathology(
        "no_persistent_workers_short_epochs",
        "epoch-restart",
        """
        loader = rows(64, 8, num_workers=2, persistent_workers=not SLOW)
        """,
    ),
    Pathology(
        "pandas_iloc_per_item",
        "input-wait-cpu",
        """
        import pandas as pd
        table = torch.randn(4000, 64); frame = pd.DataFrame(table.numpy()); frame["kind"] = "a"  # a row of it is made of objects
        def row(i): return (torch.tensor(frame.iloc[i].values[:64].astype("float32")) if SLOW else table[i]), i % 4
        loader = DataLoader(Items(row), 64)
        model = nn.Sequential(Device(0.02), nn.Linear(64, 4))
        """,
        needs=("pandas",),
    ),
    Pathology(
        "decode_large_jpeg",
        "input-wait-cpu",
        """
        import io
        from PIL import Image
        file = io.BytesIO(); Image.linear_gradient("L").convert("RGB").resize((1000, 800) if SLOW else (16, 16)).save(file, "JPEG")
        def picture(i):
            small = Image.open(io.BytesIO(file.getvalue())).convert("L").resize((8, 8))
            return torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).float(), i % 4
        loader = DataLoader(Items(picture), 4)
        model = nn.Sequential(Device(0.03), nn.Linear(64, 4))
        """,
        needs=("PIL",),
    ),
    Pathology(
        "anomaly_detection_left_on",
        "debug-mode-left-on",
        """
        torch.autograd.set_detect_anomaly(SLOW)
        loader = rows()
        model = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 4))
        """,
    ),
    Pathology(
        "unfused_optimizer_many_params",
        "slow-optimizer",
        """
        loader = rows()
        model = nn.Sequential(*[layer for _ in range(60) for layer in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 4))
        opt = torch.optim.AdamW(model.parameters(), foreach=False, fused=not SLOW)
        """,
        quick=True,
    ),
    Pathology(
        "gradient_clip_item_per_param",
        "host-work-in-loop",
        """
        loader = rows()
        model = nn.Sequential(*[layer for _ in range(60) for layer in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 4))
        opt = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
        def between():
            if not SLOW: return
            for _ in range(4):
                total = sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5
                for p in model.parameters(): p.grad.mul_(min(1.0, 1 / (total + 1e-6)))
        """,
    ),
    Pathology(
        "metric_every_step",
        "host-work-in-loop",
        """
        loader = rows()
        seen = torch.randint(0, 4, (3000,)).tolist()
        def after(step):
            if SLOW: [[sum(a == b == k for a, b in zip(seen, seen[1:]))] for k in range(4)]
        """,
    ),
    Pathology(
        "checkpoint_every_step",
        "checkpoint-stall",
        """
        import io
        loader = rows()
        model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4))
        def after(step):
            if SLOW or step % 1000 == 999: torch.save(model.state_dict(), io.BytesIO())
        """,
        quick=True,
    ),
    Pathology(
        "log_every_step",
        "logging-in-loop",
        """
        loader = rows()
        def after(step):
            if SLOW or step % 100 == 99: print(step, [p.abs().mean().item() for p in model.parameters() for _ in range(8)], model.state_dict())
        """,
        quick=True,
    ),
    Pathology(
        "validate_every_step",
        "eval-dominates",
        """
        loader = rows()
        held_out = rows(128, 64)
        def after(step):
            if not SLOW: return
            model.eval()
            with torch.no_grad():
                for x, y in held_out: loss_of(model(x), y)
            model.train()
        """,
        quick=True,
    ),
    Pathology(
        "explicit_gc_every_step",
        "gc-pauses",
        """
        import gc
        loader = rows()
        def after(step):
            if SLOW: gc.collect()
        """,
    ),
    Pathology(
        "gc_with_huge_python_list",
        "gc-pauses",
        """
        import gc
        keep = [{"i": [i]} for i in range(300_000)]; gc.collect(); gc.set_threshold(700, 10, 2)
        if not SLOW: gc.freeze()
        loader = rows()
        def after(step): made = [[{}] for _ in range(1000)]
        """,
    ),
    Pathology(
        "intraop_threads_oversubscribed",
        "thread-oversubscription",
        """
        torch.set_num_threads(16 if SLOW else 1)
        loader = rows(4000, 256)
        model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4))
        """,
    ),
    Pathology(
        "channels_last_missing",
        None,
        """
        layout = torch.contiguous_format if SLOW else torch.channels_last
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                            nn.Linear(16, 4)).to(memory_format=layout)
        pictures = torch.randn(16, 3, 24, 24).to(memory_format=layout)
        loader = rows(4096, 16)
        def learn(x, y): return loss_of(model(pictures), y)
        """,
    ),
]


@dataclass(frozen=True)
class Told:
    """The rules that spoke of one variant, largest loss first; ``step`` is its mean in seconds."""

    rules: tuple[str, ...]
    step: float


def diagnosed(case: Pathology, slow: bool) -> Told:
    """Diagnose one variant as a user would, without trials."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(case.script(slow, 10**6))
        words = ["diagnose", "--no-trials", "--json", "--quiet", "--budget", "60s", "train.py"]
        done = subprocess.run(
            [sys.executable, "-m", "fasttrain_doctor.cli", *words],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{case.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    return Told(tuple(f["rule"] for f in found["findings"]), found["step"]["mean"])


def right(case: Pathology, slow: Told, fast: Told) -> bool:
    """Whether the rule names the slow variant alone; without a rule, whether both draw the same."""
    if case.rule is None:
        return set(slow.rules) == set(fast.rules)
    return case.rule in slow.rules and case.rule not in fast.rules


def table(cases: Iterable[Pathology]) -> str:
    """Diagnose every case and return what was said of it as a markdown table."""
    lines = ["| case | ms per step, slow and fast | of the slow one | of the fast one | |", "|---|---|---|---|---|"]
    for case in cases:
        lacking = [name for name in case.needs if find_spec(name) is None]
        if lacking:
            print(f"skipped: {case.name} (no {', '.join(lacking)})", flush=True)
            continue
        slow, fast = diagnosed(case, slow=True), diagnosed(case, slow=False)
        cells = [", ".join(f"**{r}**" if r == case.rule else r for r in told.rules) for told in (slow, fast)]
        verdict = "" if right(case, slow, fast) else "missed"
        lines.append(
            f"| {case.name} | {slow.step * 1e3:.1f}, {fast.step * 1e3:.1f} | {' | '.join(cells)} | {verdict} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)
