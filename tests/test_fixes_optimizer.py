"""One pass over all parameters: the flag is observed, the update is the same, and it can be switched off again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from fasttrain_doctor.tuners.fixes import Change, all_fixes
from fasttrain_doctor.tuners.fixes.fused_optimizer import fuse
from tests.evidence_samples import evidence
from tests.fix_harness import train

FIX = all_fixes()["fused-optimizer"]
MAKERS: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def scene(make: Callable[[Any], Any]) -> tuple[torch.nn.Module, Any, DataLoader[Any]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return model, make(model.parameters()), DataLoader(torch.randn(80, 8), 8)  # type: ignore[arg-type]


def square(model: Any, batch: Any) -> torch.Tensor:
    result: torch.Tensor = model(batch).square().mean()
    return result


def flags(optimizer: Any) -> list[tuple[Any, Any]]:
    return [(group["fused"], group["foreach"]) for group in optimizer.param_groups]


@each
def test_the_training_is_the_same_but_for_rounding(make: Callable[[Any], Any]) -> None:
    losses = []
    for change in (Change(), FIX.install(True)):
        model, optimizer, loader = scene(make)
        seen: list[Any] = []
        optimizer.register_step_post_hook(lambda o, *_, seen=seen: seen.append(flags(o)[0][0]))
        losses.append(train(change, model, (optimizer,), loader, square, 8))
        assert seen == [True if change.optimizer else optimizer.param_groups[0]["fused"]] * 8
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@each
def test_on_and_off_between_blocks_leaves_it_as_the_script_made_it(make: Callable[[Any], Any]) -> None:
    model, optimizer, loader = scene(make)
    before, defaults = flags(optimizer), dict(optimizer.defaults)
    for change in (Change(), FIX.install(True), Change(), FIX.install(True), Change()):
        train(change, model, (optimizer,), loader, square, 2)
        assert flags(optimizer) == before
        assert optimizer.defaults == defaults
    steps = [state["step"] for state in optimizer.state.values() if "step" in state]
    assert all(step == 10 and step.device.type == "cpu" for step in steps)


def test_groups_added_meanwhile_are_put_back_too() -> None:
    _, optimizer, _ = scene(MAKERS["AdamW"])
    undo = fuse(optimizer)
    assert undo is not None
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    assert flags(optimizer) == [(True, False)] * 2
    undo()
    assert flags(optimizer) == [(None, True)] * 2


class Slower(torch.optim.SGD):
    """Steps in its own way."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def sparse(parameters: Any) -> torch.optim.Optimizer:
    for parameter in (held := list(parameters)):
        parameter.grad = torch.zeros_like(parameter).to_sparse()
    return torch.optim.SGD(held, 0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.Adam(p, differentiable=True),
        lambda p: torch.optim.RMSprop(p),
        lambda p: Slower(p, 0.1),
        lambda p: torch.optim.Adam([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))]),
        sparse,
    ],
    ids=["fused already", "differentiable", "no fused kernel", "a subclass", "complex", "sparse gradients"],
)
def test_what_cannot_be_fused_is_left_alone(make: Callable[[Any], Any]) -> None:
    _, optimizer, _ = scene(make)
    before = [dict(group) for group in optimizer.param_groups]
    assert fuse(optimizer) is None
    assert [dict(group) for group in optimizer.param_groups] == before


def test_one_optimizer_that_can_be_fused_is_enough() -> None:
    from dataclasses import replace

    case = evidence(forward=0.01, optimizer=0.02, update={"cls": "torch.optim.sgd.SGD"})
    other = replace(case.optimizers[0], cls="torch.optim.rmsprop.RMSprop")
    assert FIX.options(replace(case, optimizers=(other, *case.optimizers))).values
    assert not FIX.options(replace(case, optimizers=(other,))).values
    assert not FIX.options(replace(case, optimizers=())).values
