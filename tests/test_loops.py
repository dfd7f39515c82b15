"""Steps, loaders and phases of training loops as people write them: each a script in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain_doctor.gather import loop_of
from tests import (
    loop_shapes_batches,
    loop_shapes_evaluation,
    loop_shapes_loaders,
    loop_shapes_made,
    loop_shapes_optimizers,
    loop_shapes_updates,
)
from tests.loop_batch import watch_all
from tests.loop_shape import Shape
from tests.watched import Seen, assert_sums

THEMES = {
    "batches": loop_shapes_batches.SHAPES,
    "loaders": loop_shapes_loaders.SHAPES,
    "updates": loop_shapes_updates.SHAPES,
    "optimizers": loop_shapes_optimizers.SHAPES,
    "evaluation": loop_shapes_evaluation.SHAPES,
    "made": loop_shapes_made.SHAPES,
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory):
    """Run the shapes of a theme once and keep what was seen of each."""
    known: dict[str, dict[str, Seen | str]] = {}

    def of(theme: str, shape: Shape) -> Seen:
        if theme not in known:
            known[theme] = watch_all(THEMES[theme], tmp_path_factory.mktemp(theme))
        found = known[theme].get(shape.name, "it was not run")
        assert isinstance(found, Seen), f"no steps were found\n{found}"
        return found

    return of


@pytest.mark.parametrize(
    ("theme", "shape"),
    [
        pytest.param(theme, shape, id=shape.name, marks=pytest.mark.xdist_group(f"loops-{theme}"))
        for theme, shapes in THEMES.items()
        for shape in shapes
    ],
)
def test_steps_of(theme: str, shape: Shape, seen) -> None:
    found = seen(theme, shape)
    assert found.watched.steps.found_by == shape.found_by
    assert found.steps == shape.steps, found.stdout
    assert found.breakdown.batches_per_step == shape.batches
    assert sorted(found.roles) == sorted(shape.roles)
    assert found.code == shape.code, found.stdout
    assert found.recorded.degraded() == []
    assert_sums(found.breakdown)
    _is_in_the_users_code(found, shape)
    if shape.check is not None:
        shape.check(found)


def _is_in_the_users_code(found: Seen, shape: Shape) -> None:
    """The loop and its loaders are named by lines of the script, and the loop is the one that trains."""
    loop = loop_of(found.watched)
    assert loop.file is not None
    assert loop.lines is not None
    assert Path(loop.file).name == f"{shape.name}.py"
    assert {Path(entry.file or "").name for entry in loop.loaders} <= {f"{shape.name}.py"}
    line = Path(loop.file).read_text().splitlines()[loop.lines[0] - 1]
    assert line.strip().startswith(shape.loop)
