"""Frameworks, unmodified: steps against their own counters, loaders' roles, and the user's line that trains.

None of them is among the test dependencies; what is not installed is skipped by name. To run all, in an environment of
their own:

    python -m venv frameworks
    frameworks/bin/pip install -e '.[test]' torchvision lightning transformers accelerate pytorch-ignite skorch fastai
    frameworks/bin/pip install torch-geometric timm ultralytics monai webdataset
    frameworks/bin/python -m pytest tests/test_frameworks.py
"""

from __future__ import annotations

import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from fasttrain_doctor.gather import loop_of
from tests.framework_loops import FRAMEWORKS, Framework
from tests.watched import HEAD, assert_sums, watch


def _needing(framework: Framework) -> object:
    lacking = [name for name in framework.needs if find_spec(name) is None]
    marks = [pytest.mark.skip(reason=f"{', '.join(lacking)} is not installed")] if lacking else []
    return pytest.param(framework, id=framework.name, marks=marks)


@pytest.mark.parametrize("framework", map(_needing, FRAMEWORKS))
def test_steps_under(framework: Framework, tmp_path: Path) -> None:
    seen = watch(HEAD + textwrap.dedent(framework.script), tmp_path)
    assert f"updates {framework.updates}" in seen.stdout
    assert seen.watched.steps.found_by == framework.found_by
    assert seen.steps == framework.steps
    assert seen.breakdown.batches_per_step == framework.batches
    assert sorted(set(seen.roles)) == sorted(framework.roles)
    assert seen.recorded.degraded() == []
    assert_sums(seen.breakdown)
    loop = loop_of(seen.watched)
    assert Path(loop.file or "").name == "train.py"
    assert loop.lines is not None
    line = (tmp_path / "train.py").read_text().splitlines()[loop.lines[0] - 1]
    assert line.strip().startswith(framework.calls)
