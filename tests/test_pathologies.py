"""A cause that people reported is named where it slows a loop, and not named where it does not.

Those that can be told from a few steps; ``python -m tests.truth --pathologies`` goes through all, as a user would.
"""

from __future__ import annotations

import sys

import pytest

from fasttrain_doctor import machine
from fasttrain_doctor.case import Case
from fasttrain_doctor.judging import judge
from fasttrain_doctor.launch import parse_target
from tests.loop_batch import watch_all
from tests.loop_shape import Shape
from tests.pathologies import PATHOLOGIES, Pathology
from tests.watched import HEAD, Seen

QUICK = [case for case in PATHOLOGIES if case.quick]
STEPS = 24

pytestmark = pytest.mark.xdist_group("pathologies")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen | str]:
    """Both variants of every case, run once."""
    scripts = [
        Shape(f"{case.name}_{'slow' if slow else 'fast'}", case.script(slow, STEPS).removeprefix(HEAD), steps=STEPS)
        for case in QUICK
        for slow in (True, False)
    ]
    return watch_all(scripts, tmp_path_factory.mktemp("pathologies"))


def rules(found: Seen | str) -> set[str]:
    assert isinstance(found, Seen), found
    case = Case("train.py", [], "", machine.machine(), watched=found.watched)
    judge(case, parse_target([sys.executable, "train.py"]))
    return {rule.name for rule, _ in case.findings}


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_the_cause_is_named_where_it_slows_the_loop_and_only_there(case: Pathology, seen) -> None:
    assert case.rule in rules(seen[f"{case.name}_slow"])
    assert case.rule not in rules(seen[f"{case.name}_fast"])
