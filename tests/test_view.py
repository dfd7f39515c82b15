"""The view: every number worded once, what is unmeasured said with its reason, and never a zero in its place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.diagnosis import FindingFacts, FloorFacts, Interval, NotMeasured, Ranks
from fasttrain_doctor.reports import words
from fasttrain_doctor.reports.hardware_parts import charts
from fasttrain_doctor.reports.sentence import kicker, sentence
from fasttrain_doctor.reports.view import view

from .samples import SAMPLES, SUCCESS


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0 ms"), (3.4e-7, "0.34 µs"), (4.2e-5, "42.0 µs"), (0.00342, "3.42 ms"), (0.0412, "41.2 ms"),
        (0.118, "118 ms"), (0.9996, "1.00 s"), (2.34, "2.34 s"), (118.0, "118 s"), (200, "3 min 20 s"),
        (3600 * 2 + 61, "2 h 1 min"),
    ],
)  # fmt: skip
def test_times_have_three_digits_and_a_fitting_unit(value, said):
    assert words.seconds(value) == said


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "0%"), (0.0004, "<0.1%"), (0.024, "2.4%"), (0.03, "3%"), (0.4915, "49%"), (1.0, "100%")]
)
def test_shares(value, said):
    assert words.share(value) == said


def test_speedups_carry_their_interval():
    assert words.interval(Interval(mid=2.412, low=2.33, high=2.489)) == "2.41x (2.33 to 2.49)"
    assert words.interval(Interval(mid=15.31, low=14.04, high=16.0)) == "15.3x (14.0 to 16.0)"


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=8))
def test_whole_percentages_of_a_step_sum_to_100(parts):
    said = words.shares(parts)
    total = sum(0 if text == "<1%" else int(text[:-1]) for text in said)
    assert total == (100 if sum(parts) > 0 else 0)


@given(st.floats(1e-7, 1e5))
def test_a_worded_time_is_within_half_a_percent(value):
    if value < 119:
        number, unit = words.seconds(value).split()
        assert float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit] == pytest.approx(
            value, rel=0.05 if value < 1e-6 else 0.006
        )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("success", "verified gain"),
        ("nothing-to-gain", "nothing to gain"),
        ("no-proven-gain", "no proven gain"),
        ("candidate", "not confirmed"),
        ("interrupted", "not confirmed"),
        ("no-trials", "bottleneck found, nothing tried"),
        ("failed", "not measured"),
    ],
)
def test_every_ending_has_its_name(name, said):
    assert kicker(SAMPLES[name]) == said


def test_a_gain_is_told_with_its_interval_and_what_it_does_to_the_training():
    assert sentence(SUCCESS) == (
        "train.py trains 2.62x as fast (2.51 to 2.71) with dataloader-workers, loss within envelope."
    )


def test_a_warning_does_not_end_as_if_all_were_well():
    grows = FindingFacts(code="MEM001", rule="memory-growth", lost=0.0, message="m", evidence={}, fixes=[])
    calm = SAMPLES["nothing-to-gain"]
    assert sentence(replace(calm, findings=[grows])) == sentence(calm) + " But look at memory-growth."
    assert view(replace(calm, findings=[grows])).actions[0].lost == "costs no time yet"


def test_a_loss_between_the_steps_is_said_to_be_of_the_epoch():
    restart = FindingFacts(code="X001", rule="x", lost=0.4, message="m", evidence={}, fixes=[], of="epoch")
    diagnosis = replace(SAMPLES["no-trials"], findings=[restart])
    assert "the largest worth up to 40% of each epoch" in sentence(diagnosis)
    assert view(diagnosis).actions[0].lost == "up to 40% of the epoch"


def test_the_verdict_of_the_diagnosis_is_shown_where_it_has_one():
    assert view(replace(SUCCESS, verdict="as written")).verdict == "as written"


def test_only_what_the_confirmed_plan_holds_is_called_verified():
    assert [trial.verdict for trial in view(SUCCESS).trials] == [
        "verified", "no difference", "no difference", "faster", "failed", "verified",
    ]  # fmt: skip
    assert "verified" not in [trial.verdict for trial in view(SAMPLES["candidate"]).trials]


def test_findings_are_ranked_by_verified_gain_then_by_loss():
    swapped = replace(SUCCESS, findings=SUCCESS.findings[::-1])
    assert [action.code for action in view(swapped).actions] == ["IO001", "OP001"]


def test_a_trial_on_top_of_a_plan_is_named_for_what_it_added():
    trial = view(SUCCESS).trials[2]
    assert trial.what == "fused-optimizer"
    assert trial.note == "within the noise of ±2%; on top of dataloader-workers"
    assert trial.total == pytest.approx(1.01 * 2.41)


def test_a_fix_the_search_refined_speaks_by_its_own_trial_and_says_so():
    refined = {"dataloader-workers": {"num_workers": 24}}
    diagnosis = replace(SUCCESS, tuned=replace(SUCCESS.tuned, settings=refined))
    action = view(diagnosis).actions[0]
    assert action.command == "fasttrain-doctor apply"
    assert action.tried[0].verdict == "faster"
    assert action.tried[0].note == ("reseeded, refined in the confirmed plan to dataloader-workers: num_workers=24")


def test_bars_share_one_scale_and_the_step_fills_its_own():
    step, floor, tuned = view(SUCCESS).bars
    assert sum(segment.width for segment in step.segments) == pytest.approx(1)
    assert (step.length, floor.length, tuned.length) == pytest.approx((1, 0.041 / 0.118, 0.045 / 0.118))


def test_reads_and_preparation_that_cannot_be_told_apart_are_one_part_and_no_zero():
    shown = view(SAMPLES["degraded"])
    assert shown.phase_line[0] == "data 79"
    rows = {row[0]: row for row in shown.phases.rows}
    assert rows["io"][1] == "not measured"
    assert rows["io"][4] == "/proc/thread-self/schedstat is not there"


def test_an_absent_section_says_why():
    absent = view(SAMPLES["failed"]).absent
    assert absent["step"] == "3 steps ran and 12 are needed"
    assert set(absent) == {"step", "timeline", "loader", "operators", "hardware", "trials"}
    unseen = NotMeasured(what="look", why="two steps take 9.0 s")
    assert view(replace(SUCCESS, not_measured=[unseen])).absent["inside"] == "two steps take 9.0 s"
    assert view(SAMPLES["degraded"]).absent["trials"] == "the script failed before they began"


def test_pairs_and_noise_lie_in_order_on_their_strip():
    strip = view(SUCCESS).trials[0].strip
    assert 0 <= strip.noise[0] < strip.same < strip.noise[1] < strip.low < strip.mid < strip.high <= 1
    assert len(strip.dots) == 8


def test_hardware_draws_what_is_there_on_one_clock():
    samples = [
        {"t": 5_000_000_000_000 + i * 500_000_000, "cpu": {"percent": [0.5, 0.25]}, "note": "x"} for i in range(4)
    ]
    (chart,) = charts(samples)
    assert (chart.title, chart.unit) == ("CPU", "%")
    assert [curve.values for curve in chart.curves] == [(50.0,) * 4, (25.0,) * 4]
    assert chart.curves[0].times == (0.0, 0.5, 1.0, 1.5)


@pytest.mark.parametrize("samples", [[], [{}], [{"t": "x"}], [{"t": 1.0}], [{"t": 1.0, "cpu": None}, {"t": 2.0}]])
def test_readings_that_hold_nothing_draw_nothing(samples):
    assert charts(samples) == ()


def test_a_samples_stages_sum_to_its_bar_and_the_costliest_transform_is_named():
    shown = view(SUCCESS)
    assert shown.sample is not None
    assert sum(segment.width for segment in shown.sample.segments) == pytest.approx(1)
    assert [segment.key for segment in shown.sample.segments][:3] == ["sampler", "read", "decode"]
    stages, slow = shown.inside_lines
    assert stages.partition("; ")[0] == (
        "inside the loader: read 0.78 | decode 0.19 | transform 0.15 (RandomResizedCrop 0.08) | own code 0.04 | "
        "collate 0.07 ms a sample"
    )
    assert stages.endswith("; hottest line data.py:21")
    assert slow == "slow samples take 21% of the fetching (1 in 64, up to 31.2 ms, index 40213; the median is 790 µs)"


def test_without_a_look_inside_the_records_of_fetches_speak():
    plain = replace(SUCCESS, loader=replace(SUCCESS.loader, stages=None, transforms=None, hot_lines=None))
    assert view(plain).inside_lines[0] == "inside the loader: __getitem__ 1.16 | collate 0.07 ms a sample"
    nothing = replace(plain, loader=replace(plain.loader, fetches=None))
    assert (view(nothing).inside_lines, view(nothing).sample, view(nothing).tail) == ((), None, "")
    assert view(replace(SUCCESS, contention=0.5)).tail == ""  # waiting for a CPU makes any sample slow
    assert view(replace(SUCCESS, contention=0.1)).tail == (  # or many a little: how many are slow was not counted then
        "slow samples take 21% of the fetching (up to 31.2 ms, index 40213; the median is 790 µs)"
    )


def test_the_loader_and_what_is_outside_the_steps_are_named_only_where_they_are_worth_it():
    assert view(replace(SUCCESS, data=0.001)).inside_lines == ()
    quick = replace(SUCCESS.startup, imports=0.2, setup=0.1, first_batch=0.01, first_step=0.0)
    short = replace(SUCCESS.epoch, eval=0.2, shares={**SUCCESS.epoch.shares, "eval": 0.002})
    assert view(replace(SUCCESS, startup=quick, epoch=short)).outside_lines == ()
    start, epoch = view(SUCCESS).outside_lines
    assert start == "start-up: imports 2.90 s, set-up 1.20 s, first batch 340 ms, first step 900 ms"
    assert epoch == "an epoch of 97.3 s: evaluation 4.20 s (4.3%)"


def test_the_ends_of_epochs_of_unknown_length_are_told_in_seconds():
    epoch = replace(SUCCESS.epoch, batches=None, steps=None, whole=None, shares=None)
    shown = view(replace(SUCCESS, epoch=epoch))
    assert shown.outside_lines[1] == "an epoch: start 310 ms, evaluation 4.20 s, checkpoints 400 ms"
    assert [bar.label for bar in shown.outside] == ["start-up"]
    assert shown.outside_facts[1].label == "each epoch: evaluation"


def test_a_straggler_is_named_with_its_rank_and_ratio():
    step = {"0": 0.118, "1": 0.119, "2": 0.118, "3": 0.118}
    work = {"0": 0.08, "1": 0.08, "2": 0.1184, "3": 0.08}
    ranks = Ranks(world=4, reported=4, step=step, work=work, straggler="2")
    assert view(replace(SUCCESS, ranks=ranks)).outside_lines[-1] == (
        "4 ranks; straggler: rank 2, 118 ms a step, its own work 1.48x the others'"
    )
    even = replace(ranks, world=5, work=step, straggler=None)
    assert view(replace(SUCCESS, ranks=even)).outside_lines[-1] == (
        "5 ranks (1 of them told nothing), rank 1 the slowest: 119 ms a step; no straggler"
    )
    assert "ranks" not in [fact.label for fact in view(SUCCESS).environment]


def test_a_busy_machine_is_said_to_be_one():
    assert view(replace(SUCCESS, queued=0.46)).outside_lines[0] == (
        "the training thread waited for a CPU 46% of the time: these times are those of a machine as busy as it was"
    )
    assert view(replace(SUCCESS, trend=-0.2)).outside_lines[0] == (
        "steps were still getting shorter, by 20% over the window of 60 steps: watch more of them with --steps"
    )
    grown = {fact.label: fact.text for fact in view(replace(SUCCESS, queued=None, trend=0.31)).facts}
    assert grown["the step grew by"] == "31%"
    assert "waited for a CPU" not in grown


def test_a_finding_says_what_it_is_a_share_of_and_a_warning_that_it_costs_no_time():
    epoch, warning = replace(SUCCESS.findings[0], of="epoch"), replace(SUCCESS.findings[1], lost=0.0)
    shown = view(replace(SUCCESS, findings=[epoch, warning], trials=[], tuned=None))
    assert [action.lost for action in shown.actions] == ["up to 49% of the epoch", "costs no time yet"]
    assert "worth up to 49% of each epoch" in shown.verdict


def test_what_pressed_on_the_machine_is_told_in_its_units():
    told = {fact.label: fact.text for fact in view(SUCCESS).pressure}
    assert told["tasks waited for a disk"] == "44%"
    assert told["read from disks"] == "62.0 MiB/s"
    assert view(SAMPLES["failed"]).pressure == ()


def test_the_floor_names_the_step_it_was_measured_in_turn_with_where_that_is_another_than_the_one_shown() -> None:
    floor = FloorFacts(step=0.016, ceiling=8.6, baseline=0.139)
    elsewhen = replace(SUCCESS, floor=floor)
    assert view(elsewhen).floor_line == "floor 16.0 ms where the step was 139 ms: at most 8.6x from the data side"
    assert "where the step was" not in view(SUCCESS).floor_line
