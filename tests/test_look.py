"""A look inside real scripts: where a sample's time goes, what is waited for, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fasttrain_doctor.evidence import HotLine, Look
from fasttrain_doctor.gather import understand
from fasttrain_doctor.launch import Streams, parse_target
from fasttrain_doctor.look import Waits, look_of, looked, pending, waits_of
from fasttrain_doctor.recorded import Recorded, read_probe
from fasttrain_doctor.tuners.session import Session, Setup

from .conftest import environment

pytestmark = pytest.mark.alone

HEAD = """
import json, os, pickle, sys, threading, time, torch
from concurrent.futures import ThreadPoolExecutor
from torch import nn
from torch.utils.data import DataLoader, Dataset

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def train(batches, told=lambda: {}):
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step, x in enumerate(batches):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if told() is not None:
            with open("told.jsonl", "a") as f:
                f.write(json.dumps({"step": step + 1, **told()}) + "\\n")

def forever(loader):
    while True:
        yield from loader
"""

# Transforms that know how long they took, in every form a pipeline has.
OWN = """
from torchvision.transforms import v2

spent = {}
def note(name, began):
    seconds, calls = spent.get(name, (0, 0))
    spent[name] = seconds + time.perf_counter() - began, calls + 1

def flip(x):
    began = time.perf_counter(); burn(0.002); note("flip", began)
    return x

class Crop:
    def __call__(self, x):
        began = time.perf_counter(); time.sleep(0.002); note("Crop", began)
        return x

class Noise(nn.Module):
    def forward(self, x):
        began = time.perf_counter(); burn(0.001); note("Noise", began)
        return x

class Images(Dataset):
    def __init__(self):
        self.transform = v2.Compose([Noise(), Crop()])
        self.augment = [flip, v2.Identity()]
    def __len__(self):
        return 100_000
    def __getitem__(self, i):
        for name in ("train.py", __file__):
            with open(name, "rb") as f:
                f.read(1000)
        x = torch.ones(8)
        burn(0.004)  # hot
        for each in self.augment:
            x = each(x)
        return self.transform(x)
"""

MAIN_PROCESS = (
    HEAD
    + OWN
    + """
images = Images()
call, before = Crop.__call__, pickle.dumps(images)

def told():
    return {
        "spent": spent,
        "same": Crop.__call__ is call and "__call__" not in vars(Noise) and pickle.dumps(images) == before,
        "interval": sys.getswitchinterval(),
        "threads": threading.active_count(),
    }

train(DataLoader(images, batch_size=2), told)
"""
)

SPAWNED = (
    HEAD
    + OWN
    + """
if __name__ == "__main__":
    train(DataLoader(Images(), batch_size=2, num_workers=2, multiprocessing_context="spawn"), lambda: None)
"""
)

# Epochs so short that workers come and go within the look; in each a thread holds a lock, another pool decodes.
WAITING = (
    HEAD
    + """
lock = threading.Lock()
pools = []

def decoded(i):
    burn(0.004)  # decoding
    return torch.ones(8)

def hold():
    while True:
        with lock:
            time.sleep(0.02)
        time.sleep(0.001)

class Waits(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, i):
        if not pools:
            pools.append(ThreadPoolExecutor(1))
            threading.Thread(target=hold, daemon=True).start()
        with lock:  # held
            pass
        return pools[0].submit(decoded, i).result()

train(forever(DataLoader(Waits(), batch_size=2, num_workers=2)), lambda: None)
"""
)

NO_LOADER = (
    HEAD
    + """
def metrics():
    burn(0.004)  # hot

def batches():
    while True:
        yield torch.ones(4, 8)

train(batches(), lambda: metrics())
"""
)


@dataclass(frozen=True)
class Seen:
    """What a look showed, and the script's own account of itself."""

    look: Look
    waits: Waits
    recorded: Recorded
    answer: dict[str, Any]
    told: list[dict[str, Any]]
    lines: list[str]

    def line(self, mark: str) -> int:
        """The number of the script's line that ends in a mark."""
        return next(i for i, text in enumerate(self.lines, 1) if text.endswith(f"# {mark}"))

    def hottest(self, lines: tuple[HotLine, ...]) -> str:
        return self.lines[lines[0].line - 1]


def look_into(script: str, folder: Path) -> Seen:
    """Run a script, observe it, look inside, and observe it again."""
    (folder / "train.py").write_text(script)
    run_dir = folder / "run"
    probe = run_dir / "probe"
    probe.mkdir(parents=True)
    streams = Streams(run_dir / "out", run_dir / "err", terminals=(False, False, False))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        session = stack.enter_context(
            Session(Setup(parse_target(["train.py"]), run_dir, probe, streams, environment(None)))
        )
        assert session.hello(60) is not None, (run_dir / "err").read_text()
        session.ask({"do": "observe", "steps": 12, "seconds": 0}, 60)
        watched = understand(read_probe(probe))
        answer = session.ask({"do": "look", "steps": 20, "seconds": 1.5}, 60)
        deadline = time.monotonic() + 10
        while pending(read_probe(probe)) and time.monotonic() < deadline:
            time.sleep(0.05)
        recorded = read_probe(probe)
        session.ask({"do": "observe", "steps": 3, "seconds": 0}, 60)
        session.stop()
    assert watched is not None
    assert "failed" not in answer, answer
    assert not recorded.degraded()
    facts = looked(recorded, watched)
    steps = int(answer["steps"])
    told = folder / "told.jsonl"
    return Seen(
        look=look_of(facts, steps, watched.breakdown.samples_per_step),
        waits=waits_of(facts, steps),
        recorded=recorded,
        answer=answer,
        told=[json.loads(line) for line in told.read_text().splitlines()] if told.exists() else [],
        lines=script.splitlines(),
    )


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return look_into(MAIN_PROCESS, tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def spawned(tmp_path_factory):
    return look_into(SPAWNED, tmp_path_factory.mktemp("spawned"))


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    return look_into(WAITING, tmp_path_factory.mktemp("waiting"))


@pytest.mark.parametrize("where", ["own", "spawned"])
def test_the_hottest_line_of_getitem_is_named_in_the_main_process_and_in_workers(where, request):
    seen = request.getfixturevalue(where)
    called = [line for line in seen.look.item_lines if line.function == "burn"]
    assert called, "the hottest line is where the time goes: in what __getitem__ calls"
    assert seen.look.item_lines[0].function == "burn"
    assert seen.look.item_lines[0].file.endswith("train.py")


@pytest.mark.parametrize("where", ["own", "spawned"])
def test_every_form_of_transform_is_timed_by_its_own_name_in_the_order_of_calls(where, request):
    seen = request.getfixturevalue(where)
    assert seen.look.transforms is not None
    names = [name for name, _ in seen.look.transforms]
    assert names == [
        "__main__.flip",
        "torchvision.transforms.v2._misc.Identity",
        "__main__.Noise",
        "__main__.Crop",
    ]
    least = dict(seen.look.transforms)
    assert least["__main__.flip"] >= 0.002
    assert least["__main__.Crop"] >= 0.002
    assert least["torchvision.transforms.v2._misc.Identity"] < 0.001


def test_transforms_take_what_they_say_they_take(own):
    last = int(own.answer["updates"])
    first = last - int(own.answer["steps"])
    at = {entry["step"]: entry["spent"] for entry in own.told}
    timed = dict(own.look.transforms)
    for name in ("flip", "Crop", "Noise"):
        seconds, calls = (b - a for a, b in zip(at[first][name], at[last][name], strict=True))
        assert timed[f"__main__.{name}"] == pytest.approx(seconds / calls, rel=0.15)


def test_what_a_sample_takes_is_split_into_stages(own):
    stages = own.look.stages
    assert stages["transform"] >= 0.0027, "2 ms and 1 ms of computing, less what samples say was not theirs"
    assert stages["item"] >= 0.0036, "of 4 ms"
    assert stages["read"] >= 0.001, "a sleep stands for a slow disk"
    assert stages["decode"] == 0


@pytest.mark.parametrize("where", ["own", "spawned"])
def test_files_opened_and_bytes_read_are_counted_per_sample(where, request):
    look = request.getfixturevalue(where).look
    assert look.opens == pytest.approx(2, abs=0.2)
    assert look.read_bytes == pytest.approx(2000, rel=5), "a file is buffered, and its beginning read twice"
    assert look.read_calls >= 2


def test_nothing_is_left_of_the_look(own):
    assert own.told[0] == own.told[0] | {"same": True}
    last = own.told[-1]
    assert last["same"], "the data set pickles as before, and its transforms' classes have their own calls"
    assert last["interval"] == own.told[0]["interval"]
    assert {entry["threads"] for entry in own.told} == {1}, "the sampler is no thread of the script's"


def test_a_lock_that_another_thread_holds_is_told_from_a_pool_that_decodes(waiting):
    assert waiting.look.samples > 20, "workers that come and go within the look are counted"
    assert waiting.look.lock_place.endswith(f"train.py:{waiting.line('held')}")
    assert waiting.look.stages["decode"] >= 0.003
    assert waiting.waits.lock > 0.1
    assert 0.1 < waiting.look.blocked_on_lock < 0.95
    assert any(line.line == waiting.line("held") for line in waiting.look.item_lines)


def test_a_script_without_a_loader_has_the_hot_lines_of_its_loop(tmp_path):
    seen = look_into(NO_LOADER, tmp_path)
    assert seen.look.samples == 0
    assert seen.look.transforms is None
    assert set(seen.look.stages.values()) == {None}
    assert seen.look.loop_lines[0].function == "burn"
    assert seen.look.loop_lines[0].seconds >= 0.003, "of 4 ms"
