"""Laws that hold for every rule, and what single rules promise beyond their page."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from fasttrain_doctor import rules
from fasttrain_doctor.evidence import Evidence, Floor
from fasttrain_doctor.rules import Finding, all_rules, diagnose
from fasttrain_doctor.tuners.fixes import all_fixes
from tests.evidence_samples import CPU, GPU, evidence, evidences


def found(**signals: object) -> dict[str, Finding]:
    return {rule.name: finding for rule, finding in diagnose(evidence(**signals))}  # type: ignore[arg-type]


def test_codes_and_names_are_unique_and_well_formed() -> None:
    codes = [rule.code for rule in all_rules()]
    names = [rule.name for rule in all_rules()]
    assert len(set(codes)) == len(codes)
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Z][A-Z0-9]+\d{3}", code) for code in codes)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


def test_the_rules_of_the_first_release_are_there() -> None:
    assert {rule.name for rule in all_rules()} >= {
        "input-wait-io",
        "input-wait-cpu",
        "pageable-copy",
        "host-sync-in-loop",
        "full-precision-compute",
        "slow-optimizer",
        "logging-in-loop",
    }


def test_a_rule_is_named_like_its_module_and_names_fixes_that_exist() -> None:
    folder = Path(rules.__file__).parent
    for rule in all_rules():
        assert (folder / f"{rule.name.replace('-', '_')}.py").is_file()
        assert set(rule.fixes) <= set(all_fixes())


def test_rules_read_no_file_and_no_clock() -> None:
    for path in Path(rules.__file__).parent.glob("*.py"):
        if path.name == "__init__.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)], path.name
        assert imported <= {
            "__future__",
            "fasttrain_doctor.evidence",
            "fasttrain_doctor.rules",
            "fasttrain_doctor.wording",
        }, path.name
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "id")}
        assert not called & {"open", "print", "eval", "exec"}, path.name


@settings(max_examples=300, deadline=None)
@given(evidences())
def test_whatever_the_evidence_a_finding_is_one_readable_line_with_a_bounded_loss(case: Evidence) -> None:
    for rule in all_rules():
        finding = rule.check(case)
        if finding is None:
            continue
        assert 0 <= finding.lost <= 1
        assert len(finding.message) <= 140
        assert finding.message.isprintable()
        assert finding.message[0].islower()
        json.dumps(dict(finding.evidence), allow_nan=False)


def test_findings_come_largest_loss_first() -> None:
    losses = [f.lost for _, f in diagnose(evidence(io=0.2, prepare=0.3, optimizer=0.25, other={"logging": 0.1}))]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)


def test_nothing_is_found_in_a_step_that_only_computes_on_a_plain_cpu() -> None:
    assert found(forward=0.04, backward=0.06) == {}


def test_a_slow_line_of_logging_is_not_blamed_on_anything_else() -> None:
    assert set(found(forward=0.05, backward=0.05, other={"logging": 0.15})) == {"logging-in-loop"}


def test_an_io_wait_is_not_called_preprocessing() -> None:
    assert set(found(io=0.1, prepare=0.001, forward=0.05, backward=0.05)) == {"input-wait-io"}


def test_waits_for_both_reads_and_preprocessing_are_both_named() -> None:
    assert set(found(io=0.1, prepare=0.1, forward=0.05)) == {"input-wait-io", "input-wait-cpu"}


def test_the_replay_floor_bounds_what_data_can_cost() -> None:
    floor = Floor(free=0.08, ready=0.09, baseline=0.1)
    assert found(io=0.06, forward=0.04, floor=floor)["input-wait-io"].lost == pytest.approx(0.2)
    useless = Floor(free=0.1, ready=0.101, baseline=0.1)
    assert "input-wait-io" not in found(io=0.06, forward=0.04, floor=useless)


def test_more_workers_than_cores_are_suggested_for_reads_and_not_for_preprocessing() -> None:
    few = replace(CPU, cores=2)
    waits = found(io=0.05, prepare=0.05, forward=0.01, machine=few, loader={"num_workers": 2})
    assert "more workers than cores can help" in waits["input-wait-io"].message
    assert "do less per sample" in waits["input-wait-cpu"].message


def test_a_loop_without_a_loader_is_told_so() -> None:
    case = replace(evidence(io=0.05, prepare=0.05, forward=0.01), loader=None)
    assert all("without a DataLoader" in finding.message for _, finding in diagnose(case))


def test_pinning_that_does_not_reach_the_batch_is_seen_by_its_bytes() -> None:
    case = found(
        h2d=0.02,
        forward=0.08,
        machine=GPU,
        clock="device",
        model={"device": "cuda", "autocast": "bfloat16"},
        loader={"pin_memory": True},
        device={"h2d_pageable_bytes": 100},
    )
    assert "pin_memory=True does not reach" in case["pageable-copy"].message


def test_a_blocking_read_costs_only_where_the_device_stood_idle() -> None:
    busy = {"machine": GPU, "clock": "device", "model": {"device": "cuda", "autocast": "bfloat16"}, "forward": 0.1}
    assert "host-sync-in-loop" not in found(other={"sync": 0.09}, device={"idle_by_reason": {"sync": 0.001}}, **busy)
    assert "host-sync-in-loop" in found(device={"idle_by_reason": {"sync": 0.2}}, **busy)


@pytest.mark.parametrize(
    ("flags", "bound"), [(("avx2",), None), (("avx512_bf16",), 0.5), (("avx512_bf16", "amx_bf16"), 0.9375)]
)
def test_on_a_cpu_lower_precision_counts_only_with_units_for_it(flags: tuple[str, ...], bound: float | None) -> None:
    finding = found(forward=0.04, backward=0.06, machine=replace(CPU, cpu_flags=flags)).get("full-precision-compute")
    assert (None if finding is None else finding.lost) == (None if bound is None else pytest.approx(bound))


def test_tf32_halves_what_bf16_can_still_bring() -> None:
    cuda = {
        "machine": GPU,
        "clock": "device",
        "forward": 0.04,
        "backward": 0.06,
        "device": {"tensor_core": 0.95, "compute": 1.0},
    }
    assert "full-precision-compute" not in found(model={"device": "cuda", "tf32": False}, **cuda)
    assert found(model={"device": "cuda", "tf32": True}, **cuda)["full-precision-compute"].lost == pytest.approx(0.5)


def test_the_least_fused_optimizer_is_named() -> None:
    case = found(forward=0.01, optimizer=0.02, update={"cls": "torch.optim.sgd.SGD", "foreach": False})
    assert "`SGD` over 161 tensors, foreach=False" in case["slow-optimizer"].message
