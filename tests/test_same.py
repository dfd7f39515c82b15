"""Nothing changes for being watched: a few scripts by themselves and watched, compared to the last byte.

``make bench-same`` runs each training by itself, under a look as well, and every way of starting a script.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.same.cases import FORKING, IN_PROCESS, SEEN, STARTED, training
from tests.same.running import Case, compare

MODULE = next(case for case in STARTED if case.name == "as a module")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", [training(*IN_PROCESS, FORKING[0], watch="look"), SEEN, MODULE], ids=lambda c: c.name)
def test_losses_weights_output_status_and_files_are_the_same(case: Case, tmp_path: Path) -> None:
    alone, different, degraded = compare(case, tmp_path)
    assert different == []
    assert degraded == []
    assert alone.code == 0, alone.stderr
    assert alone.stdout
