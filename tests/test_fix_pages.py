"""Every fix has a page, with the same headings, whose example runs and shows where it applies and where not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fasttrain_doctor.tuners import fixes
from fasttrain_doctor.tuners.fixes import Fix, all_fixes

HEADINGS = ["What it changes", "What stays the same", "When it hurts", "What was measured", "Source"]
FOLDER = Path(fixes.__file__).parent
UNTRIED = "never run on a device"

each_fix = pytest.mark.parametrize("fix", all_fixes().values(), ids=lambda fix: fix.name)


def page(fix: Fix) -> str:
    return (FOLDER / f"{fix.name.replace('-', '_')}.md").read_text(encoding="utf-8")


def example(fix: Fix) -> dict[str, Any]:
    """Run the page's example and return the names it made: ``applies`` and ``refused`` among them."""
    (block,) = re.findall(r"^```python\n(.*?)^```", page(fix), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, f"{fix.name}.md", "exec"), names)
    assert "assert" in block
    return names


@each_fix
def test_page_has_the_fixed_headings_in_order(fix: Fix) -> None:
    assert page(fix).startswith(f"# {fix.name}\n")
    assert re.findall(r"^## (.*)$", page(fix), re.MULTILINE) == HEADINGS


@each_fix
def test_every_part_of_a_page_says_something(fix: Fix) -> None:
    assert all(len(part.split()) >= 4 for part in re.split(r"^## .*$", page(fix), flags=re.MULTILINE)[1:])


@each_fix
def test_what_needs_a_device_says_that_it_never_ran_on_one(fix: Fix) -> None:
    assert (UNTRIED in page(fix)) == fix.device_only


@each_fix
def test_numbers_come_with_the_command_that_measured_them(fix: Fix) -> None:
    measured = page(fix).split("## What was measured")[1].split("## Source")[0]
    assert "`python -m" in measured or "Not measured: needs a GPU" in measured
    assert fix.device_only or re.search(r"\d\.\d", measured)


@each_fix
def test_example_holds_and_shows_where_the_fix_applies_and_where_not(fix: Fix) -> None:
    names = example(fix)
    assert names["fix"] is fix
    applicable = fix.options(names["applies"])
    assert applicable.values
    assert not applicable.reason
    assert len(names["refused"]) >= 2
    for evidence in names["refused"]:
        refused = fix.options(evidence)
        assert not refused.values
        assert len(refused.reason) > 10


def test_every_page_belongs_to_a_fix() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {name.replace("-", "_") for name in all_fixes()}
