"""Pictures as bytes: only where normalising later provably gives the same batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from fasttrain_doctor.tuners.fixes import all_fixes
from tests.evidence_samples import GPU, evidence
from tests.fix_harness import train

pytest.importorskip("torchvision")
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import FakeData

FIX = all_fixes()["device-normalize"]
NORMALIZE = T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
FLIP = T.RandomHorizontalFlip()


class Pictures(Dataset[Any]):
    """Pictures of two sizes, cropped; ``after`` is done to the picture once it is transformed."""

    def __init__(self, transform: Any, after: Callable[[Any], Any] = lambda x: x, mode: str = "RGB") -> None:
        self.transform, self.after, self.mode = transform, after, mode

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        pixels = torch.randint(0, 256, (6 + index % 2, 5, 3), dtype=torch.uint8, generator=generator)
        picture = Image.fromarray(pixels.numpy()).convert(self.mode)
        return {"index": index, "image": self.after(self.transform(picture)), "weight": torch.ones(2)}


def loader(dataset: Any, **settings: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=4, **settings)


def batches(dataset: Any, change: Any = None, workers: int = 0) -> list[Any]:
    source = loader(dataset, num_workers=workers)
    if change is not None:
        changed = change.dataset(source)
        assert changed is not None
        source = loader(changed, num_workers=workers)
    torch.manual_seed(7)
    iterator = iter(source)
    fetch = change.batches(iterator.__next__) if change is not None else iterator.__next__
    return [fetch() for _ in range(3)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "transform",
    [
        T.Compose([T.RandomCrop(4), FLIP, T.ToTensor(), NORMALIZE]),
        T.Compose([T.CenterCrop(4), T.ToTensor()]),
        T.Compose([T.CenterCrop(4), T.ToTensor(), T.Normalize(0.5, 0.25)]),
    ],
    ids=["augmented, normalised", "not normalised", "one mean for all"],
)
def test_batches_are_the_same_bit_for_bit(transform: Any, workers: int) -> None:
    dataset = Pictures(transform)
    wanted = batches(dataset, workers=workers)
    made = batches(dataset, FIX.install(True), workers)
    for one, other in zip(wanted, made, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert dataset.transform is transform  # the script's own is untouched
    assert type(transform.transforms[-1]) in (T.ToTensor, T.Normalize)


def test_workers_pass_bytes() -> None:
    change = FIX.install(True)
    assert change.dataset is not None
    changed = change.dataset(loader(Pictures(T.Compose([T.CenterCrop(4), T.ToTensor(), NORMALIZE]))))
    assert next(iter(loader(changed, num_workers=1)))["image"].dtype == torch.uint8


def test_the_training_is_the_same() -> None:
    """Also with the model's place known, from the second batch on."""
    losses = []
    for on in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
        source = loader(Pictures(T.Compose([T.CenterCrop(4), T.ToTensor(), NORMALIZE])))
        from fasttrain_doctor.tuners.fixes import Change

        change = FIX.install(True) if on else Change()
        optimizers = (torch.optim.SGD(model.parameters(), 0.1),)
        losses.append(train(change, model, optimizers, source, lambda m, b: m(b["image"]).square().mean(), 3))
    assert losses[0] == losses[1]


def test_torchvision_datasets_and_subsets_of_them() -> None:
    inner = FakeData(8, (3, 6, 5), transform=T.Compose([T.ToTensor(), NORMALIZE]))
    change = FIX.install(True)
    assert change.dataset is not None
    assert change.dataset(loader(inner))[1][0].dtype == torch.uint8
    assert change.dataset(loader(Subset(inner, [3, 1, 5])))[1][0].dtype == torch.uint8
    assert inner[1][0].dtype == torch.float32


@pytest.mark.parametrize(
    "dataset",
    [
        Pictures(T.Compose([T.CenterCrop(4), T.ToTensor(), NORMALIZE]), after=lambda x: x * 2),
        Pictures(T.Compose([T.CenterCrop(4), T.ToTensor(), NORMALIZE]), after=lambda x: (x, x)),
        Pictures(T.Compose([T.CenterCrop(4), T.ToTensor(), NORMALIZE]), after=lambda x: x.half()),
        Pictures(T.Compose([T.CenterCrop(4), T.ToTensor(), NORMALIZE, T.RandomErasing(1.0)])),
        Pictures(T.Compose([T.CenterCrop(4), T.ToTensor()]), mode="F"),
        Pictures(T.Compose([T.ToTensor(), T.Resize(4)])),
        Pictures(lambda p: T.ToTensor()(p)),
        [{"image": torch.zeros(3, 4, 4)}] * 4,
        Pictures(T.Compose([T.CenterCrop(4), lambda p: torch.zeros(3, 4, 4).numpy(), T.ToTensor()])),
    ],
    ids=["scaled", "doubled", "halved", "erased", "float picture", "resized", "own function", "no transform", "array"],
)
def test_anything_done_to_the_picture_after_it_leaves_the_dataset_alone(dataset: Any) -> None:
    change = FIX.install(True)
    assert change.dataset is not None
    assert change.dataset(loader(dataset)) is None
    assert change.batches is not None
    batch = {"image": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)}
    assert change.batches(lambda: batch)() is batch  # the script's own bytes are its own


def test_a_collate_of_the_scripts_own_leaves_the_dataset_alone() -> None:
    change = FIX.install(True)
    assert change.dataset is not None
    dataset = Pictures(T.Compose([T.CenterCrop(4), T.ToTensor(), NORMALIZE]))
    assert change.dataset(loader(dataset, collate_fn=lambda samples: samples)) is None


def test_looking_at_samples_draws_no_random_number() -> None:
    change = FIX.install(True)
    assert change.dataset is not None
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    dataset = Pictures(T.Compose([T.RandomCrop(4), FLIP, T.ToTensor(), NORMALIZE]))
    assert change.dataset(loader(dataset)) is not None
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize(
    "changed",
    [
        {"transforms": None},
        {"transforms": ("torchvision.transforms.transforms.ToTensor", "train.Mine")},
        {"collate": "train.collate"},
        {"moved": False},
        {"iterable": True},
        {"kind": "ffcv.loader.loader.Loader"},
    ],
)
def test_it_is_offered_only_where_all_of_it_is_known(changed: dict[str, Any]) -> None:
    good = {"transforms": ("torchvision.transforms.transforms.ToTensor",), "moved": True}
    shape: dict[str, Any] = {"machine": GPU, "model": {"device": "cuda"}, "prepare": 0.03, "h2d": 0.01, "forward": 0.05}
    assert FIX.options(evidence(loader=good, **shape)).values
    assert FIX.options(evidence(loader=good | changed, **shape)).reason
