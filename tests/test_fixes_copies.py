"""Copies to the device that overlap compute: learned from what the script asks for, never a stale or a stray one.

The device here is ``meta``; where values matter, a copy is a clone that is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.tuners.fixes import all_fixes
from fasttrain_doctor.tuners.fixes._nested import leaves, replaced
from fasttrain_doctor.tuners.fixes.stream_prefetch import change
from tests.evidence_samples import GPU, evidence


class Pair(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


@dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str = "x"


class Movable:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, *args: Any) -> Movable:
        return Movable(self.x.to(*args))


class Side:
    """Records what was issued beside the main queue and what was handed over, by mark."""

    def __init__(self) -> None:
        self.inside, self.issued, self.handed = False, 0, list[int]()

    @contextmanager
    def issue(self, device: Any) -> Iterator[None]:
        self.inside = True
        yield
        self.inside = False
        self.issued += 1

    def mark(self, device: Any) -> int:
        return self.issued

    def hand_over(self, tensor: Any, mark: int) -> Any:
        self.handed.append(mark)
        return tensor


class Script:
    """A loop that fetches batches and moves parts of them, with the change installed."""

    def __init__(self, batches: list[Any]) -> None:
        self.side, self.calls, rest = Side(), list[tuple[bool, dict[str, Any]]](), iter(batches)
        self.made = change(self.side)
        assert self.made.batches is not None
        self.next: Callable[[], Any] = self.made.batches(lambda: next(rest))

    def move(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            self.calls.append((self.side.inside, kwargs))
            return tensor.clone()

        assert self.made.copy is not None
        moved: torch.Tensor = self.made.copy(call, tensor, args, kwargs)
        return moved


def numbered(count: int) -> list[torch.Tensor]:
    return [torch.full((3,), float(n)) for n in range(count)]


def test_every_batch_arrives_once_in_order_with_its_own_values() -> None:
    script = Script(numbered(6))
    for n in range(6):
        assert torch.equal(script.move(script.next(), "cuda"), torch.full((3,), float(n)))
    with pytest.raises(StopIteration):
        script.next()
    assert script.side.issued == 4  # all but the first, which taught it, and the second, fetched by then
    assert [inside for inside, _ in script.calls] == [False, True, False, True, True, True]
    assert script.calls[-1][1] == {"non_blocking": True}


def test_each_copy_waits_for_its_own_mark_not_for_the_batch_behind_it() -> None:
    script = Script(numbered(5))
    for _ in range(5):
        script.move(script.next(), "cuda")
    assert script.side.handed == [1, 2, 3]


def test_only_what_was_asked_for_is_copied_ahead() -> None:
    script = Script([{"image": a, "label": b} for a, b in zip(numbered(5), numbered(5), strict=True)])
    for _ in range(5):
        script.move(script.next()["image"], "cuda")
    assert script.side.issued == 3


def test_what_is_no_longer_asked_for_is_no_longer_copied() -> None:
    script = Script(numbered(8))
    for n in range(8):
        batch = script.next()
        if n < 2:
            script.move(batch, "cuda")
    assert script.side.issued == 2  # fetched ahead before it was noticed
    assert script.side.handed == []


@pytest.mark.parametrize("edit", [lambda x: x.add_(1), lambda x: x[0].fill_(7)])
def test_a_tensor_that_changed_meanwhile_is_copied_afresh(edit: Callable[[torch.Tensor], Any]) -> None:
    script = Script(numbered(5))
    for _ in range(5):
        batch = script.next()
        edit(batch)
        assert torch.equal(script.move(batch, "cuda"), batch)
    assert script.side.handed == []


def test_another_request_is_served_as_asked() -> None:
    script = Script(numbered(6))
    for n in range(6):
        script.move(script.next(), "cuda", (torch.float16, torch.float32, torch.float64)[n % 3])
    assert script.side.handed == []


def test_asking_twice_gives_two_tensors() -> None:
    script = Script(numbered(4))
    for _ in range(4):
        batch = script.next()
        assert script.move(batch, "cuda") is not script.move(batch, "cuda")


def test_a_positional_non_blocking_is_left_to_the_script() -> None:
    script = Script(numbered(4))
    for _ in range(4):
        script.move(script.next(), "cuda", torch.float32, True)
    assert script.side.issued == 0


def test_what_is_not_of_the_batch_is_left_to_the_script() -> None:
    script = Script(numbered(4))
    for _ in range(4):
        script.move(script.next() * 2, "cuda")
    assert script.side.issued == 0


def test_an_error_of_the_dataset_comes_when_it_is_its_turn() -> None:
    def fails() -> Iterator[torch.Tensor]:
        yield torch.zeros(1)
        yield torch.ones(1)
        raise KeyError("picture 17")

    rest = fails()
    following = change(Side()).batches
    assert following is not None
    fetch = following(lambda: next(rest))
    assert fetch().item() == 0
    assert fetch().item() == 1
    with pytest.raises(KeyError, match="picture 17"):
        fetch()


class Pinned:
    """What ``pin-memory`` asks of a tensor, with page-locked memory that needs no device."""

    def __init__(self, tensor: torch.Tensor, pinned: bool = True) -> None:
        self.tensor, self.pinned = tensor, pinned

    def is_pinned(self) -> bool:
        return self.pinned

    def untyped_storage(self) -> Any:
        return self.tensor.untyped_storage()


def asked(tensor: Any, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
    return kwargs


@pytest.mark.parametrize(
    ("pick", "args", "kwargs", "non_blocking"),
    [
        (lambda x: Pinned(x), ("cuda",), {}, True),
        (lambda x: Pinned(x[:, 1:]), ("cuda",), {}, True),
        (lambda x: Pinned(x, pinned=False), ("cuda",), {}, None),
        (lambda x: Pinned(x), ("cuda",), {"non_blocking": False}, False),
        (lambda x: Pinned(x), ("cuda", torch.float32, False), {}, None),
        (lambda x: Pinned(torch.zeros(2, 3)), ("cuda",), {}, None),
    ],
    ids=["a batch", "a view of it", "not page-locked", "told by name", "told by place", "the script's own buffer"],
)
def test_only_page_locked_memory_of_the_batch_is_copied_without_blocking(
    pick: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any], non_blocking: bool | None
) -> None:
    made = all_fixes()["pin-memory"].install(True)
    assert made.batches is not None
    assert made.copy is not None
    following = made.batches(lambda: [torch.zeros(2, 3)])
    given_ = made.copy(asked, pick(following()[0]), args, kwargs)
    assert given_.get("non_blocking") is non_blocking


def test_without_workers_fetching_ahead_reorders_random_numbers() -> None:
    fix = all_fixes()["stream-prefetch"]
    effects = [
        fix.effect(evidence(machine=GPU, loader=loader), True).name
        for loader in ({}, {"rng_untouched": True}, {"num_workers": 2})
    ]
    assert effects == ["RESEEDED", "EXACT", "EXACT"]


x, y = torch.zeros(1), torch.ones(1)


@pytest.mark.parametrize(
    "batch",
    [
        x,
        [x, y],
        (x, y),
        Pair(x, y),
        {"a": x, "b": [y, "word", 3]},
        Sample(x),
        Movable(x),
        [{"a": (x, Sample(y))}],
        None,
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_tensors_are_found_and_replaced_in_containers_of_every_kind(batch: Any) -> None:
    found = leaves(batch)
    doubled = replaced(batch, lambda t: t + 5)
    assert type(doubled) is type(batch)
    assert [float(t) for t in leaves(doubled)] == [float(t) + 5 for t in found]
    assert [float(t) for t in leaves(batch)] == [float(t) for t in found]  # the original is as it was


def test_a_batch_that_holds_itself_is_no_trap() -> None:
    batch: list[Any] = [x]
    batch.append(batch)
    assert len(leaves(batch)) == 1


nests = st.recursive(
    st.builds(lambda v: torch.full((1,), float(v)), st.integers(0, 9)) | st.text(max_size=3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(nests)
def test_replacing_by_the_same_is_the_batch_itself(batch: Any) -> None:
    assert replaced(batch, lambda t: t) is batch
