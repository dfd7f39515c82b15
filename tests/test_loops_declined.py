"""What is not followed is named, with the reason; and what the user's source says of a loop."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from fasttrain_doctor.errors import UsageError
from fasttrain_doctor.loop_source import LoopStatement, no_loader, not_followed, training_loop
from fasttrain_doctor.target import parse_target
from tests.conftest import Doctor

REMOTE = """
    import torch
    import torch.distributed.rpc as rpc  # the training runs in processes that it calls
"""


def test_training_by_remote_calls_is_declined_by_name(doctor: Doctor) -> None:
    done = doctor(REMOTE)
    assert done.code == 3
    assert "remote procedure calls" in done.stderr
    assert "not followed" in done.stderr


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import torch.distributed.autograd as dist_autograd\n", "remote calls"),
        ("import torch.distributed.rpc as rpc\n", "remote procedure calls"),
        ("from torch.distributed import rpc\n", "remote procedure calls"),
        ("import torch\ntorch.distributed.rpc.init_rpc('a')\n", "remote procedure calls"),
        ("import torch\nloss.backward()\n", None),
        ("this is no Python\n", None),
    ],
)
def test_how_else_a_script_trains_is_told_by_its_imports(source: str, named: str | None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    said = not_followed(script)
    assert (said is None) if named is None else (named in (said or ""))


def test_a_notebook_is_declined_with_what_to_do(tmp_path: Path) -> None:
    book = tmp_path / "train.ipynb"
    book.write_text("{}")
    with pytest.raises(UsageError, match="nbconvert"):
        parse_target([str(book)])


@pytest.mark.parametrize(
    ("over", "named"),
    [
        ("MyLoader(files)", "MyLoader(files) (train.py:7)"),
        ("range(10)", "asks no loader"),
        ("enumerate(range(10))", "asks no loader"),
        ("tqdm(range(10))", "asks no loader"),
        ("enumerate(pipe)", "enumerate(pipe)"),
        (None, "asks no loader"),
    ],
)
def test_where_batches_come_from_without_a_loader_is_told_by_the_loop(over: str | None, named: str) -> None:
    assert named in no_loader(LoopStatement("/home/me/train.py", 7, 9, over))


SOURCE = """
def step(x):
    for group in groups:
        group.step()

def train(loader):
    for epoch in range(3):
        for x in loader:
            def closure():
                loss.backward()
            opt.step(closure)
        save()

while True:
    train(loader)
for i in range(3): once(i)
for x in made(
    one, two
):
    use(x)
"""


@pytest.mark.parametrize(
    ("stacks", "first"),
    [
        ([[11]], 8),  # in the loop over the loader
        ([[10, 11]], 8),  # a closure lies in it, and is called from there
        ([[12]], 7),  # after it, in the loop over epochs
        ([[4, 11], [11]], 8),  # the loop over groups holds only the one of them
        ([[15]], 14),
        ([[16]], 16),
        ([[18]], None),  # where the loop is begun it is not yet in it
        ([[20]], 17),
        ([[1]], None),
    ],
)
def test_the_loop_is_the_innermost_that_holds_what_trains(
    stacks: list[list[int]], first: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(SOURCE))
    found = training_loop([[(str(file), line) for line in stack] for stack in stacks])
    assert (None if found is None else found.first) == first


def test_a_file_that_is_gone_has_no_loop() -> None:
    assert training_loop([[("/nowhere/train.py", 3)]]) is None
