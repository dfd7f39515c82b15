"""What the rules on the step and what lies beside it promise beyond their pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fasttrain_doctor.evidence import Copies, Debug, EpochCost, HotLine, Look, Operator, Phase, Pressure
from fasttrain_doctor.rules import Finding, all_rules, diagnose
from tests.evidence_samples import CPU, GPU, evidence
from tests.watched import HEAD, watch

STEP = {"forward": 0.04, "backward": 0.06}
ON_DEVICE = {"machine": GPU, "clock": "device", "model": {"device": "cuda", "autocast": "bfloat16"}}


def found(**signals: object) -> dict[str, Finding]:
    return {rule.name: finding for rule, finding in diagnose(evidence(**signals))}  # type: ignore[arg-type]


# Copies: one rule speaks, never both.


@pytest.mark.parametrize(
    ("pageable", "blocking", "rule"), [(38e6, 0.0, "pageable-copy"), (1e6, 38e6, "blocking-copy"), (0.0, 0.0, None)]
)
def test_a_copy_is_either_from_pageable_memory_or_blocking(pageable: float, blocking: float, rule: str | None) -> None:
    copies = Copies(pageable=0.01, blocking=0.01, pageable_bytes=pageable, blocking_bytes=blocking)
    loader = {"pin_memory": rule != "pageable-copy"}
    said = found(h2d=0.01, copies=copies, loader=loader, **STEP, **ON_DEVICE)
    assert set(said) == ({rule} if rule else set())


def test_without_a_deep_pass_the_scripts_own_copies_say_whether_their_source_was_pinned() -> None:
    by_hand = Copies(pageable=0.0, blocking=0.0, pageable_bytes=0.0, blocking_bytes=0.0)
    missed = Copies(pageable=0.01, blocking=0.0, pageable_bytes=38e6, blocking_bytes=0.0)
    step = {"h2d": 0.01, **STEP, **ON_DEVICE}
    assert "pageable-copy" not in found(copies=by_hand, loader={"pin_memory": False}, **step)
    said = found(copies=missed, loader={"pin_memory": True}, **step)
    assert "pin_memory=True does not reach" in said["pageable-copy"].message


def test_only_the_part_of_the_copies_that_blocks_is_lost_to_blocking() -> None:
    copies = Copies(pageable=0.0, blocking=0.02, pageable_bytes=1e6, blocking_bytes=3e6)
    said = found(h2d=0.1, copies=copies, loader={"pin_memory": True}, forward=0.1, **ON_DEVICE)
    assert said["blocking-copy"].lost == pytest.approx(0.5 * 0.75)


def test_a_blocking_copy_that_the_deep_pass_saw_hidden_costs_nothing() -> None:
    copies = Copies(pageable=0.0, blocking=0.02, pageable_bytes=0, blocking_bytes=38e6)
    loader = {"pin_memory": True}
    assert found(h2d=None, device={"h2d_exposed": 0.0}, copies=copies, loader=loader, **STEP, **ON_DEVICE) == {}


# Costs beside the steps are of the epoch and say so.


def test_what_lies_between_the_steps_is_a_share_of_the_epoch() -> None:
    epoch = EpochCost(batches=10, start=0.5, eval=2.0, checkpoint=1.5)  # beside 1 s of steps
    said = found(epoch=epoch, **STEP)
    assert said["eval-dominates"].lost == pytest.approx(2.0 / 5.0)
    assert said["checkpoint-stall"].lost == pytest.approx(1.5 / 5.0)
    assert {said[name].of for name in ("eval-dominates", "checkpoint-stall")} == {"epoch"}
    assert all("of each epoch" in said[name].message for name in ("eval-dominates", "checkpoint-stall"))


def test_with_accumulation_an_epoch_has_fewer_steps() -> None:
    case = evidence(epoch=EpochCost(batches=40, eval=1.0), **STEP)
    case = replace(case, breakdown=replace(case.breakdown, batches_per_step=4))
    ((rule, finding),) = diagnose(case)
    assert rule.name == "eval-dominates"
    assert finding.lost == pytest.approx(0.5)


def test_an_evaluation_inside_the_loop_is_of_the_step_whatever_the_epoch_says() -> None:
    said = found(other={"eval": 0.1}, epoch=EpochCost(batches=10, eval=5.0), **STEP)
    assert said["eval-dominates"].of == "step"
    assert said["eval-dominates"].lost == pytest.approx(0.5)


def test_slow_validation_between_fast_epochs_is_nothing_of_the_step() -> None:
    said = found(epoch=EpochCost(batches=10, eval=5.0), **STEP)
    assert [finding.of for finding in said.values()] == ["epoch"]


# On the device's clock a pause of the host costs no more than the device stood idle in it.


@pytest.mark.parametrize(
    ("part", "rule"),
    [("sync", "host-sync-in-loop"), ("logging", "logging-in-loop"), ("checkpoint", "checkpoint-stall"),
     ("gc", "gc-pauses"), ("python", "host-work-in-loop")],
)  # fmt: skip
def test_a_pause_that_the_device_works_through_costs_nothing(part: str, rule: str) -> None:
    case = evidence(other={part: 0.09}, **STEP, **ON_DEVICE)  # type: ignore[arg-type]
    assert rule in {r.name for r, _ in diagnose(case)}
    split = dict(case.breakdown.phases) | {Phase.OTHER: 0.001, Phase.BACKWARD: 0.149}
    hidden = replace(case, breakdown=replace(case.breakdown, phases=split))
    assert rule not in {r.name for r, _ in diagnose(hidden)}


# The update: fused where that is known to help.


def test_an_optimizer_without_a_fused_form_is_not_told_to_fuse() -> None:
    for cls in ("muon.Muon", "torch.optim.rmsprop.RMSprop", "transformers.optimization.AdamW"):
        custom = found(forward=0.01, optimizer=0.02, update={"cls": cls})["slow-optimizer"].message
        assert "fused=False" not in custom
        assert "no fused form known" in custom


def test_few_large_tensors_are_left_alone_on_a_device_and_only_there() -> None:
    big = {"parameters": 2, "elements": 8 << 20}
    step = {"forward": 0.01, "optimizer": 0.02}
    assert "slow-optimizer" not in found(update=big | {"device": "cuda"}, **step)
    assert "slow-optimizer" in found(update=big | {"device": "cuda", "foreach": False}, **step)
    assert "slow-optimizer" in found(update=big | {"device": "cuda", "parameters": 200}, **step)
    assert "slow-optimizer" in found(update=big, **step)


# Garbage: what the script asks for has a place, what comes by itself has none.


def test_collections_are_asked_for_only_when_most_of_them_are() -> None:
    spans = {"gc": (("train.py:41", 0.001),)}
    assert "automatic" in found(other={"gc": 0.02}, spans=spans, **STEP)["gc-pauses"].message
    assert "train.py:41" in found(other={"gc": 0.0015}, spans=spans, forward=0.01)["gc-pauses"].message


def test_nobody_is_told_to_turn_the_collector_off() -> None:
    folder = Path(__file__).parents[1] / "doctor" / "rules"
    spans = {"gc": (("train.py:41", 0.02),)}
    for case in (found(other={"gc": 0.02}, **STEP), found(other={"gc": 0.02}, spans=spans, **STEP)):
        assert "disable" not in case["gc-pauses"].message
    fixes = (folder / "gc_pauses.md").read_text(encoding="utf-8").split("## Fixes")[1]
    assert "gc.disable" not in fixes
    assert "gc.freeze" in fixes


GARBAGE = (
    HEAD
    + """
import gc, sys
keep = [{"i": [i]} for i in range(20_000)]
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for i, (x, y) in enumerate(DataLoader(Points(), 4)):
    opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
    if sys.argv[1] == "asks":
        gc.collect()
    else:
        junk = [[{}] for _ in range(20_000)]
"""
)


@pytest.mark.parametrize("how", ["asks", "litters"])
def test_a_collection_that_the_script_asks_for_is_told_from_one_that_comes_by_itself(tmp_path: Path, how: str) -> None:
    seen = watch(GARBAGE, tmp_path, args=[how])
    assert (seen.breakdown.other["gc"] or 0.0) > 0
    places = [place.rpartition("/")[2] for place, _ in seen.watched.spans.get("gc", ())]
    line = 1 + next(i for i, text in enumerate(GARBAGE.splitlines()) if "gc.collect()" in text)
    assert places == ([f"train.py:{line}"] if how == "asks" else [])


# Python between the phases: lines that were seen, no others.


def test_without_a_look_no_line_is_guessed() -> None:
    spans = {"logging": (("train.py:41", 0.001),)}
    message = found(other={"python": 0.1}, spans=spans, **STEP)["host-work-in-loop"].message
    assert "train.py" not in message


def test_lines_of_the_phases_and_of_no_weight_are_not_named() -> None:
    lines = tuple(
        HotLine("train.py", number, "main", seconds)
        for number, seconds in ((1, 0.5), (2, 0.001), (3, 0.03), (4, 0.06), (5, 0.02))
    )
    message = found(other={"python": 0.1}, look=Look(0, 9, loop_lines=lines), **STEP)["host-work-in-loop"].message
    assert "60 ms at train.py:4, 30 ms at train.py:3" in message
    assert not [n for n in (1, 2, 5) if f"train.py:{n}" in message]


def test_a_line_and_the_comprehensions_on_it_are_one_place() -> None:
    lines = (HotLine("t.py", 83, "st", 0.02), HotLine("t.py", 83, "<genexpr>", 0.03), HotLine("t.py", 84, "st", 0.04))
    message = found(other={"python": 0.1}, look=Look(0, 9, loop_lines=lines), **STEP)["host-work-in-loop"].message
    assert "50 ms at t.py:83, 40 ms at t.py:84" in message


def test_where_the_loop_makes_its_batches_no_line_is_taken_for_its_other_work() -> None:
    look = Look(0, 9, loop_lines=(HotLine("train.py", 3, "main", 0.09),))
    case = evidence(other={"python": 0.1}, prepare=0.09, look=look, **STEP)  # type: ignore[arg-type]
    made = replace(case, loader=None, breakdown=replace(case.breakdown, inferred=("io", "prepare")))
    (message,) = [finding.message for rule, finding in diagnose(made) if rule.name == "host-work-in-loop"]
    assert "train.py" not in message


# Debugging: a bound by the phases a mode slows.

ANOMALY = Debug("anomaly detection", "torch.is_anomaly_enabled()")
DETERMINISTIC = Debug("deterministic algorithms", "torch.are_deterministic_algorithms_enabled()")
TRACER = Debug("a trace function", "sys.gettrace()")


@pytest.mark.parametrize(
    ("modes", "cuda", "lost"),
    [
        ((ANOMALY,), False, 0.5),
        ((DETERMINISTIC,), False, None),
        ((DETERMINISTIC,), True, 0.5),
        ((TRACER,), False, 0.8),
        ((ANOMALY, DETERMINISTIC), True, 0.5),
        ((ANOMALY, TRACER), False, 0.8),
        ((), False, None),
    ],
)
def test_a_debug_mode_costs_at_most_what_it_slows(modes: tuple[Debug, ...], cuda: bool, lost: float | None) -> None:
    step = {
        "io": 0.02,
        "prepare": 0.01,
        "forward": 0.02,
        "backward": 0.03,
        "optimizer": 0.01,
        "other": {"python": 0.01},
    }
    device = {"machine": GPU, "model": {"device": "cuda"}} if cuda else {}
    said = found(debug=modes, **step, **device).get("debug-mode-left-on")
    assert (None if said is None else said.lost) == (None if lost is None else pytest.approx(lost))


# Growth: of memory a warning, of the step half of it.


def test_a_warning_comes_after_all_that_costs_time() -> None:
    machine = replace(CPU, memory_free=1 << 30)
    said = diagnose(evidence(io=0.02, machine=machine, pressure=Pressure(growth=1 << 20), trend=0.2, **STEP))  # type: ignore[arg-type]
    assert [rule.name for rule, _ in said] == ["input-wait-io", "growing-step", "memory-growth"]
    assert said[-1][1].lost == 0


def test_shared_lists_are_suspected_only_with_workers() -> None:
    machine = replace(CPU, memory_free=36 << 30)
    grows = {"machine": machine, "pressure": Pressure(growth=10 << 20), **STEP}
    assert "workers" in found(loader={"num_workers": 2}, **grows)["memory-growth"].message
    assert "workers" not in found(loader={"num_workers": 0}, **grows)["memory-growth"].message


def test_a_step_that_grew_to_many_times_its_start_is_lost_at_most_whole() -> None:
    assert found(trend=9.0, **STEP)["growing-step"].lost == 1.0


# Small batches: the overhead of calls, and nothing else that is short.


def test_a_slow_line_in_a_tiny_model_is_no_small_batch() -> None:
    tiny = (
        Operator(Phase.FORWARD, "aten::addmm", 40e-6, 18, "cpu"),
        Operator(Phase.BACKWARD, "aten::mm", 35e-6, 32, "cpu"),
    )
    slow = replace(evidence(forward=0.03, backward=0.001), operators=tiny)  # it sleeps in its forward
    assert "small-batch" not in {rule.name for rule, _ in diagnose(slow)}
    quick = replace(evidence(forward=1e-4, backward=8e-5), operators=tiny)
    assert "small-batch" in {rule.name for rule, _ in diagnose(quick)}


def test_a_batch_of_unknown_size_is_not_called_small() -> None:
    tiny = (Operator(Phase.FORWARD, "aten::addmm", 160e-6, 204, "cpu"),)
    case = replace(evidence(forward=3e-4), operators=tiny)
    unknown = replace(case, breakdown=replace(case.breakdown, samples_per_step=None))
    assert "small-batch" in {rule.name for rule, _ in diagnose(case)}
    assert "small-batch" not in {rule.name for rule, _ in diagnose(unknown)}


def test_a_compiled_model_is_not_told_to_compile() -> None:
    launches = {"device": {"idle_by_reason": {"dispatch": 0.4}}, **STEP, "machine": GPU, "clock": "device"}
    model = {"device": "cuda", "autocast": "bfloat16"}
    assert "compile" in found(model=model, **launches)["small-batch"].message
    assert "compile" not in found(model=model | {"compiled": True}, **launches)["small-batch"].message


# The GPU's clock: heat before the power limit, and no settings of the user's.


def test_heat_is_named_before_a_power_limit_that_is_always_reached() -> None:
    hot = Pressure(gpu_slowed_by=(("power-cap", 1.0), ("thermal-hardware", 0.2)))
    said = found(pressure=hot, **STEP, **ON_DEVICE)["gpu-throttled"]
    assert "too hot in 20%" in said.message
    assert said.lost == pytest.approx(0.2)


@pytest.mark.parametrize("reason", ["idle", "application-clocks", "display-clocks", "sync-boost"])
def test_what_the_user_set_is_no_throttling(reason: str) -> None:
    assert found(pressure=Pressure(gpu_slowed_by=((reason, 1.0),)), **STEP, **ON_DEVICE) == {}


@pytest.mark.parametrize(
    "name",
    [
        "blocking-copy",
        "checkpoint-stall",
        "eval-dominates",
        "gc-pauses",
        "host-work-in-loop",
        "debug-mode-left-on",
        "memory-growth",
        "growing-step",
        "small-batch",
        "gpu-throttled",
    ],
)
def test_nothing_is_said_of_what_was_not_measured(name: str) -> None:
    rule = next(rule for rule in all_rules() if rule.name == name)
    other = dict.fromkeys(("gc", "eval", "checkpoint", "python"))
    assert rule.check(evidence(other=other, h2d=None, **STEP)) is None  # type: ignore[arg-type]
