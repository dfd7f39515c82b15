"""A Kineto trace as columns: one row per interval on the host or on a device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fasttrain_doctor.trace_intervals import Floats

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Kind(IntEnum):
    """What a row is, by its category; never by the arguments it carries."""

    OP = 1  # an operator; in traces of 2021 annotations too
    ANNOTATION = 2
    RUNTIME = 3  # a call into the device's runtime or driver
    KERNEL = 4
    COPY = 5
    SET = 6


# Categories from torch 1.8 to 2.14, lower case; `hip*` calls come under cuda_runtime. Not here, because they are no work:
# cuda_sync, gpu_user_annotation, cuda_event, overhead.
KINDS = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.ANNOTATION,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.SET,
    "memset": Kind.SET,
}


@dataclass(frozen=True, slots=True)
class Trace:
    """The rows that matter, in no order. Times in microseconds since ``origin``; -1 is `not given`.

    ``names`` and ``threads`` are what ``name`` and ``thread`` index; a thread is (process, thread) as text.
    """

    kind: Ints
    name: Ints
    thread: Ints
    start: Floats
    end: Floats
    correlation: Ints
    device: Ints
    bytes: Ints
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]
    origin: float  # microseconds: of the epoch, once the trace's own base is added
    capability: tuple[int, int] | None = None  # of the first device
    notes: tuple[str, ...] = ()  # what the reader should know: cut short, rows left out

    @property
    def on_device(self) -> Bools:
        """Rows that are work of a device."""
        return self.kind >= Kind.KERNEL

    @property
    def on_host(self) -> Bools:
        """Rows that are operators, annotations or runtime calls."""
        return self.kind <= Kind.RUNTIME

    def called(self, pattern: str) -> Bools:
        """Say of each row whether its name matches the regular expression from its start."""
        import re

        match = re.compile(pattern).match
        return np.array([match(name) is not None for name in self.names] or [False], dtype=np.bool_)[self.name]

    def holding(self, pattern: str) -> Bools:
        """Say of each row whether its name holds a match of the regular expression, in any case."""
        import re

        search = re.compile(pattern, re.IGNORECASE).search
        return np.array([search(name) is not None for name in self.names] or [False], dtype=np.bool_)[self.name]
