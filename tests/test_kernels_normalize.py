"""One pass from bytes to normalised floats: the kernel agrees with plain torch, plain torch with torchvision."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fasttrain_doctor.kernels import normalize as module
from fasttrain_doctor.kernels.normalize import normalize, reference

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def pictures(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))


def test_plain_torch_is_what_torchvision_does() -> None:
    from PIL import Image
    from torchvision.transforms import Compose, Normalize, ToTensor

    image = Image.fromarray(pictures(7, 5, 3).numpy())
    wanted = Compose([ToTensor(), Normalize(*IMAGENET)])(image)
    import numpy

    bytes_ = torch.from_numpy(numpy.array(image))[None]
    assert torch.equal(reference(bytes_, *IMAGENET, channels=-1)[0], wanted)


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 5), st.integers(1, 6)),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_every_pixel_is_its_formula(shape: tuple[int, ...], seed: int, data: Any) -> None:
    images = pictures(*shape)
    mean = data.draw(st.lists(st.floats(0, 1), min_size=shape[1], max_size=shape[1]))
    std = data.draw(st.lists(st.floats(0.05, 2), min_size=shape[1], max_size=shape[1]))
    made = normalize(images, mean, std)
    assert made.shape == images.shape
    assert made.is_contiguous()
    wide = (images.double() / 255 - torch.tensor(mean).double().view(1, -1, 1, 1)) / torch.tensor(std).double().view(
        1, -1, 1, 1
    )
    torch.testing.assert_close(made.double(), wide, rtol=1e-6, atol=1e-5)


def test_both_layouts_give_the_same_images() -> None:
    images = pictures(2, 3, 5, 4)
    last = images.permute(0, 2, 3, 1)
    assert torch.equal(normalize(images, *IMAGENET), normalize(last.contiguous(), *IMAGENET, channels=-1))
    assert torch.equal(normalize(images, *IMAGENET), normalize(last, *IMAGENET, channels=-1))


@pytest.mark.parametrize(
    ("images", "mean", "std"),
    [
        (torch.zeros(1, 3, 2, 2), (0, 0, 0), (1, 1, 1)),
        (pictures(3, 2, 2), (0, 0, 0), (1, 1, 1)),
        (pictures(1, 3, 2, 2), (0,), (1,)),
        (pictures(1, 3, 2, 2), (0, 0, 0), (1, 0, 1)),
    ],
)
def test_what_it_cannot_do_is_said(images: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        normalize(images, mean, std)


def test_without_triton_the_kernel_says_so_and_the_public_function_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "triton", None)
    with pytest.raises(RuntimeError, match="triton"):
        module.fused(pictures(1, 3, 2, 2), *IMAGENET)
    assert normalize(pictures(1, 3, 2, 2), *IMAGENET).shape == (1, 3, 2, 2)


INTERPRETED = """
import torch
from hypothesis import given, settings, strategies as st
from fasttrain_doctor.kernels.normalize import fused, reference

@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 19), st.integers(0, 37)),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    layout=st.sampled_from(["nchw", "nhwc", "sliced", "flipped"]),
    data=st.data(),
)
def agree(shape, dtype, layout, data):
    n, c, h, w = shape
    mean = data.draw(st.lists(st.floats(0, 1), min_size=c, max_size=c))
    std = data.draw(st.lists(st.floats(0.05, 2), min_size=c, max_size=c))
    images = torch.randint(0, 256, (n, c, 2 * h, 2 * w), dtype=torch.uint8)
    channels = 1
    images = images[:, :, ::2, ::2] if layout in ("sliced", "nhwc", "flipped") else images[:, :, :h, :w].contiguous()
    if layout == "flipped":
        images = images.transpose(2, 3)
    if layout == "nhwc":
        images, channels = images.permute(0, 2, 3, 1).contiguous(), -1
    made, wanted = fused(images, mean, std, dtype, channels), reference(images, mean, std, dtype, channels)
    assert made.shape == wanted.shape and made.dtype == dtype and made.is_contiguous()
    # One rounding of the output's type, and float32 rounding of mean/std where the two nearly cancel.
    loose = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(made, wanted, rtol=loose, atol=2e-5)

agree()
print("agreed")
"""


def test_the_kernel_agrees_with_plain_torch() -> None:
    """In Triton's interpreter, in a process of its own: the switch is read when triton is imported."""
    pytest.importorskip("triton")
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "agreed", done.stderr[-2000:]


COMPILED = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from fasttrain_doctor.kernels.normalize import _kernel

numbers = ("total", "channels", "height", "width", "step_n", "step_c", "step_h", "step_w")
for target in ("*fp32", "*fp16", "*bf16"):
    signature = {"source": "*u8", "target": target, "scale": "*fp32", "shift": "*fp32"}
    signature |= dict.fromkeys(numbers, "i32") | {"BLOCK": "constexpr"}
    made = compile(ASTSource(fn=_kernel, signature=signature, constexprs={"BLOCK": 1024}), target=GPUTarget("cuda", 90, 32))
    assert "ptx" in made.asm, sorted(made.asm)
print("compiled")
"""


def test_the_kernel_compiles_for_a_device_that_is_not_here() -> None:
    """The interpreter takes what the compiler refuses, annotations for one."""
    pytest.importorskip("triton")
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@settings(max_examples=20, deadline=None)
@given(shape=st.tuples(st.integers(0, 5), st.just(3), st.integers(0, 65), st.integers(1, 67)))
def test_the_kernel_agrees_on_the_device(shape: tuple[int, ...]) -> None:
    images = pictures(*shape)
    torch.testing.assert_close(normalize(images.cuda(), *IMAGENET).cpu(), reference(images, *IMAGENET))
