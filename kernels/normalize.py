"""Images of bytes to normalised floats in one pass over memory.

    out[n, c, h, w] = (images[n, c, h, w] / 255 - mean[c]) / std[c]
                    =  images[n, c, h, w] * scale[c] + shift[c]      scale = 1 / (255 std),  shift = -mean / std

computed in float32 and rounded once to the output's type. Plain torch makes a float copy, two more passes and a cast:
13 bytes read and written for each byte of picture where this needs 1 + the output's 2 or 4. The images may lie in any
strides: pictures decoded as N x H x W x C are read in place with ``channels=-1`` and come out as N x C x H x W.

Source: the arithmetic of ``torchvision.transforms.ToTensor`` followed by ``Normalize``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # torch without CUDA comes without triton: the reference serves
    triton = None

BLOCK = 1024

if triton is not None:
    # No annotations: triton evaluates them as code of the kernel.
    @triton.jit  # type: ignore[untyped-decorator]
    def _kernel(  # type: ignore[no-untyped-def]
        source,
        target,
        scale,
        shift,
        total,
        channels,
        height,
        width,
        step_n,
        step_c,
        step_h,
        step_w,
        BLOCK: tl.constexpr,  # noqa: N803
    ):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < total
        w = at % width
        h = (at // width) % height
        c = (at // (width * height)) % channels
        n = at // (width * height * channels)
        byte = tl.load(source + n * step_n + c * step_c + h * step_h + w * step_w, mask=inside, other=0)
        factor = tl.load(scale + c, mask=inside, other=0.0)
        offset = tl.load(shift + c, mask=inside, other=0.0)
        value = byte.to(tl.float32) * factor + offset
        tl.store(target + at, value.to(target.dtype.element_ty), mask=inside)


def _checked(images: torch.Tensor, mean: Sequence[float], std: Sequence[float], channels: int) -> torch.Tensor:
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise ValueError(f"images must be uint8 with 4 dimensions, got {images.dtype} with {images.dim()}")
    if channels not in (1, -1):
        raise ValueError(f"channels must be dimension 1 or -1, got {channels}")
    images = images if channels == 1 else images.permute(0, 3, 1, 2)
    if not len(mean) == len(std) == images.shape[1]:
        raise ValueError(f"{images.shape[1]} channels need as many means and stds, got {len(mean)} and {len(std)}")
    if any(s == 0 for s in std):
        raise ValueError("std must not be 0")
    return images


def reference(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
    channels: int = 1,
) -> torch.Tensor:
    """Do in plain torch what ``normalize`` does: bit for bit ``ToTensor`` and ``Normalize`` in float32."""
    images = _checked(images, mean, std, channels)
    shape = (1, -1, 1, 1)
    middle = torch.tensor(mean, dtype=torch.float32, device=images.device).view(shape)
    spread = torch.tensor(std, dtype=torch.float32, device=images.device).view(shape)
    return images.to(torch.float32).div(255).sub(middle).div(spread).to(dtype).contiguous()


@lru_cache(maxsize=32)
def _factors(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return scale and shift on ``device``, kept: copying them for each batch would make the host wait."""
    scale = torch.tensor([1 / (255 * s) for s in std], dtype=torch.float32, device=device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32, device=device)
    return scale, shift


def fused(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
    channels: int = 1,
) -> torch.Tensor:
    """Do it in the Triton kernel, wherever the images lie (on a CPU under ``TRITON_INTERPRET=1`` only).

    Raises:
        RuntimeError: triton is not installed.
        ValueError: as ``normalize``.
    """
    if triton is None:
        raise RuntimeError("the fused normalisation needs triton, which is not installed")
    images = _checked(images, mean, std, channels)
    count, depth, height, width = images.shape
    target = torch.empty((count, depth, height, width), dtype=dtype, device=images.device)
    total = target.numel()
    if total:
        scale, shift = _factors(tuple(map(float, mean)), tuple(map(float, std)), images.device)
        _kernel[(triton.cdiv(total, BLOCK),)](
            images, target, scale, shift, total, depth, height, width, *images.stride(), BLOCK=BLOCK
        )
    return target


def normalize(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
    channels: int = 1,
) -> torch.Tensor:
    """Return normalised images as a new contiguous tensor N x C x H x W on the device of ``images``.

    Args:
        images: uint8, N x C x H x W (``channels=1``) or N x H x W x C (``channels=-1``), any strides, may be empty.
        mean: one number a channel, in units of 0..1.
        std: likewise, none of them 0.
        dtype: of the result: float32, float16 or bfloat16.
        channels: the dimension of the channels, 1 or -1.

    Raises:
        ValueError: another dtype or shape of images, another number of means or stds, a std of 0.
    """
    if images.is_cuda and triton is not None:
        return fused(images, mean, std, dtype, channels)
    return reference(images, mean, std, dtype, channels)
