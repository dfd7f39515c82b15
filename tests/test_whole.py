"""The main job from end to end, as a user has it: diagnose, apply, run, enable."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from tests.conftest import Doctor

pytestmark = pytest.mark.alone  # beside other tests their load would be measured

# Sixteen samples wait 4 ms each in the main process; epochs are long enough for a whole search.
WAITING = """
import time, torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
class Points(Dataset):
    def __len__(self): return 9600
    def __getitem__(self, i):
        time.sleep(0.004)
        info = get_worker_info()
        return torch.randn(16), 0 if info is None else info.num_workers
model = torch.nn.Linear(16, 4)
opt = torch.optim.SGD(model.parameters(), 1e-2)
for epoch in range(20):
    for step, (x, workers) in enumerate(DataLoader(Points(), batch_size=16, shuffle=True)):
        loss = model(x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if step >= LIMIT: break
    print("epoch", epoch, "workers", int(workers[0]), flush=True)
    if LIMIT < 999: break
"""


def test_a_gain_is_found_confirmed_written_and_trained_with(doctor: Doctor) -> None:
    result = doctor(
        WAITING.replace("LIMIT", "999"), options=("--budget", "80s", "--max-workers", "12", "--quiet"), timeout=170
    )
    assert result.code == 0, result.stderr
    diagnosis = result.diagnosis
    assert diagnosis.status == "complete", diagnosis.degraded
    assert diagnosis.findings[0].rule == "input-wait-io"
    assert diagnosis.tuned is not None, (diagnosis.candidate, result.stdout)
    assert diagnosis.tuned.speedup.low > 3
    assert diagnosis.tuned.effect == "reseeded"  # the samples draw random numbers where they are made
    workers = diagnosis.tuned.settings["dataloader-workers"]["num_workers"]
    assert workers > 4
    assert result.run.tuned.exists()

    assert doctor.command("apply").code == 0
    config = tomllib.loads((doctor.folder / "fasttrain.toml").read_text())
    assert config["train.py"]["settings"]["dataloader-workers"]["value"]["num_workers"] == workers

    (doctor.folder / "train.py").write_text(WAITING.replace("LIMIT", "40"))
    plain = doctor.command("run", "train.py")
    assert plain.code == 0, plain.stderr
    assert f"workers {workers}" in plain.stdout
    assert re.search(rf"dataloader-workers: num_workers={workers}.* on .*DataLoader \(train.py:13\)", plain.stderr)

    enabled = "import fasttrain_doctor; fasttrain_doctor.enable()\n" + WAITING.replace("LIMIT", "40")
    (doctor.folder / "train.py").write_text(enabled)
    assert f"workers {workers}" in doctor.python("train.py").stdout


NOTHING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).bfloat16()
opt = torch.optim.SGD(model.parameters(), 1e-2, fused=True)
x = torch.randn(2048, 256, dtype=torch.bfloat16)
for step in range(4000):
    loss = model(x).float().pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


def test_nothing_to_gain_is_said_plainly(doctor: Doctor) -> None:
    result = doctor(NOTHING, options=("--budget", "60s", "--quiet", "--json"), timeout=120)
    assert result.code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["tuned"] is None
    assert told["loader"] is None
    assert "othing to gain" in told["verdict"] or "No proven gain" in told["verdict"], told["verdict"]
    assert doctor.command("apply").stdout.startswith("nothing to apply")
    assert not (doctor.folder / "fasttrain.toml").exists()
