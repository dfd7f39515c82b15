"""Verdicts and the loss check: what is called faster, and what is noticed of a training that is not the promised one."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fasttrain_doctor.evidence import Effect
from fasttrain_doctor.stats import Noise, compare_ratios
from fasttrain_doctor.tuners.losses import LEAST, LossCheck, compare_losses
from fasttrain_doctor.tuners.project import RunCost, projected
from fasttrain_doctor.tuners.verdict import failed, hopeless, judge

QUIET = Noise(sd=0.005, pairs=5)
LOUD = Noise(sd=0.05, pairs=5)


def comparison(*speedups, looks=6):
    return compare_ratios(np.log(speedups), looks=looks)


# Kinds.


@pytest.mark.parametrize(
    ("speedups", "kind"),
    [
        ([2.0, 2.02, 1.99, 2.01, 2.0], "faster"),
        ([0.5, 0.51, 0.5, 0.49, 0.5], "slower"),
        ([1.0, 1.002, 0.999, 1.001, 1.0], "no-difference"),
        ([1.005, 1.006, 1.004, 1.005, 1.005], "no-difference"),  # real, and of no use
        ([1.0, 1.3, 0.8, 1.2, 0.9], "inconclusive"),
        ([2.0, 2.0], "faster"),
    ],
)
def test_kinds(speedups, kind):
    verdict = judge(comparison(*speedups), QUIET)
    assert verdict.kind == kind
    assert verdict.speedup.low <= verdict.speedup.mid <= verdict.speedup.high
    assert f"{len(speedups)} pairs" in verdict.reason


def test_faster_asks_for_more_where_equal_blocks_differ_more():
    gain = comparison(*[1.05, 1.051, 1.049, 1.05])
    assert judge(gain, QUIET).kind == "faster"
    assert judge(gain, LOUD).kind != "faster"


def test_when_all_pairs_ran_the_answer_is_that_no_gain_could_be_shown():
    unsure = comparison(1.0, 1.03, 0.98, 1.02, 0.98)
    assert judge(unsure, QUIET).kind == "inconclusive"
    assert judge(unsure, QUIET, complete=True).kind == "no-difference"
    assert judge(comparison(1.0, 1.9, 0.6, 1.5), QUIET, complete=True).kind == "inconclusive", "too wide to say"
    assert "the budget" in judge(unsure, QUIET, cut="the budget was used up").reason


def test_another_training_outranks_any_speed():
    verdict = judge(comparison(2.0, 2.0, 2.0), QUIET, loss=LossCheck("outside", "the loss is higher"))
    assert verdict.kind == "changed-training"
    assert verdict.reason == "the loss is higher"


def test_a_crash_is_a_verdict_with_its_reason():
    assert failed("worker killed by signal 9").kind == "failed"
    assert failed("worker killed by signal 9").reason == "worker killed by signal 9"


def test_hopeless_arms_are_dropped_after_few_pairs_and_hopeful_ones_are_not():
    dropped = hopeless(comparison(0.8, 0.82), QUIET, worth=0.01)
    assert dropped is not None
    assert judge(dropped, QUIET).kind == "slower"
    noisy = hopeless(comparison(0.645, 0.671), Noise(sd=0.1, pairs=8), worth=0.01)
    assert noisy is not None
    assert judge(noisy, Noise(sd=0.1, pairs=8)).kind == "slower"  # all of its interval is, however loud the machine
    assert hopeless(comparison(1.03, 1.05), QUIET, worth=0.01) is None
    assert hopeless(comparison(0.8, 0.82), LOUD, worth=0.01) is not None
    assert hopeless(comparison(0.97, 0.99), LOUD, worth=0.01) is None


# Losses: a small classifier really trained, with the bug really in it. All runs of a call at once: (runs, ...).

STEPS, BATCH, CLASSES, DIM = 60, 32, 10, 20


def train(seeds, *, lr=0.3, augment=0.0, shuffled=True, scale=1.0, precision=None, keep=BATCH):
    order = [np.random.default_rng([1, seed]) for seed in seeds]
    draws = [np.random.default_rng([2, seed, int(augment * 1000)]) for seed in seeds]
    centres = np.random.default_rng(0).standard_normal((CLASSES, DIM)) * 0.8
    weights = np.stack([rng.standard_normal((DIM, CLASSES)) * 0.1 for rng in order])
    losses = np.empty((len(seeds), STEPS))
    for step in range(STEPS):
        labels = np.stack([rng.integers(0, CLASSES, BATCH) for rng in order])
        noise = np.stack([rng.standard_normal((BATCH, DIM)) for rng in order])
        if not shuffled:
            labels = np.full_like(labels, (step * CLASSES // STEPS) % CLASSES)
        noise += augment * np.stack([rng.standard_normal((BATCH, DIM)) for rng in draws])
        inputs = ((centres[labels] + noise) * scale)[:, :keep]
        labels = labels[:, :keep]
        logits = inputs @ weights
        if precision:
            logits = logits.astype(precision).astype(float)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        hit = np.take_along_axis(p, labels[..., None], -1)[..., 0]
        losses[:, step] = -np.log(np.maximum(hit, 1e-12)).mean(-1)
        np.put_along_axis(p, labels[..., None], np.take_along_axis(p, labels[..., None], -1) - 1, -1)
        weights -= lr * np.swapaxes(inputs, 1, 2) @ p / keep
    return losses


def check(effect, trial, pairs=3, ours=None, **changes):
    seeds = range(100 * trial, 100 * trial + pairs)
    return compare_losses(effect, train(seeds, **(ours or {})), train(seeds, **changes))


BUGS = {
    "learning rate doubled": {"lr": 0.6},
    "learning rate lost": {"lr": 0.0},
    "unshuffled": {"shuffled": False},
    "normalised twice": {"scale": 0.3},
    "not normalised": {"scale": 4.0},
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_caught(bug):
    caught = sum(check(Effect.PRECISION, trial, **BUGS[bug]).kind == "outside" for trial in range(40))
    assert caught >= 38


@pytest.mark.parametrize(
    ("effect", "ours", "change"),
    [
        (Effect.RESEEDED, {"augment": 0.5}, {"augment": 0.501}),  # the augmentation drawn from other numbers
        (Effect.ROUNDING, {}, {"precision": np.float32}),
        (Effect.PRECISION, {}, {"precision": np.float16}),
    ],
)
def test_what_was_promised_stays_within_the_envelope(effect, ours, change):
    kept = [check(effect, trial, ours=ours, **change) for trial in range(60)]
    assert sum(c.kind == "within-envelope" for c in kept) >= 59, [c for c in kept if c.kind == "outside"]


def test_even_runs_of_wholly_other_seeds_mostly_stay_inside():
    # harsher than any candidate: nothing is shared within a pair
    inside = sum(
        compare_losses(Effect.RESEEDED, train(range(9 * k, 9 * k + 3)), train(range(9 * k + 3, 9 * k + 6))).kept
        for k in range(80)
    )
    assert inside >= 74


def test_exact_means_the_same_bits():
    runs = train(range(3))
    assert compare_losses(Effect.EXACT, runs, runs.copy()).kind == "identical"
    nudged = runs.copy()
    nudged[1, 7] = np.nextafter(nudged[1, 7], 9)
    verdict = compare_losses(Effect.EXACT, runs, nudged)
    assert verdict.kind == "outside"
    assert "step 7" in verdict.detail
    assert compare_losses(Effect.ROUNDING, runs, nudged).kind == "within-envelope"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("effect", Effect)
def test_a_loss_that_is_not_finite_is_outside_whatever_was_allowed(bad, effect):
    runs = train(range(3))
    broken = runs.copy()
    broken[2, 40:] = bad
    verdict = compare_losses(effect, runs, broken)
    assert verdict.kind == "outside"
    assert "step 40" in verdict.detail
    assert compare_losses(effect, broken, runs).kind == "not-compared", "the script's own loss was broken"


def test_another_training_is_named_even_when_it_looks_alike():
    verdict = check(Effect.TRAINING, 1, keep=BATCH // 2)
    assert "another training" in verdict.detail


@pytest.mark.parametrize("candidate", [[], [[1.0] * (LEAST - 1)]])
def test_too_few_losses_are_not_compared(candidate):
    assert compare_losses(Effect.PRECISION, [[1.0] * 50], candidate).kind == "not-compared"


def test_one_baseline_run_still_gives_an_envelope():
    assert check(Effect.ROUNDING, 3, pairs=1, precision=np.float32).kind == "within-envelope"
    assert check(Effect.ROUNDING, 3, pairs=1, scale=10.0).kind == "outside"


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=LEAST, max_size=30), min_size=1, max_size=4))
def test_equal_runs_are_identical_at_every_effect(runs):
    for effect in Effect:
        assert compare_losses(effect, runs, [list(run) for run in runs]).kind == "identical"


# The planned run.


def test_workers_that_take_a_second_to_start_lose_on_short_epochs():
    plain, workers = RunCost(0.0, 0.0, 0.010), RunCost(0.0, 1.0, 0.005)
    assert projected(plain, workers, epochs=10, length=100).speedup < 1
    assert projected(plain, workers, epochs=10, length=10_000).speedup == pytest.approx(2, rel=0.05)


def test_an_unknown_length_gives_the_break_even():
    facts = projected(RunCost(1, 0, 0.010), RunCost(3, 0, 0.005), epochs=None, length=None)
    assert facts.speedup is None
    assert facts.break_even_steps == 400


def test_a_plan_that_never_pays_has_no_break_even():
    assert projected(RunCost(0, 0, 1), RunCost(1, 0, 1), epochs=None, length=None).break_even_steps is None
    assert projected(RunCost(0, 0, 0.01), RunCost(0, 2, 0.005), epochs=None, length=100).break_even_steps is None


costs = st.builds(RunCost, *[st.integers(0, 40)] * 2, st.integers(1, 9))


@given(costs, costs, st.integers(1, 12))
def test_break_even_is_the_first_step_at_which_the_tuned_run_is_ahead(baseline, tuned, length):
    def spent(cost, steps):
        return cost.startup + cost.epoch_start * max(1, math.ceil(steps / length)) + cost.step * steps

    assume(tuned.step < baseline.step)
    found = projected(baseline, tuned, epochs=None, length=length).break_even_steps
    ahead = next((n for n in range(3000) if spent(tuned, n) <= spent(baseline, n)), None)
    if ahead is None:
        assert found is None or found >= 3000
    else:
        assert found == ahead
