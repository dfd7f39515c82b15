"""Every rule has a page, with the same headings, whose example runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fasttrain_doctor import rules
from fasttrain_doctor.rules import Rule, all_rules

HEADINGS = ["What it measures", "Why it costs", "When to leave it", "Fixes", "Example"]
FOLDER = Path(rules.__file__).parent

each_rule = pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.name)


def page(rule: Rule) -> str:
    return (FOLDER / f"{rule.name.replace('-', '_')}.md").read_text(encoding="utf-8")


def example(rule: Rule) -> dict[str, Any]:
    """Run the page's example and return the names it made: ``firing`` and ``silent`` among them."""
    (block,) = re.findall(r"^```python\n(.*?)^```", page(rule).split("## Example")[1], re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, f"{rule.name}.md", "exec"), names)
    return names


@each_rule
def test_page_has_the_fixed_headings_in_order(rule: Rule) -> None:
    text = page(rule)
    assert text.startswith(f"# {rule.name} ({rule.code})\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS


@each_rule
def test_example_holds(rule: Rule) -> None:
    names = example(rule)
    assert "assert" in page(rule).split("## Example")[1]
    assert names["check"] is rule.check


@each_rule
def test_fires_on_its_evidence_and_is_silent_without_its_signal(rule: Rule) -> None:
    names = example(rule)
    finding = rule.check(names["firing"])
    assert finding is not None
    assert 0 <= finding.lost <= 1
    assert len(names["silent"]) >= 2
    assert [rule.check(case) for case in names["silent"]] == [None] * len(names["silent"])


@each_rule
def test_page_names_every_fix_of_the_rule(rule: Rule) -> None:
    fixes = page(rule).split("## Fixes")[1].split("## Example")[0]
    assert set(re.findall(r"^- `([a-z0-9-]+)`", fixes, re.MULTILINE)) == set(rule.fixes)


def test_every_page_belongs_to_a_rule() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {rule.name.replace("-", "_") for rule in all_rules()}
