"""What public training scripts brought to light, each in a few lines of its shape."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from pathlib import Path

import pytest

from fasttrain_doctor import api
from fasttrain_doctor.evidence import Effect, Phase
from fasttrain_doctor.launch import Streams, child_environment, parse_target
from fasttrain_doctor.reports.json import dumps
from fasttrain_doctor.reports.sentence import again
from fasttrain_doctor.run import create_run
from fasttrain_doctor.tuners.session import Session, Setup
from fasttrain_doctor.tuners.space import space
from tests.conftest import environment
from tests.sample_success import SUCCESS
from tests.simulated import Work, catalogue, evidence
from tests.watched import HEAD, assert_sums, watch

SGD = HEAD + "\nnet = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Start a script and wait at its first border; returns its session and the file of its standard error."""
    monkeypatch.chdir(tmp_path)
    sessions = []

    def start(script, env=None):
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        probe = tmp_path / "run" / "probe"
        probe.mkdir(parents=True)
        streams = Streams(tmp_path / "run" / "out", tmp_path / "run" / "err", terminals=(False, False, False))
        found = Session(Setup(parse_target(["train.py"]), tmp_path / "run", probe, streams, environment(env)))
        sessions.append(found)
        found.__enter__()
        assert found.hello(60) is not None
        return found, tmp_path / "run" / "err"

    yield start
    for found in sessions:
        found.stop()


def test_what_an_update_by_hand_costs_is_not_called_data(tmp_path):
    """The word language model's loop: gradients are clipped and applied by hand before the next batch is sliced."""
    seen = watch(
        HEAD
        + """
net = Net()
data = torch.randn(64, 8)
for i in range(24):
    x, y = data[i:i + 4], torch.arange(4)
    net.zero_grad()
    loss_of(net(x), y).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.25)
    time.sleep(0.004)
    for p in net.parameters(): p.data.add_(p.grad, alpha=-0.1)
""",
        tmp_path,
    )
    assert seen.breakdown.found_by == "update"
    assert seen.breakdown.data is not None
    assert seen.breakdown.data < 0.002
    assert seen.phase(Phase.OPTIMIZER) > 0
    assert seen.phase(Phase.OTHER) > 0.004
    assert_sums(seen.breakdown)


@pytest.mark.parametrize("batches", ["loader", "made"])
def test_an_evaluation_without_a_loader_is_no_part_of_a_blocks_steps(session, batches):
    """nanoGPT estimates its loss and minGPT samples between two steps: no arm may be charged with it."""
    asked = "loader = iter(DataLoader(Points(4000), batch_size=4))" if batches == "loader" else ""
    batch = "next(loader)" if batches == "loader" else "(torch.randn(4, 8), torch.arange(4))"
    found, _ = session(
        SGD
        + f"""
{asked}
for i in range(900):
    x, y = {batch}
    opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
    if i % 10 == 9:
        net.eval()
        with torch.no_grad():
            for _ in range(5): net(torch.randn(4, 8)); time.sleep(0.1)
        net.train()
"""
    )
    found.ask({"do": "observe", "steps": 5, "seconds": 0}, 30)
    answer = found.ask({"do": "run", "steps": 40, "seconds": 0, "warm": 0}, 60)
    assert answer["steps"] == 40
    assert sorted(answer["step_seconds"])[-3] < 0.3  # three evaluations of half a second, and a noisy machine


def test_batches_that_another_thread_fetches_are_not_taken_over(session):
    """The thread was in the middle of an arm's queue when that arm was closed, died of it, and the loop waited for ever."""
    found, errors = session(
        SGD
        + """
import queue, threading
ready = queue.Queue(3)
def fill():
    while True:
        for batch in DataLoader(Points(80), batch_size=4): ready.put(batch)
threading.Thread(target=fill, daemon=True).start()
for _ in range(100_000):
    x, y = ready.get()
    opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
"""
    )
    found.ask({"do": "observe", "steps": 8, "seconds": 0}, 30)
    block = {"do": "block", "arm": "a", "plan": {}, "seconds": 30, "warm": 1, "steps": 50}
    refused = found.ask({**block, "arm": "r", "replay": "ready"}, 30)
    assert "own thread" in refused["failed"]
    for _ in range(3):
        assert found.ask({**block, "replay": None}, 30)["steps"] == 50
    found.stop()
    assert "Error" not in errors.read_text()


def test_a_warning_is_never_about_our_own_iterators(session):
    found, errors = session(
        SGD
        + """
for _ in range(50):
    for x, y in DataLoader(Points(80), batch_size=4, num_workers=1, pin_memory=True):
        opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
"""
    )
    block = {"do": "block", "arm": "a", "plan": {}, "replay": None, "seconds": 30, "warm": 1}
    assert found.ask({**block, "steps": 50}, 60)["steps"] == 50  # over two of its epochs
    found.stop()
    assert "doctor" not in errors.read_text()


def test_killed_workers_leave_no_folder_behind(session, request):
    """Each worker makes one for the sockets over which it passes tensors; hundreds were left in /tmp."""
    # A short path: a socket's has 107 bytes at most, and where it would need more no batch is ever passed.
    scratch = Path(tempfile.mkdtemp(prefix="ftd-"))
    request.addfinalizer(lambda: shutil.rmtree(scratch))
    found, _ = session(
        SGD
        + """
for _ in range(100):
    for x, y in DataLoader(Points(80), batch_size=4):
        opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
""",
        {"TMPDIR": str(scratch)},
    )
    plan = {"dataloader-workers": {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}}
    block = {"do": "block", "plan": plan, "replay": None, "seconds": 30, "warm": 4, "steps": 8}
    assert found.ask({**block, "arm": "a"}, 90)["done"] == "block"
    found.ask({"do": "close", "arm": "a"}, 30)
    assert found.ask({**block, "arm": "b"}, 90)["done"] == "block"
    found.stop()
    assert list(scratch.glob("pymp-*")) == []


def test_a_fix_that_no_finding_names_comes_after_one_with_more_to_gain():
    """Of a 2 % optimizer the fused one went first, as if all of the step were its to gain."""
    work = Work(compute=0.02)
    modest = {n: dataclasses.replace(f, expected=lambda *_: 1.02) for n, f in catalogue(work).items()}
    bounds = [c.bound for c in space(evidence(work), [], modest, allow=Effect.TRAINING).candidates]
    assert bounds
    assert max(bounds) == pytest.approx(1 - 1 / 1.02)


@pytest.mark.parametrize(
    ("own", "planned"),
    [
        ("num_workers=0", {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}),
        ("num_workers=1", {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}),
        ("num_workers=1, persistent_workers=True", {"num_workers": 0}),
        ("num_workers=1, persistent_workers=True", {"num_workers": 2, "persistent_workers": True}),
        ("num_workers=0, generator=torch.Generator()", {"num_workers": 1, "persistent_workers": True}),
        ("num_workers=1, persistent_workers=True, generator=torch.Generator()", {"num_workers": 0}),
    ],
)
def test_an_exact_plan_leaves_every_epoch_as_it_was(tmp_path, own, planned):
    """DCGAN's second epoch came in another order: workers that are kept draw no new base seed from the generator."""
    script = f"""
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(), nn.Linear(32, 4))
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(Points(24), batch_size=4, shuffle=True, {own})
        import warnings
        for _ in range(3):
            for x, y in loader:
                loss = loss_of(net(x / 24), y); opt.zero_grad(); loss.backward(); opt.step()
                warnings.warn("the script's own")
                print(loss.item().hex())
    """
    (tmp_path / "train.py").write_text(HEAD + textwrap.dedent(script))
    plan = {"dataloader-workers": planned}
    target = {"dataset": "__main__.Points", "sampler": "torch.utils.data.sampler.RandomSampler"}
    plain, tuned = (trained(tmp_path, wanted, target) for wanted in ({}, plan))
    assert len(plain.stdout.split()) == 18
    assert "not applied" not in tuned.stderr
    assert "dataloader-workers" in tuned.stderr
    assert tuned.stdout == plain.stdout
    own_words = [line for line in tuned.stderr.splitlines() if not line.startswith("fasttrain-doctor: ")]
    assert own_words == plain.stderr.splitlines()  # once for each place, as without us


def trained(folder, plan, target):
    """Train to the end under a plan as ``run`` does; without one, plainly."""
    env = dict(os.environ)
    if plan:
        (folder / "plan.json").write_text(json.dumps({"plan": plan, "loader": target}))
        env = child_environment(env, token="t", probe_dir=folder, socket=None, plan=folder / "plan.json", mode="run")
    return subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=True
    )


def test_what_is_applied_keeps_the_loaders_size_and_no_path_of_this_machine(tmp_path, monkeypatch):
    """Lightning's autoencoder reads training and validation alike: only their sizes tell the loaders apart."""
    monkeypatch.chdir(tmp_path)
    writer = create_run(tmp_path / "kept", "train.py")
    writer.diagnosis(dumps(SUCCESS))
    loader = {"dataset": "torch.utils.data.dataset.Subset", "dataset_length": 55000, "file": str(tmp_path / "train.py")}
    writer.plan({"plan": SUCCESS.tuned.settings, "loader": loader})
    table = tomllib.loads(api.apply(writer.run, dry_run=True))["train.py"]
    assert table["loader"] == {**loader, "file": "train.py"}


def test_the_command_to_go_on_with_names_an_interpreter_that_is_not_ours():
    ran = dataclasses.replace(SUCCESS, command=["/opt/env/bin/python", "train.py", "--epochs", "3"])
    assert again(ran) == "fasttrain-doctor diagnose --python /opt/env/bin/python train.py --epochs 3"
    ours = dataclasses.replace(ran, command=[sys.executable, "train.py"])
    assert again(ours) == "fasttrain-doctor diagnose train.py"
