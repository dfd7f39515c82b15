"""A dataset that hands out its pictures as bytes, and the proof that normalising them later gives the same samples.

Only where the dataset's ``transform`` is a torchvision ``Compose`` that ends in ``ToTensor`` or ``ToTensor, Normalize``
and its samples show nothing done to the picture after it. Everything else is left alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMPOSE = ("torchvision.transforms.transforms.Compose",)
TO_TENSOR = "torchvision.transforms.transforms.ToTensor"
NORMALIZE = "torchvision.transforms.transforms.Normalize"
COLLATE = "torch.utils.data._utils.collate.default_collate"
EIGHT_BITS = frozenset({"L", "LA", "P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
SAMPLES = 3  # how many samples are compared before the change is trusted
CLOSE = 1e-5
DEEPEST = 6

Path = tuple[Any, ...]  # keys and indices from the outside in


def qualified(value: Any) -> str:
    """Return the qualified name of a function, or of an object's class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def tail(names: Sequence[str]) -> int:
    """Return how many transforms at the end of ``names`` can be done later, on a batch of bytes: 0, 1 or 2."""
    if list(names[-2:]) == [TO_TENSOR, NORMALIZE]:
        return 2
    return 1 if list(names[-1:]) == [TO_TENSOR] else 0


class ToBytes:
    """A PIL picture as a uint8 tensor C x H x W: what ``ToTensor`` does, without the division. Picklable.

    Raises:
        TypeError: not a PIL picture, or one whose bands are no bytes.
    """

    def __call__(self, picture: Any) -> Any:
        import torch

        if getattr(picture, "mode", None) not in EIGHT_BITS:
            raise TypeError(f"no picture of bytes: {type(picture).__name__} {getattr(picture, 'mode', '')}")
        flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        return flat.view(picture.height, picture.width, len(picture.getbands())).permute(2, 0, 1).contiguous()


@dataclass(frozen=True, slots=True)
class Bytes:
    """A dataset that hands out bytes, where in its samples they are, and how to normalise them."""

    dataset: Any
    place: Path  # in a sample, hence in a batch made by the default collate
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _numbers(given: Any) -> tuple[float, ...]:
    return tuple(float(x) for x in given) if hasattr(given, "__iter__") else (float(given),)


def _cut(transform: Any) -> tuple[Any, tuple[float, ...], tuple[float, ...]] | None:
    """Return ``transform`` ending in bytes, with the mean and std that were cut off."""
    if qualified(transform) not in COMPOSE:
        return None
    steps = list(transform.transforms)
    count = tail([qualified(step) for step in steps])
    if count == 0:
        return None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    if count == 2:
        mean, std = _numbers(steps[-1].mean), _numbers(steps[-1].std)
    shorter = copy.copy(transform)
    shorter.transforms = [*steps[:-count], ToBytes()]
    return shorter, mean, std


def _copied(dataset: Any) -> tuple[Any, tuple[float, ...], tuple[float, ...]] | None:
    """Return a shallow copy of ``dataset`` (through ``Subset``) whose transform ends in bytes."""
    import torch

    made = copy.copy(dataset)
    if type(dataset) is torch.utils.data.Subset:
        inner = _copied(dataset.dataset)
        if inner is None:
            return None
        made.dataset = inner[0]
        return made, *inner[1:]
    cut = _cut(getattr(dataset, "transform", None))
    if cut is None:
        return None
    made.transform = cut[0]
    both = getattr(dataset, "transforms", None)  # torchvision's own datasets hold it twice
    if getattr(both, "transform", None) is dataset.transform:
        made.transforms = copy.copy(both)
        made.transforms.transform = cut[0]
    return made, *cut[1:]


def _parts(sample: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield where each leaf of a sample is: in dicts, lists and tuples, which the default collate keeps."""
    if isinstance(sample, Mapping | list | tuple) and len(path) < DEEPEST:
        for key, part in sample.items() if isinstance(sample, Mapping) else enumerate(sample):
            yield from _parts(part, (*path, key))
    else:
        yield path, sample


def _same(one: Any, other: Any) -> bool:
    import torch

    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if hasattr(one, "tobytes"):  # numpy
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return isinstance(one, int | float | str | bytes | None) and one == other


def _place(sample: Any, shorter: Any, mean: tuple[float, ...], std: tuple[float, ...]) -> Path | None:
    """Return where in ``shorter`` the bytes of ``sample``'s picture are; None unless all else is equal."""
    import torch

    from fasttrain_doctor.kernels.normalize import reference

    before, after, found = list(_parts(sample)), list(_parts(shorter)), None
    if [path for path, _ in before] != [path for path, _ in after]:
        return None
    for (path, one), (_, other) in zip(before, after, strict=True):
        if _same(one, other):
            continue
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        if found is not None or not both or other.dtype != torch.uint8 or one.dtype != torch.float32:
            return None
        if other.dim() != 3 or one.shape != other.shape or len(mean) not in (0, 1, other.shape[0]):
            return None
        made = reference(other[None], *spread(mean, std, other.shape[0]))[0]
        if not torch.allclose(made, one, rtol=CLOSE, atol=CLOSE):
            return None
        found = path
    return found


def at(batch: Any, path: Path) -> Any:
    """Return the part of a batch at ``path``, None where there is none."""
    try:
        for key in path:
            batch = batch[key]
    except (KeyError, IndexError, TypeError):
        return None
    return batch


def spread(mean: tuple[float, ...], std: tuple[float, ...], depth: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std for ``depth`` channels: none given is the identity, one serves all."""
    mean, std = mean or (0.0,), std or (1.0,)
    return (mean * depth, std * depth) if len(mean) == 1 else (mean, std)


def as_bytes(loader: Any) -> Bytes | None:
    """Return the loader's dataset handing out bytes, None where that would not give the same batches.

    A few samples are made both ways with equal random states, which are put back afterwards.
    """
    if qualified(loader.collate_fn) != COLLATE or not hasattr(loader.dataset, "__len__"):
        return None
    made = _copied(loader.dataset)
    if made is None:
        return None
    shorter, mean, std = made
    length = len(loader.dataset)
    places: set[Path | None] = set()
    for index in sorted({0, length // 2, length - 1} if length else set())[:SAMPLES]:
        with _same_random_state() as again:
            sample = loader.dataset[index]
            again()
            try:
                places.add(_place(sample, shorter[index], mean, std))
            except TypeError:  # ToTensor also takes arrays, and pictures of floats
                return None
    place = next(iter(places), None)
    return None if len(places) != 1 or place is None else Bytes(shorter, place, mean, std)


class _same_random_state:  # noqa: N801 - used as a statement
    """Every random state as it was at entry: on calling what entry returned, and at exit."""

    def __enter__(self) -> Any:
        import random
        import sys

        import torch

        numpy = sys.modules.get("numpy")
        states = random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy is not None else None

        def again() -> None:
            random.setstate(states[0])
            torch.set_rng_state(states[1])
            if numpy is not None:
                numpy.random.set_state(states[2])

        self._again = again
        return again

    def __exit__(self, *_: object) -> None:
        self._again()
