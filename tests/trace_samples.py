"""Small Kineto traces made to order, in the format of torch 2.4 and later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HOST, ENGINE = 100, 101  # threads: the loop's, the backward engine's


class Sample:
    """Collects rows; times in microseconds from the start."""

    def __init__(self, base: int = 1_700_000_000_000_000_000) -> None:
        self.rows: list[dict[str, Any]] = []
        self.base = base
        self._calls = 0

    def host(
        self, name: str, start: float, end: float, cat: str = "cpu_op", tid: int | str = HOST, **args: Any
    ) -> None:
        self.rows.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": end - start, "args": args}
        )

    def step(self, number: int, start: float, end: float) -> None:
        self.host(f"ProfilerStep#{number}", start, end, "user_annotation")

    def work(
        self,
        name: str,
        start: float,
        end: float,
        call: float | None = None,
        cat: str = "kernel",
        by: str = "cudaLaunchKernel",
        tid: int = HOST,
        **args: Any,
    ) -> None:
        """Add device work, launched at ``call`` by a call that takes a microsecond; None: no launch in the trace."""
        self._calls += 1
        if call is not None:
            self.host(by, call, call + 1, "cuda_runtime", tid, correlation=self._calls)
        given = {"device": 0, "stream": 7, "correlation": self._calls} | args
        self.rows.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": end - start, "args": given}
        )

    def document(self) -> dict[str, Any]:
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0}],
            "traceEvents": self.rows,
            "baseTimeNanoseconds": self.base,
        }

    def write(self, folder: Path, name: str = "trace.json") -> Path:
        path = folder / name
        path.write_text(json.dumps(self.document()), encoding="utf-8")
        return path


def small() -> Sample:
    """Three steps of one forward and one backward kernel each, the loader in front."""
    made = Sample()
    for n in range(3):
        t = n * 1000.0
        made.step(n, t, t + 1000)
        made.host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t + 10, t + 410, "user_annotation")
        made.host("aten::mm", t + 500, t + 520)
        made.work("ampere_sgemm_128x64_nn", t + 515, t + 615, call=t + 512)
        made.host("autograd::engine::evaluate_function: MmBackward0", t + 550, t + 600, tid=ENGINE)
        made.host("aten::mm", t + 560, t + 590, tid=ENGINE)
        made.work("ampere_sgemm_128x64_tn", t + 615, t + 815, call=t + 570, tid=ENGINE)
    return made
