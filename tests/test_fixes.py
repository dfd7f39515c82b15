"""Laws that hold for every fix."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.evidence import Effect, Evidence
from fasttrain_doctor.tuners.fixes import Change, Fix, all_fixes, plan_effect
from tests.evidence_samples import evidence, evidences
from tests.test_fix_pages import example

each_fix = pytest.mark.parametrize("fix", all_fixes().values(), ids=lambda fix: fix.name)
UNUSABLE = (None, -1, "what", 1.5, {}, {"what": 1}, [1])


def values(fix: Fix) -> tuple[Any, ...]:
    found: tuple[Any, ...] = fix.options(example(fix)["applies"]).values
    return found


def test_names_match_modules_and_sides_are_known() -> None:
    assert len(all_fixes()) >= 6
    for name, fix in all_fixes().items():
        assert fix.install.__module__.rpartition(".")[2] == name.replace("-", "_")
        assert fix.side in ("data", "compute")
        assert fix.summary == fix.summary.strip(". ")


def test_finding_them_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from fasttrain_doctor.tuners.fixes import all_fixes; all_fixes();"
        "print([m for m in ('torch', 'triton', 'numpy', 'torchvision') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(evidences())
def test_on_any_evidence_a_fix_has_values_or_a_reason(case: Evidence) -> None:
    for fix in all_fixes().values():
        found = fix.options(case)
        assert bool(found.values) != bool(found.reason)
        assert json.loads(json.dumps(found.values)) == [*found.values]
        assert len({json.dumps(value) for value in found.values}) == len(found.values)
        for value in found.values:
            assert isinstance(fix.effect(case, value), Effect)
            guess = fix.expected(case, value)
            assert guess is None or (math.isfinite(guess) and guess > 0)
            assert isinstance(fix.install(value), Change)
        for knob in fix.knobs(case):
            assert 1 <= knob.low <= knob.high
        if not found.values:
            assert not fix.knobs(case)


@given(evidences())
def test_without_an_accelerator_nothing_is_offered_that_needs_one(case: Evidence) -> None:
    for fix in all_fixes().values():
        if fix.device_only and not case.machine.gpus:
            assert fix.options(case).reason


@each_fix
def test_its_values_install_as_changes_that_can_be_undone(fix: Fix) -> None:
    for value in values(fix):
        change = fix.install(value)
        assert not change.process
        assert change != Change()
        assert fix.applied(value)
        assert "\n" not in fix.applied(value)


@each_fix
def test_installing_twice_shares_nothing(fix: Fix) -> None:
    """Two arms with the same fix live side by side."""
    one, two = (fix.install(values(fix)[0]) for _ in range(2))
    for part in ("batches", "copy", "dataset", "backward", "step"):
        held = getattr(getattr(one, part), "__self__", None)
        assert held is None or held is not getattr(two, part).__self__


@each_fix
@pytest.mark.parametrize("value", UNUSABLE, ids=repr)
def test_a_value_it_cannot_use_is_refused_by_name(fix: Fix, value: Any) -> None:
    with pytest.raises(ValueError, match=fix.name):
        fix.install(value)


def test_a_plan_may_change_what_its_boldest_fix_may() -> None:
    case = evidence(io=0.1, forward=0.1, loader={"rng_untouched": True})
    workers = {"num_workers": 4}
    assert plan_effect({}, case) == Effect.EXACT
    assert plan_effect({"dataloader-workers": workers}, case) == Effect.EXACT
    assert plan_effect({"dataloader-workers": workers, "amp": "bfloat16"}, case) == Effect.PRECISION


@given(st.sampled_from(sorted(all_fixes())), evidences())
def test_judging_changes_nothing(name: str, case: Evidence) -> None:
    fix, before = all_fixes()[name], repr(case)
    assert fix.options(case) == fix.options(case)
    assert repr(case) == before
