"""Steps, loaders and phases of training loops as people write them: each a script in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain_doctor.evidence import Phase
from tests.loop_shapes import SHAPES, Shape
from tests.watched import HEAD, Seen, assert_sums, watch


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_steps_of(shape: Shape, tmp_path: Path) -> None:
    seen = watch(HEAD + shape.script, tmp_path)
    assert seen.watched.steps.found_by == shape.found_by
    assert seen.steps == shape.steps, seen.stderr
    assert seen.breakdown.batches_per_step == shape.batches
    assert sorted(seen.roles) == sorted(shape.roles)
    assert seen.recorded.degraded() == []
    assert_sums(seen.breakdown)
    extra = EXTRA.get(shape.name)
    if extra is not None:
        extra(seen)


def _forward_is_seen(seen: Seen) -> None:
    assert seen.phase(Phase.FORWARD) > 0
    assert seen.phase(Phase.BACKWARD) > 0


def _evaluation_is_apart(seen: Seen) -> None:
    assert seen.breakdown.other["eval"] == pytest.approx(0.5 * seen.breakdown.mean, rel=1.0)
    assert (
        seen.breakdown.other["eval"] or 0
    ) > 0.007  # three waits of 5 ms lie between its forwards, in every other step
    assert seen.phase(Phase.FORWARD) < 0.3 * seen.breakdown.mean


def _no_long_step(seen: Seen) -> None:
    assert max(s.seconds for s in seen.watched.steps.steps) < 0.1  # as long as each batch of the validation takes
    assert seen.breakdown.other["eval"] in (None, 0.0)


def _two_training_loaders(seen: Seen) -> None:
    assert len(seen.watched.steps.loaders) == 2


def _made_in_the_loop(seen: Seen) -> None:
    assert seen.breakdown.inferred == ("io", "prepare")
    assert seen.phase(Phase.IO) > 0.0015


def _frameworks_own(seen: Seen) -> None:
    """One millisecond before the step and one within its closure, after the backward: neither is the optimizer's."""
    assert seen.phase(Phase.OPTIMIZER) < 0.5 * seen.phase(Phase.OTHER)


def _exit_code(seen: Seen) -> None:
    assert seen.code == 3


EXTRA = {
    "plain": _forward_is_seen,
    "lbfgs_closure": _forward_is_seen,
    "forward_called_directly": _forward_is_seen,
    "autograd_grad": _forward_is_seen,
    "zip_of_two": _two_training_loaders,
    "teacher_beside_two_loaders": _two_training_loaders,
    "no_loader": _made_in_the_loop,
    "evaluation_inside": _evaluation_is_apart,
    "evaluation_inside_without_loader": _evaluation_is_apart,
    "validation_between_epochs": _no_long_step,
    "closure_of_a_framework": _frameworks_own,
    "os_exit": _exit_code,
}
