"""Lower precision in a loop that knows nothing of it: the dtype is observed, and loss scaling leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from fasttrain_doctor.evidence import Gpu
from fasttrain_doctor.tuners.fixes import Change, all_fixes
from fasttrain_doctor.tuners.fixes._scaling import LossScaling
from tests.evidence_samples import CPU, GPU, evidence
from tests.fix_harness import train

FIX = all_fixes()["amp"]
OLD = replace(GPU, gpus=(Gpu("Tesla T4", 16 << 30, (7, 5)),))
Scene = tuple[torch.nn.Module, tuple[Any, ...], DataLoader[Any]]


def scene(make: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)) -> Scene:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    data = torch.randn(96, 8)
    return model, (make(model.parameters()),), DataLoader(data, 8)  # type: ignore[arg-type]


def square(model: Any, batch: Any) -> torch.Tensor:
    result: torch.Tensor = model(batch).square().mean()
    return result


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("value", ["bfloat16", "float16"])
def test_the_forward_computes_in_the_type_and_parameters_stay(value: str) -> None:
    model, optimizers, loader = scene()
    seen = set()
    model[0].register_forward_hook(lambda _, __, out: seen.add(out.dtype))  # type: ignore[operator, index]
    train(FIX.install(value), model, optimizers, loader, square, 3)
    assert seen == {getattr(torch, value)}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model(torch.randn(1, 8)).dtype == torch.float32  # outside of the training forward nothing changed


@pytest.mark.parametrize("accumulate", [1, 3])
def test_scaling_alone_changes_no_bit_of_the_training(accumulate: int) -> None:
    """With clipping between backward and step, from the first step on, when no optimizer is known yet."""
    results = []
    for scaled in (False, True):
        model, optimizers, loader = scene()
        norms: list[float] = []

        def clip(model: torch.nn.Module = model, norms: list[float] = norms) -> None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)))

        scaling = LossScaling()
        scaling.watch(model)
        change = Change(backward=scaling.backward, step=scaling.step) if scaled else Change()
        losses = train(change, model, optimizers, loader, square, 4, accumulate, clip)
        results.append((losses, norms, weights(model)))
    plain, scaled_ = results
    assert plain[:2] == scaled_[:2]
    assert all(map(torch.equal, plain[2], scaled_[2]))


@pytest.mark.parametrize("known", [True, False], ids=["optimizer known", "optimizer not yet seen"])
def test_a_step_that_overflowed_is_skipped_and_the_scale_falls(known: bool) -> None:
    model, (optimizer,), loader = scene()
    scaling = LossScaling()
    scaling.watch(model)
    before, batch = weights(model), next(iter(loader))
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaling.backward(torch.autograd.backward, square(model, batch) * factor, (optimizer,) if known else ())
        scaling.step(optimizer.step, optimizer)
        if factor != 1.0:
            assert all(map(torch.equal, before, weights(model)))
    assert not any(map(torch.equal, before, weights(model)))
    assert scaling.scale == 2.0**15


def test_an_overflow_in_an_earlier_part_of_an_accumulated_step_skips_it() -> None:
    model, (optimizer,), loader = scene()
    scaling = LossScaling()
    before = weights(model)
    for factor in (float("inf"), 1.0):
        root = square(model, next(iter(loader))) * factor
        scaling.backward(torch.autograd.backward, root, (optimizer,))
    scaling.step(optimizer.step, optimizer)
    assert all(map(torch.equal, before, weights(model)))


@pytest.mark.parametrize("shared", [False, True], ids=["one backward each", "one backward for both"])
def test_several_optimizers_are_scaled_with_one_scaler(shared: bool) -> None:
    results = []
    for scaled in (False, True):
        torch.manual_seed(0)
        first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        optimizers = tuple(torch.optim.Adam(m.parameters(), 0.01) for m in (first, second))
        scaling = LossScaling()
        for _ in range(4):
            x = torch.randn(8, 4)
            for turn in (0, 1):
                root = second(first(x)).square().mean()
                if scaled:
                    scaling.backward(torch.autograd.backward, root, optimizers)
                else:
                    root.backward()
                for optimizer in optimizers if shared else (optimizers[turn],):
                    if scaled:
                        scaling.step(optimizer.step, optimizer)
                    else:
                        optimizer.step()
                    optimizer.zero_grad()
        results.append(weights(first) + weights(second))
    assert all(map(torch.equal, *results))


def test_a_second_step_on_the_same_gradients_shares_the_fate_of_the_first() -> None:
    model, (optimizer,), loader = scene()
    scaling, ran = LossScaling(), []
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaling.backward(torch.autograd.backward, square(model, next(iter(loader))) * factor, (optimizer,))
        for _ in range(2):
            scaling.step(lambda factor=factor: ran.append(factor), optimizer)  # type: ignore[misc]
    assert ran == [1.0, 1.0]


def test_gradients_that_are_returned_are_true_ones() -> None:
    x = torch.ones(3, requires_grad=True)
    scaling = LossScaling()
    (made,) = scaling.backward(lambda roots: torch.autograd.grad(roots, x), (x * x).sum(), ())
    assert torch.equal(made, 2 * torch.ones(3))


def test_switching_off_leaves_the_optimizer_as_it_would_be() -> None:
    """Two steps with scaling, then two without: no state of the scaler is left in gradients or weights."""
    model, optimizers, loader = scene()
    train(FIX.install("float16"), model, optimizers, loader, square, 2)
    assert all(p.grad is None or p.grad.abs().max() < 100 for p in model.parameters())
    train(Change(), model, optimizers, loader, square, 2)
    assert all(torch.isfinite(w).all() for w in weights(model))


def test_a_fused_optimizer_is_scaled_once() -> None:
    results = []
    for scaled in (False, True):
        model, optimizers, loader = scene(lambda p: torch.optim.AdamW(p, 0.01, fused=True))
        scaling = LossScaling()
        change = Change(backward=scaling.backward, step=scaling.step) if scaled else Change()
        scaling.watch(model)
        train(change, model, optimizers, loader, square, 3)
        results.append(weights(model))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize(
    ("machine", "device", "expected"),
    [
        (GPU, "cuda", ("bfloat16",)),
        (OLD, "cuda:0", ("float16",)),
        (replace(CPU, cpu_flags=("amx_bf16",)), "cpu", ("bfloat16",)),
        (CPU, "cpu", ()),
        (replace(GPU, gpus=(Gpu("?"),)), "cuda", ()),
        (CPU, "mps", ()),
    ],
)
def test_the_type_follows_the_hardware(machine: Any, device: str, expected: tuple[str, ...]) -> None:
    case = evidence(machine=machine, forward=0.02, backward=0.04, model={"device": device})
    assert FIX.options(case).values == expected


def test_float16_is_not_offered_where_a_step_could_not_be_skipped() -> None:
    for update in ({"cls": "torch.optim.lbfgs.LBFGS"}, None):
        case = evidence(machine=OLD, forward=0.02, backward=0.04, model={"device": "cuda"}, update=update)
        case = case if update else replace(case, optimizers=())
        assert not FIX.options(case).values
