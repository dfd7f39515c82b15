"""The deep pass: a few steps under torch.profiler, with what a trace does not carry added as metadata."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

from fasttrain_doctor.probe import describe

# Kineto writes lines like these to standard error whatever KINETO_LOG_LEVEL says (torch 2.14).
_KINETO = re.compile(rb"^(USDT|INFO|WARNING|ERROR|STAGE|VERBOSE):\d{4}-\d\d-\d\d .*\n?", re.MULTILINE)


@contextlib.contextmanager
def _without_kinetos_lines() -> Iterator[None]:
    """Keep the profiler's own lines off the script's standard error; whatever else is written there gets there."""
    try:
        kept = os.dup(2)
        caught = os.memfd_create("stderr")
    except (OSError, AttributeError):
        yield
        return
    os.dup2(caught, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        size = os.lseek(caught, 0, os.SEEK_END)
        rest = _KINETO.sub(b"", os.pread(caught, size, 0))
        if rest:
            os.write(2, rest)
        os.close(caught)
        os.close(kept)


class Deep:
    """Profiles from ``start`` to ``finish``; each border closes one ``ProfilerStep#N`` range."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._profiler: Any = None
        self._range: Any = None
        self._step = 0

    def start(self) -> None:
        """Start the profiler; raises RuntimeError when the script already profiles itself."""
        import torch

        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("the script runs a profiler of its own")
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if describe.initialized():
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=kinds)
        with _without_kinetos_lines():
            self._profiler.start()

    def border(self) -> None:
        """Close the current step's range and open the next: the first begins at the first border."""
        import torch

        self._close()
        self._range = torch.autograd.profiler.record_function(f"ProfilerStep#{self._step}")
        self._range.__enter__()
        self._step += 1

    def _close(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def finish(self) -> str:
        """Stop and write the trace, compressed; returns its path."""
        import torch

        # The range opened by the last border holds no step.
        self._close()
        self._profiler.add_metadata_json("torch_version", f'"{torch.__version__}"')
        plain = self._path.removesuffix(".gz")
        packed = self._path + ".part"
        try:
            with _without_kinetos_lines():
                self._profiler.stop()
                self._profiler.export_chrome_trace(plain)
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target)
            os.replace(packed, self._path)
        finally:
            for path in (plain, packed):
                with contextlib.suppress(OSError):
                    os.unlink(path)
        return self._path
