"""How many workers are worth trying follows from what a fetch waits for and what it computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from fasttrain_doctor.evidence import Effect, Evidence, Floor
from fasttrain_doctor.tuners.fixes import all_fixes
from tests.evidence_samples import CPU, evidence
from tests.fix_harness import train

FIX = all_fixes()["dataloader-workers"]
TWO = replace(CPU, cores=2, logical_cores=2)


def counts(case: Evidence) -> list[int]:
    return [value["num_workers"] for value in FIX.options(case).values]  # type: ignore[index, misc]


def waiting(**changes: Any) -> Evidence:
    return evidence(**{"io": 0.064, "forward": 0.002, "loader": {"length": 1000}, "machine": TWO} | changes)


def test_a_loader_that_waits_gets_far_more_workers_than_cores() -> None:
    assert counts(waiting())[0] > 16
    assert FIX.expected(waiting(), {"num_workers": 16}) == pytest.approx(16.5, rel=0.1)


def test_a_loader_that_computes_gets_no_more_than_the_cores() -> None:
    assert max(counts(waiting(io=0.0, prepare=0.064))) == 2
    assert max(counts(waiting(io=0.0, prepare=0.064, machine=replace(TWO, cores=0.5)))) == 1


def test_a_vanishing_share_of_computing_is_no_infinity_of_workers() -> None:
    assert max(counts(evidence(io=1.0, prepare=5e-324, contention=0.0))) > 16


def test_half_waiting_lies_between() -> None:
    assert max(counts(waiting(io=0.032, prepare=0.032))) == 4


def test_what_cannot_be_told_apart_rules_neither_out() -> None:
    assert counts(waiting(io=None, prepare=None, data=0.064))


def test_the_measured_floor_says_how_many_are_enough() -> None:
    floor = Floor(free=0.002, ready=0.016, baseline=0.066)
    assert counts(waiting(floor=floor))[0] == 4


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"machine": replace(TWO, memory_free=500 << 20)}, 5),
        ({"machine": replace(TWO, shm_free=64 << 20), "loader": {"batch_bytes": 4 << 20, "length": 1000}}, 4),
        ({"loader": {"length": 3}}, 3),
        ({"loader": {"iterable": True, "shards": 6, "length": None}}, 6),
        ({"machine": replace(TWO, memory_free=10 << 20)}, 0),
    ],
)
def test_what_holds_the_number_down(changes: dict[str, Any], most: int) -> None:
    assert max(counts(waiting(**changes)), default=0) <= most
    assert all(knob.high <= max(most, 1) for knob in FIX.knobs(waiting(**changes)) if knob.key == "num_workers")


def test_ranks_share_the_cores_and_the_memory() -> None:
    alone = waiting(io=0.0, prepare=0.064, machine=CPU)
    assert max(counts(replace(alone, world=4))) < max(counts(alone))


def test_crowded_workers_are_made_fewer() -> None:
    loader = {"num_workers": 16, "prefetch_factor": 2, "length": 1000}
    case = evidence(prepare=0.0015, forward=0.0013, machine=TWO, loader=loader, contention=0.8)
    assert set(counts(case)) <= set(range(3))
    assert 2 in counts(case)


def test_trivial_items_are_fetched_in_line() -> None:
    loader = {"num_workers": 2, "prefetch_factor": 2, "length": 1000}
    case = evidence(prepare=0.0009, forward=0.0003, machine=TWO, loader=loader)
    assert 0 in counts(case)
    assert FIX.applied({"num_workers": 0}) == "num_workers=0, persistent_workers=False"


def test_workers_of_short_epochs_are_kept() -> None:
    loader = {"num_workers": 4, "prefetch_factor": 2, "length": 12}
    first = FIX.options(evidence(io=0.0001, forward=0.010, loader=loader)).values[0]
    assert first == {"num_workers": 4, "prefetch_factor": 2, "persistent_workers": True}


@pytest.mark.parametrize(
    ("loader", "effect"),
    [
        ({"rng_untouched": True}, Effect.EXACT),
        ({"rng_untouched": False}, Effect.RESEEDED),
        ({"rng_untouched": None}, Effect.RESEEDED),
        ({"rng_untouched": True, "worker_init_fn": True}, Effect.RESEEDED),
        ({"rng_untouched": True, "iterable": True, "shards": 8}, Effect.RESEEDED),
    ],
)
def test_exact_only_where_no_random_number_is_drawn(loader: dict[str, Any], effect: Effect) -> None:
    assert FIX.effect(waiting(loader=loader), {"num_workers": 4}) == effect


class Workers(Dataset[torch.Tensor]):
    """Each sample tells how many workers there are."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, _: int) -> torch.Tensor:
        info = get_worker_info()
        return torch.tensor([0.0 if info is None else float(info.num_workers)])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_workers_are_there(count: int) -> None:
    model, seen = torch.nn.Linear(1, 1), []
    value = {"num_workers": count, "prefetch_factor": 3}

    def loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.max().item())
        return model(batch).sum()

    train(FIX.install(value), model, (torch.optim.SGD(model.parameters(), 0.1),), DataLoader(Workers(), 4), loss, 3)
    assert seen == [count] * 3
