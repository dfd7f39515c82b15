"""Write the demo's photos: JPEG files with the statistics that make a decoder work as it does on real ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

KINDS = ("dawn", "forest", "harbour", "meadow")
SIZES = ((640, 427), (640, 480), (800, 600), (1024, 683))  # width, height: common sizes of photos on the web
SCENE = (1600, 1200)


def scene(rng: np.random.Generator, kind: int) -> NDArray[np.int16]:
    """Return a large picture to crop photos from, of shape (height, width, 3): noise summed over octaves.

    Natural images have amplitude spectra that fall as 1/f (Field 1987, J. Opt. Soc. Am. A 4, 2379): the same energy in
    each octave, were it not for the lens, which takes some from the finer ones. ``kind`` sets the tint, so that there
    is something to learn.
    """
    width, height = SCENE
    total = np.zeros((height, width, 3), dtype=np.float32)
    cells, weight = 4, 48.0
    while cells < width:
        coarse = rng.integers(0, 256, (cells * height // width, cells, 3), dtype=np.uint8)
        fine = Image.fromarray(coarse).resize(SCENE, Image.Resampling.BICUBIC)
        total += weight * (np.asarray(fine, dtype=np.float32) / 127.5 - 1)
        cells, weight = cells * 2, weight * 0.75
    tint = np.roll(np.array([150, 120, 90], dtype=np.float32), kind) + (20 if kind == len(KINDS) - 1 else 0)
    return (total + tint).astype(np.int16)


def photo(rng: np.random.Generator, picture: NDArray[np.int16]) -> Image.Image:
    """Return a crop of ``picture`` at a random place, of a random one of ``SIZES`` and a random brightness."""
    width, height = SIZES[int(rng.integers(len(SIZES)))]
    left = int(rng.integers(picture.shape[1] - width))
    top = int(rng.integers(picture.shape[0] - height))
    crop = picture[top : top + height, left : left + width] + np.int16(rng.integers(-40, 41))
    return Image.fromarray(np.clip(crop, 0, 255).astype(np.uint8))


@dataclass(frozen=True, slots=True)
class Made:
    """How many files were written, and their bytes together."""

    files: int
    bytes: int


def make(folder: Path, count: int = 480, seed: int = 0) -> Made:
    """Write ``count`` JPEG files (a multiple of the kinds), the same in each kind, into one folder per kind.

    Raises:
        OSError: the folder cannot be written to.
    """
    rng = np.random.default_rng(seed)
    sizes = []
    for kind, name in enumerate(KINDS):
        picture = scene(rng, kind)
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for index in range(count // len(KINDS)):
            path = place / f"{index:04d}.jpg"
            photo(rng, picture).save(path, quality=90)
            sizes.append(path.stat().st_size)
    return Made(len(sizes), sum(sizes))
