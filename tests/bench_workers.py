"""How far and how fast the search gets on samples that wait: `make bench-workers` prints the table.

Sixteen samples of 4 ms each make a batch, read in the main process. On two cores by hand, 8 workers give about 8x,
16 give 15x and 24 give 25x.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

from fasttrain_doctor import api
from tests.test_whole import WAITING


def main() -> None:
    """Diagnose the script in a folder of its own and print what came of it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("train.py").write_text(WAITING.replace("LIMIT", "999"))
        began = time.monotonic()
        diagnosis = api.diagnose(["train.py"], api.Options(quiet=True)).diagnosis
        wall = time.monotonic() - began
    assert diagnosis is not None
    print(f"{'step':>10} {'workers':>8} {'speedup':>8} {'low':>6} {'high':>6} {'wall':>7}")
    tuned, step = diagnosis.tuned, diagnosis.step
    if tuned is None or step is None:
        print(diagnosis.verdict)
        return
    workers = tuned.settings["dataloader-workers"]["num_workers"]
    gain = tuned.speedup
    print(
        f"{1000 * step.mean:>7.1f} ms {workers:>8} {gain.mid:>7.1f}x {gain.low:>6.1f} {gain.high:>6.1f} {wall:>5.0f} s"
    )


if __name__ == "__main__":
    main()
