"""A script driven through arms: what a block runs under, what comes back, and what ends a session."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fasttrain_doctor.launch import Streams, parse_target
from fasttrain_doctor.tuners.bench import ArmFailed, SessionEnded
from fasttrain_doctor.tuners.driven import Driven
from fasttrain_doctor.tuners.process import run_fresh
from fasttrain_doctor.tuners.session import Session, Setup
from tests.conftest import environment

WORKERS = {"dataloader-workers": {"num_workers": 3, "prefetch_factor": 2, "persistent_workers": True}}

# Each sample waits; the script writes down what it sees of the settings it runs under.
SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
class Points(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        time.sleep(0.008)
        info = get_worker_info()
        return torch.randn(8), 0 if info is None else info.num_workers
model = torch.nn.Linear(8, 2)
opt = torch.optim.Adam(model.parameters(), 1e-3)
seen = []
for epoch in range(EPOCHS):
    steps = 0
    for x, workers in DataLoader(Points(), batch_size=4, shuffle=True):
        out = model(x)
        seen.append((int(workers[0]), str(out.dtype), opt.param_groups[0]["fused"]))
        print(*seen[-1], flush=True)
        loss = out.float().pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        steps += 1
        EVERY_STEP
    assert steps == 16, steps
print("trained", flush=True)
"""


@contextmanager
def session(folder: Path, script: str = SCRIPT, epochs: int = 200, every: str = "pass") -> Iterator[Session]:
    """Run a script up to its first border."""
    text = textwrap.dedent(script).replace("EPOCHS", str(epochs)).replace("EVERY_STEP", every)
    (folder / "train.py").write_text(text)
    with Session(setup(folder)) as watched:
        assert watched.hello(60) is not None, (folder / "err").read_text()
        yield watched


def setup(folder: Path) -> Setup:
    probe = folder / f"probe{len(list(folder.glob('probe*')))}"
    probe.mkdir()
    command = parse_target([str(folder / "train.py")])
    run = folder / "run"
    run.mkdir(exist_ok=True)
    return Setup(command, run, probe, Streams(folder / "out", folder / "err"), environment())


def no_more(reason: str) -> Session:
    raise SessionEnded(reason)


def bench(watched: Session) -> Driven:
    return Driven(watched, no_more, 0, 4.0)


def settings_seen(folder: Path) -> list[str]:
    return (folder / "out").read_text().splitlines()


def test_a_block_trains_with_the_workers_of_its_plan_and_the_script_as_it_is_without(tmp_path: Path) -> None:
    with session(tmp_path) as watched:
        driven = bench(watched)
        base = driven.block({}, 8)
        tried = driven.block(WORKERS, 24)
        again = driven.block({}, 8)
    seen = [line.split()[0] for line in settings_seen(tmp_path)]
    assert seen[:2] == ["0", "0"]
    assert "3" in seen
    assert seen[-8:] == ["0"] * 8
    assert base.steps == again.steps == 8
    assert base.samples == 32
    # Three workers wait three times as much at once; a small part of that gain leaves room for a busy machine.
    assert base.seconds / base.steps > 1.2 * tried.seconds / tried.steps


def test_only_the_arm_in_use_has_running_workers(tmp_path: Path) -> None:
    with session(tmp_path) as watched:
        driven = bench(watched)
        driven.block(WORKERS, 8)
        driven.block({}, 4)
        states = [p.status() for p in psutil.Process(watched.child.pid).children() if p.status() != "zombie"]
    assert states.count("stopped") == 3, states


def test_an_epoch_keeps_its_length_while_arms_outlive_it(tmp_path: Path) -> None:
    with session(tmp_path) as watched:
        block = bench(watched).block(WORKERS, 50)  # the script asserts 16 steps an epoch
    assert block.steps == 50
    assert "AssertionError" not in (tmp_path / "err").read_text()


@pytest.mark.parametrize(("plan", "column", "expected"), [
    ({"amp": "bfloat16"}, 1, "torch.bfloat16"),
    ({"fused-optimizer": True}, 2, "True"),
])  # fmt: skip
def test_a_change_is_seen_inside_its_block_and_gone_after_it(
    tmp_path: Path, plan: dict[str, object], column: int, expected: str
) -> None:
    with session(tmp_path) as watched:
        driven = bench(watched)
        driven.block({}, 4)
        before = len(settings_seen(tmp_path))
        driven.block(plan, 6)  # type: ignore[arg-type]
        inside = settings_seen(tmp_path)[before:]
        driven.block({}, 4)
        after = settings_seen(tmp_path)[before + len(inside) :]
    assert expected in {line.split()[column] for line in inside[2:]}
    assert expected not in {line.split()[column] for line in after[1:]}


def test_replay_floors_are_far_below_a_step_that_waits(tmp_path: Path) -> None:
    with session(tmp_path) as watched:
        floor, why = bench(watched).floor(8)
    assert floor is not None, why
    assert floor.free is not None
    assert floor.baseline is not None
    assert floor.baseline >= 4 * 0.008
    assert floor.free < floor.baseline / 2


def test_a_script_that_fails_under_a_plan_fails_that_plan(tmp_path: Path) -> None:
    def again(_: str) -> Session:
        return renewed

    failing = "assert out.dtype != torch.bfloat16, 'no bf16 here'"
    with session(tmp_path, every=failing) as watched:
        renewed = Session(setup(tmp_path))
        with renewed:
            assert renewed.hello(60) is not None
            driven = Driven(watched, again, 0, None)
            with pytest.raises(ArmFailed, match="exit status 1"):
                driven.block({"amp": "bfloat16"}, 4)
            assert driven.block({}, 4).steps == 4


def test_workers_that_die_are_a_verdict_on_their_plan(tmp_path: Path) -> None:
    script = SCRIPT.replace("info = get_worker_info()", "info = get_worker_info(); info and __import__('os')._exit(1)")
    with session(tmp_path, script) as watched:
        driven = bench(watched)
        with pytest.raises(ArmFailed, match="worker"):
            driven.block(WORKERS, 8)
        assert driven.block({}, 4).steps == 4


def test_a_script_that_ends_by_itself_ends_the_session_and_its_stopped_workers(tmp_path: Path) -> None:
    with session(tmp_path, epochs=3) as watched:
        driven = bench(watched)
        driven.block(WORKERS, 4)
        driven.block({}, 4)
        with pytest.raises(SessionEnded, match="ended"):
            driven.block({}, 100)
        with pytest.raises(SessionEnded, match="ended"):  # and is as over for whoever asks again
            watched.ask({"do": "border"}, 5)
        assert watched.child.wait(30) == 0
        assert not [p for p in watched.child.processes() if p != watched.child.pid]
    assert settings_seen(tmp_path)[-1] == "trained"


def test_a_fresh_process_trains_with_its_plan_from_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("EPOCHS", "9").replace("EVERY_STEP", "pass"))
    loader = {"dataset": "__main__.Points", "sampler": "torch.utils.data.sampler.RandomSampler"}
    made = setup(tmp_path)
    fresh = run_fresh(
        Setup(made.command, made.run_dir, made.probe_dir, made.streams, made.env, plan=WORKERS, loader=loader, seed=1),
        count=40,
        warm=6,
        timeout=60,
    )
    assert len(fresh.steps) == 40
    assert len(fresh.losses) >= 46
    assert {line.split()[0] for line in settings_seen(tmp_path)} == {"3"}


def test_the_doctor_gone_stops_the_script(tmp_path: Path) -> None:
    with session(tmp_path) as watched:
        assert watched._line is not None
        watched._line.close()
        watched._line = None
        assert watched.child.wait(30) == 143
