"""Confirmation in fresh processes: what counts as proof, and how often it would be wrong."""

import math

import numpy as np
import pytest

from fasttrain_doctor.evidence import Effect
from fasttrain_doctor.stats import Noise
from fasttrain_doctor.tuners.bench import ArmFailed, Block, SessionEnded
from fasttrain_doctor.tuners.confirm import ProcessResult, confirm

NOISE = Noise(sd=0.01, pairs=5)
PLAN = {"dataloader-workers": {"num_workers": 8}}


def curve(seed, steps=40, bug=0.0):
    noise = np.random.default_rng([5, seed]).standard_normal(steps)
    return tuple(2.0 * np.exp(-np.arange(steps) / 30) + 0.1 * noise + bug * np.arange(steps))


class Machine:
    """Processes that differ by `between` from one another, their blocks by `within`."""

    def __init__(
        self, speedup=2.0, between=0.0177, within=0.01, seed=0, blocks=5, losses=curve, theirs=None, stall=0, drift=0.0
    ):
        self.rng = np.random.default_rng(seed)
        self.speedup, self.between, self.within, self.blocks = speedup, between, within, blocks
        self.ours, self.theirs = losses, theirs or losses
        self.stall, self.drift = stall, drift
        self.calls = []

    def __call__(self, plan, seed):
        self.calls.append(("B" if plan else "A", seed))
        base = 0.05 / (self.speedup if plan else 1.0) * math.exp(self.between * self.rng.standard_normal())
        base *= math.exp(self.drift * len(self.calls))
        seconds = base * 10 * np.exp(self.within * self.rng.standard_normal(self.blocks))
        if self.stall:
            seconds[self.rng.integers(self.blocks)] += self.stall
        losses = (self.theirs if plan else self.ours)(seed)
        return ProcessResult(tuple(Block(10, float(s), 160.0) for s in seconds), losses)


class Clock:
    def __init__(self, left):
        self.seconds = left

    def left(self):
        return self.seconds


def check(machine, effect=Effect.EXACT, **options):
    return confirm(machine, PLAN, effect=effect, noise=NOISE, **options)


def test_a_clear_gain_takes_three_interleaved_pairs_of_equal_seeds():
    machine = Machine(speedup=2.0)
    found = check(machine)
    assert found.confirmed
    assert "".join(side for side, _ in machine.calls) == "ABBAAB"
    assert [seed for _, seed in machine.calls] == [0, 0, 1, 1, 2, 2]
    assert found.speedup.low < 2.0 < found.speedup.high
    assert found.loss.kind == "identical"
    assert found.step == pytest.approx(0.025, rel=0.1)
    assert found.baseline_step == pytest.approx(0.05, rel=0.1)
    assert len(found.ratios) == 3


@pytest.mark.parametrize("seed", range(10))
def test_a_huge_gain_is_sure_after_three_pairs(seed):
    machine = Machine(speedup=15.0, within=0.03, seed=seed)
    found = check(machine)
    assert found.confirmed
    assert len(machine.calls) == 6
    assert found.speedup.low >= 12


def test_a_small_gain_takes_six():
    machine = Machine(speedup=1.04, seed=3)
    found = check(machine)
    assert "".join(side for side, _ in machine.calls) == "ABBA" * 3
    assert found.confirmed == (found.verdict == "faster")


def test_a_stall_in_every_process_does_not_matter():
    assert check(Machine(speedup=2.0, stall=3.0)).confirmed


def test_no_gain_is_a_candidate_with_its_reason():
    found = check(Machine(speedup=1.0))
    assert not found.confirmed
    assert "did not confirm" in found.reason
    assert found.verdict in ("no-difference", "inconclusive", "slower")


def test_a_changed_training_is_never_tuned_however_fast():
    found = check(Machine(speedup=3.0, theirs=lambda seed: curve(seed, bug=0.05)), effect=Effect.PRECISION)
    assert not found.confirmed
    assert found.verdict == "changed-training"
    assert "training changed" in found.reason


def test_losses_that_were_not_read_are_no_proof():
    found = check(Machine(speedup=3.0, losses=lambda seed: None))
    assert not found.confirmed
    assert found.verdict == "faster"
    assert "not compared" in found.reason


def test_where_identity_is_promised_and_missed_the_script_is_asked_to_repeat_itself():
    # deterministic script, other losses under the plan: a broken promise
    broken = Machine(speedup=2.0, theirs=lambda seed: curve(seed + 50))
    found = check(broken)
    assert found.verdict == "changed-training"
    assert broken.calls[-1] == ("A", 0)

    # a script that never repeats itself: the envelope decides, and the reader is told
    counter = iter(range(1000))
    found = check(Machine(speedup=2.0, losses=lambda seed: curve(next(counter))))
    assert found.confirmed
    assert found.loss.kind == "within-envelope"
    assert "does not repeat" in found.loss.detail


def test_a_crash_in_a_fresh_process_is_a_verdict():
    def run(plan, seed):
        if plan and seed == 1:
            raise ArmFailed("CUDA out of memory")
        return Machine()(plan, seed)

    found = check(run)
    assert found.verdict == "failed"
    assert "CUDA out of memory" in found.reason
    assert len(found.ratios) == 1


def test_a_baseline_that_crashes_is_not_blamed_on_the_plan():
    def run(plan, seed):
        if not plan:
            raise ArmFailed("disk full")
        return Machine()(plan, seed)

    assert "the script as it is failed: disk full" in check(run).reason


def test_an_end_before_two_pairs_leaves_it_open():
    def run(plan, seed):
        if seed == 1:
            raise SessionEnded("interrupted")
        return Machine()(plan, seed)

    found = check(run)
    assert found.verdict == "inconclusive"
    assert found.speedup is None
    assert "interrupted" in found.reason


def test_the_deadline_allows_the_first_pairs_and_no_more():
    machine = Machine(speedup=1.05, seed=1)
    found = check(machine, deadline=Clock(0.0))
    assert len(machine.calls) == 6
    assert not found.confirmed
    assert "budget" in found.reason
    assert check(Machine(speedup=5.0), deadline=Clock(0.0)).confirmed


def test_it_is_a_trial_among_the_others():
    found = check(Machine())
    facts = found.facts(Effect.EXACT)
    assert facts.stage == "confirm"
    assert facts.effect == "exact"
    assert facts.pairs == 3
    assert facts.pair_ratios == list(found.ratios)
    assert facts.steps == 6 * 50


# How often it is wrong. Processes differ by 2.5 % in a pair, blocks within by 1 %.


@pytest.mark.parametrize(("between", "drift"), [(0.0, 0.0), (0.0177, 0.0), (0.05, 0.0), (0.0177, 0.03)])
def test_the_interval_covers_the_truth(between, drift):
    hits = 0
    for seed in range(600):
        found = check(Machine(speedup=1.5, between=between, drift=drift, seed=seed))
        hits += found.speedup.low <= 1.5 <= found.speedup.high
    assert hits / 600 >= 0.95 - 0.018, "nominal 95 %, two standard deviations of 600 confirmations below"


@pytest.mark.parametrize("drift", [0.0, 0.03])
def test_equal_plans_are_hardly_ever_confirmed(drift):
    wrong = sum(check(Machine(speedup=1.0, drift=drift, seed=seed)).confirmed for seed in range(600))
    assert wrong / 600 <= 0.025


def test_ten_percent_are_mostly_confirmed():
    right = sum(check(Machine(speedup=1.10, seed=seed)).confirmed for seed in range(200))
    assert right / 200 >= 0.8
