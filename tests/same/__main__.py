"""Runs every script by itself and watched, and prints what is not the same: python -m tests.same [NAME ...]."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.same.cases import CASES
from tests.same.running import Case, compare


def main(names: Sequence[str]) -> int:
    """Print a row per case; returns how many were not the same."""
    chosen: list[Case] = [case for case in CASES if not names or any(case.name.startswith(name) for name in names)]
    wrong = 0
    for case in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            alone, different, degraded = compare(case, Path(folder))
        different += [f"degraded: {what}" for what in degraded]
        wrong += bool(different)
        lines = alone.stdout.count("\n")
        said = "same" if not different else f"{len(different)} differences"
        print(f"{case.name:28} {case.watch:8} status {alone.code!s:>4} {lines:4} lines  {said:15}", end="")
        print(f" {time.monotonic() - began:4.0f} s", flush=True)
        for line in different[:40]:
            print(f"    {line[:300]}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} the same")
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
