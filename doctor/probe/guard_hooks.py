"""Libraries that write files from C++ or Rust, where Python raises no audit event: the path is protected first.

Each is hooked once it is imported, never imported here. Functions stay what they are (``functools.wraps``); those that
others may hold already are replaced where they look the writer up.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from fasttrain_doctor.probe import unseen
from fasttrain_doctor.probe.imports import on_import
from fasttrain_doctor.probe.touched import Change

# Module, what to replace in it (a dot leads into a class), number of the argument that is the path, its name.
_WRITERS: tuple[tuple[str, str, int, str], ...] = (
    ("torch.serialization", "_open_zipfile_writer", 0, "name_or_buffer"),  # torch.save with a path: PyTorchFileWriter
    ("torch.jit._script", "RecursiveScriptModule.save", 1, "f"),
    ("torch.jit._serialization", "save", 1, "f"),
    ("safetensors", "serialize_file", 1, "filename"),
    ("safetensors.torch", "serialize_file", 1, "filename"),  # bound at import by name
    ("safetensors.torch", "save_file", 1, "filename"),
    ("safetensors.numpy", "serialize_file", 1, "filename"),
    ("safetensors.numpy", "save_file", 1, "filename"),
    ("cv2", "imwrite", 0, "filename"),
    ("torchaudio", "save", 0, "uri"),
    ("torchvision.io.image", "write_file", 0, "filename"),
    ("torchvision.io.image", "write_jpeg", 1, "filename"),
    ("torchvision.io.image", "write_png", 1, "filename"),
    ("pyarrow.parquet.core", "ParquetWriter.__init__", 1, "where"),
)


def install(changing: Callable[..., None]) -> None:
    """Hook every writer, now or when its module is imported.

    Args:
        changing: called with the path (and a ``Change``) before the writer runs.
    """
    for module in dict.fromkeys(name for name, *_ in _WRITERS):
        on_import(module, functools.partial(_hook_all, module, changing))
    on_import("h5py._hl.files", functools.partial(_hook_h5py, changing))


def _hook_all(name: str, changing: Callable[..., None], module: Any) -> None:
    for owner, target, position, keyword in _WRITERS:
        if owner == name:
            _hook(module, target, position, keyword, changing)


def _hook(module: Any, target: str, position: int, keyword: str, changing: Callable[..., None]) -> None:
    *outer, leaf = target.split(".")
    place = functools.reduce(lambda found, part: getattr(found, part, None), outer, module)
    original = getattr(place, leaf, None)
    if original is None:  # another version of the library; what it writes is found by comparing folders
        return

    @unseen.wraps(original)
    def writer(*args: Any, **kwargs: Any) -> Any:
        try:
            changing(args[position] if len(args) > position else kwargs.get(keyword), Change.EMPTY)
            return original(*args, **kwargs)
        except BaseException as error:
            unseen.strip(error)
            raise

    setattr(place, leaf, writer)


def _hook_h5py(changing: Callable[..., None], module: Any) -> None:
    original = module.File.__init__

    @unseen.wraps(original)
    def init(self: Any, name: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> None:
        try:
            exists = isinstance(name, str | bytes | os.PathLike) and os.path.exists(name)
            if mode == "w":
                changing(name, Change.EMPTY)
            elif mode in ("a", "r+") or (mode in ("w-", "x") and not exists):
                changing(name, Change.WRITE)
            original(self, name, mode, *args, **kwargs)
        except BaseException as error:
            unseen.strip(error)
            raise

    module.File.__init__ = init
