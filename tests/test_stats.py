"""The paired comparison keeps its promises where step times are autocorrelated, drifting and stalling."""

import math
import statistics
import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor import stats, student

LOOKS = stats.LOOKS


@dataclass(frozen=True)
class Timed:
    steps: int
    seconds: float
    samples: float | None = None


def blocks(*seconds, steps=10, samples=None):
    return [Timed(steps, s, samples) for s in seconds]


# The distribution, against published tables (two-sided 5 %, 1 %; one-sided 0.5 %).


@pytest.mark.parametrize(
    ("tail", "freedom", "t"),
    [(0.025, 1, 12.706), (0.025, 2, 4.303), (0.025, 5, 2.571), (0.005, 10, 3.169), (0.05, 30, 1.697)],
)
def test_critical_values_are_those_of_the_tables(tail, freedom, t):
    assert student.critical(tail, freedom) == pytest.approx(t, abs=6e-4)


@given(st.floats(0.001, 0.49), st.integers(1, 200))
def test_the_tail_beyond_a_critical_value_is_the_tail_asked_for(tail, freedom):
    assert student.upper_tail(student.critical(tail, freedom), freedom) == pytest.approx(tail, rel=1e-6)


def test_many_degrees_of_freedom_are_the_normal_distribution():
    assert student.upper_tail(1.2, 10_000) == pytest.approx(1 - statistics.NormalDist().cdf(1.2), abs=1e-4)


# One comparison, by hand.


def test_twice_as_fast_is_a_ratio_of_two():
    comparison = stats.compare(blocks(2.0, 2.02, 1.98), blocks(1.0, 1.0, 1.0))
    assert comparison.mid == pytest.approx(2.0, rel=1e-3)
    assert comparison.low < 2.0 < comparison.high
    assert comparison.ratios == pytest.approx((2.0, 2.02, 1.98))


def test_time_is_compared_per_sample_where_samples_are_known():
    # accumulation: a step of the candidate takes twice the time and trains on four times the samples
    comparison = stats.compare(blocks(1.0, 1.0, samples=100), blocks(2.0, 2.0, samples=400))
    assert comparison.mid == pytest.approx(2.0)


def test_and_per_step_where_one_side_does_not_say():
    assert stats.compare(blocks(1.0, 1.0, samples=100), blocks(2.0, 2.0)).mid == pytest.approx(0.5)


def test_a_stalled_pair_is_set_aside_and_named():
    baseline = blocks(1.0, 1.01, 0.99, 1.0, 1.02, 9.0, 1.0, 0.98)
    comparison = stats.compare(baseline, blocks(*[0.5] * 8))
    assert comparison.set_aside == (5,)
    assert comparison.mid == pytest.approx(2.0, rel=0.01)
    assert comparison.low > 1.9
    assert len(comparison.ratios) == 8, "what was set aside is still shown"


def test_nothing_is_set_aside_in_quiet_pairs():
    assert stats.compare(blocks(*[1.0, 1.01] * 4), blocks(*[1.0] * 8)).set_aside == ()


def test_a_floor_keeps_two_lucky_pairs_from_looking_exact():
    free = stats.compare(blocks(1.05, 1.05), blocks(1.0, 1.0))
    floored = stats.compare(blocks(1.05, 1.05), blocks(1.0, 1.0), floor=0.01)
    assert free.low == pytest.approx(1.05)
    assert floored.low < 1.0


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [(blocks(1.0), blocks(1.0)), (blocks(1.0, 1.0), blocks(1.0)), (blocks(0.0, 1.0), blocks(1.0, 1.0))],
)
def test_what_cannot_be_compared_is_refused(baseline, candidate):
    with pytest.raises(ValueError, match=r"pair|block"):
        stats.compare(baseline, candidate)


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=20),
    st.floats(0.1, 10),
    st.integers(1, 8),
)
def test_laws_of_the_interval(pairs, unit, looks):
    a, b = blocks(*[p[0] for p in pairs]), blocks(*[p[1] for p in pairs])
    there, back = stats.compare(a, b, looks=looks), stats.compare(b, a, looks=looks)
    assert there.low <= there.mid <= there.high
    assert there.mid == pytest.approx(1 / back.mid, rel=1e-9), "swapping the sides inverts the speedup"
    assert math.log(there.low) == pytest.approx(-math.log(back.high), abs=1e-6)
    scaled = stats.compare(blocks(*[p[0] * unit for p in pairs]), blocks(*[p[1] * unit for p in pairs]), looks=looks)
    assert scaled.mid == pytest.approx(there.mid, rel=1e-9), "the unit of time does not matter"
    assert stats.compare(a, b, looks=looks + 1).low <= there.low, "more looks, wider intervals"


def test_order_of_blocks_is_abba_baab():
    order = stats.block_order(4)
    assert "".join("AB"[candidate] for _, candidate in order) == "ABBABAAB"
    assert [pair for pair, _ in order] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("power", [1, 2])
def test_a_drift_cancels_in_that_order(power):
    seconds = {True: [], False: []}
    for at, (_, candidate) in enumerate(stats.block_order(8)):
        seconds[candidate].append(math.exp((0.02 * at) ** power))
    assert stats.compare(blocks(*seconds[False]), blocks(*seconds[True])).mid == pytest.approx(1.0, abs=2e-3)


# Noise, pairs needed, Holm.


def test_noise_ignores_a_drift_and_bounds_a_stall():
    rng = np.random.default_rng(1)
    quiet = np.exp(0.01 * rng.standard_normal(41))
    plain = stats.noise(blocks(*quiet)).sd
    assert plain == pytest.approx(0.01 * math.sqrt(2), rel=0.35)
    assert stats.noise(blocks(*(quiet * np.linspace(1, 1.2, 41)))).sd == pytest.approx(plain, rel=0.2)
    quiet[20] *= 10
    assert stats.noise(blocks(*quiet)).sd < 0.06


def test_the_margin_is_one_percent_or_the_noise():
    assert stats.Noise(sd=0.001, pairs=5).margin() == stats.MARGIN
    loud = stats.Noise(sd=0.04, pairs=5)
    assert loud.margin() > 0.04
    assert loud.margin(20) < loud.margin(5), "more pairs resolve less"


def test_pairs_needed_grows_with_noise_and_shrinks_with_the_effect():
    assert stats.pairs_needed(0.01, 0.05) <= 6
    assert stats.pairs_needed(0.03, 0.05) > stats.pairs_needed(0.01, 0.05)
    assert stats.pairs_needed(0.03, 0.5) < stats.pairs_needed(0.03, 0.05)
    assert stats.pairs_needed(0.01, stats.MARGIN) == 10_000, "what is no use is never shown"


def test_holm_by_its_definition():
    assert stats.holm([0.01, 0.04, 0.03]) == [True, False, False]
    assert stats.holm([0.01, 0.02, 0.03]) == [True, True, True]
    assert stats.holm([]) == []


# Simulations: many comparisons at once, on noise as machines make it.


def machine(rng, runs, count, sd, *, correlation=0.0, drift=0.0, stalls=0.0):
    """Log block times, shape (runs, count): AR(1) noise of standard deviation sd, a drift, rare long stalls."""
    shocks = rng.standard_normal((runs, count)) * sd * math.sqrt(1 - correlation**2)
    logs = np.empty((runs, count))
    logs[:, 0] = rng.standard_normal(runs) * sd
    for t in range(1, count):
        logs[:, t] = correlation * logs[:, t - 1] + shocks[:, t]
    slope = rng.uniform(-drift, drift, (runs, 1)) / count
    stalled = rng.random((runs, count)) < stalls
    return logs + slope * np.arange(count) + stalled * rng.exponential(0.5, (runs, count))


def log_ratios(times, effect):
    """Pairs' log ratios in the order blocks run; the candidate is `effect` faster."""
    columns = {True: [], False: []}
    for at, (_, candidate) in enumerate(stats.block_order(times.shape[1] // 2)):
        columns[candidate].append(at)
    return times[:, columns[False]] - times[:, columns[True]] + math.log1p(effect)


def wins(logs, sd, *, margin):
    """Share of runs in which any declared look calls the candidate faster."""
    won = np.zeros(len(logs), bool)
    for n in (look for look in LOOKS if look <= logs.shape[1]):
        mean, spread, freedom = stats.trimmed(logs[:, :n])
        low = mean - stats.half_width(np.maximum(spread, sd), freedom, n, len(LOOKS))
        won |= low > math.log1p(margin(n))
    return won.mean()


ONE_SIDED = 0.025 + 0.0022  # nominal, and two standard deviations of a share in 20,000 runs

WEATHER = {
    "calm": {},
    "autocorrelated": {"correlation": 0.7},
    "drifting": {"drift": 0.3},
    "stalling": {"stalls": 0.05},
    "all of it": {"correlation": 0.5, "drift": 0.2, "stalls": 0.05},
}


@pytest.mark.parametrize("weather", WEATHER)
@pytest.mark.parametrize("sd", [0.01, 0.03, 0.1])
def test_equal_plans_are_rarely_called_faster(weather, sd):
    rng = np.random.default_rng(7)
    logs = log_ratios(machine(rng, 20_000, 2 * LOOKS[-1], sd, **WEATHER[weather]), effect=0.0)
    # against a margin of nothing at all, and without the floor: the interval itself must hold its one-sided 2.5 %
    assert wins(logs, 0.0, margin=lambda n: 0.0) <= ONE_SIDED
    # as the verdict has it
    assert wins(logs, 0.0, margin=lambda n: stats.MARGIN) <= ONE_SIDED


@pytest.mark.parametrize("weather", WEATHER)
def test_a_useless_gain_is_not_called_faster(weather):
    rng = np.random.default_rng(8)
    logs = log_ratios(machine(rng, 20_000, 2 * LOOKS[-1], 0.005, **WEATHER[weather]), effect=stats.MARGIN)
    assert wins(logs, 0.0, margin=lambda n: stats.MARGIN) <= ONE_SIDED


@pytest.mark.parametrize(("sd", "power"), [(0.01, 0.99), (0.03, 0.85)])
def test_five_percent_are_found_within_the_declared_looks(sd, power):
    """Paired noise of 1 % and 3 %, with the floor and the margin the verdict uses: A/A of as many pairs."""
    rng = np.random.default_rng(9)
    logs = log_ratios(machine(rng, 20_000, 2 * LOOKS[-1], sd / math.sqrt(2), stalls=0.01), effect=0.05)
    noise = stats.Noise(sd, 5)
    assert wins(logs, noise.sd, margin=noise.margin) >= power


def test_a_small_effect_in_little_noise_takes_few_pairs():
    rng = np.random.default_rng(12)
    logs = log_ratios(machine(rng, 20_000, 10, 0.01 / math.sqrt(2)), effect=0.05)
    assert wins(logs, 0.01, margin=stats.Noise(0.01, 5).margin) >= 0.7


@pytest.mark.parametrize("weather", ["calm", "autocorrelated", "drifting"])
@pytest.mark.parametrize("pairs", [2, 3, 6, 8, 13])
def test_intervals_cover_the_truth(weather, pairs):
    rng = np.random.default_rng(10)
    logs = log_ratios(machine(rng, 20_000, 2 * pairs, 0.02, **WEATHER[weather]), effect=0.3)
    mean, spread, freedom = stats.trimmed(logs)
    covered = np.abs(mean - math.log(1.3)) <= stats.half_width(spread, freedom, pairs)
    assert covered.mean() >= 0.925


def test_holm_over_arms_keeps_the_family_error():
    rng = np.random.default_rng(11)
    families = 0
    for _ in range(400):
        arms = log_ratios(machine(rng, 12, 16, 0.02), effect=stats.MARGIN)
        p = [stats.compare_ratios(arm).p_above(1 + stats.MARGIN) for arm in arms]
        families += any(stats.holm(p))
    assert families / 400 <= 0.072, "nominal 5 %, two standard deviations of 400 families above"


# Warm-up.


@given(st.floats(1e-5, 100), st.integers(0, 200))
def test_a_constant_series_has_no_warmup(seconds, steps):
    assert stats.warmup([seconds] * steps) == 0


@given(st.lists(st.floats(1e-6, 1e3), max_size=80))
def test_warmup_is_never_more_than_half(seconds):
    assert 0 <= stats.warmup(seconds) <= len(seconds) // 2


@given(st.lists(st.floats(1e-3, 1), min_size=4, max_size=60), st.floats(0.01, 100))
def test_warmup_does_not_depend_on_the_unit_of_time(seconds, unit):
    base = stats.warmup(np.array(seconds) * 0.5)
    assert stats.warmup(np.array(seconds)) == pytest.approx(base, abs=len(seconds) // 2)


def steady(n, seed=3, sd=0.02):
    return list(0.05 * np.exp(sd * np.random.default_rng(seed).standard_normal(n)))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factor", [30.0, 2.0, 0.3])
@pytest.mark.parametrize("cold", [1, 3, 8])
def test_slow_or_fast_first_steps_are_found_to_the_step(seed, factor, cold):
    series = steady(60, seed)
    series[:cold] = [s * factor for s in series[:cold]]
    assert stats.warmup(series) == cold


@pytest.mark.parametrize("cold", [50, 1_777])
def test_a_warmup_among_very_many_steps_is_found_in_little_time(cold):
    series = steady(20_000)
    series[:cold] = [s * 1.5 for s in series[:cold]]
    began = time.process_time()
    assert stats.warmup(series) == pytest.approx(cold, abs=1)
    assert time.process_time() - began < 4, "every place of so many takes ten seconds"


def test_a_warmup_in_stages_is_found_whole():
    series = steady(60)
    series[0] *= 100
    series[1:6] = [s * 3 for s in series[1:6]]
    series[6:10] = [s * 1.5 for s in series[6:10]]
    assert stats.warmup(series) == 10


@pytest.mark.parametrize("at", [2, 10, 29, 45])
def test_a_spike_is_no_warmup(at):
    series = steady(60)
    series[at] *= 50
    assert stats.warmup(series) == 0


def test_the_rhythm_of_eight_workers_is_no_warmup():
    # seven batches are ready at once, the eighth is waited for
    assert stats.warmup([0.0037, *[0.0037] * 6, 0.045] * 8) == 0


def test_noise_alone_is_rarely_taken_for_a_warmup():
    found = sum(stats.warmup(steady(60, seed, 0.05)) > 0 for seed in range(300))
    assert found <= 6
