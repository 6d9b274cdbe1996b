"""What a distribution of the whole wait says once the wait has lasted some time."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.predict import histogram as hist
from agentkv.predict.distribution import Distribution, tail_quantiles_s

LEVELS = (0.1, 0.5, 0.9)


def of(mass: hist.Mass) -> Distribution:
    return Distribution(mass / mass.sum(), hist.ignorance())


def test_quantiles_are_those_of_the_waits_that_outlived_the_age() -> None:
    rng = random.Random(1)
    samples = [rng.lognormvariate(1.0, 1.5) for _ in range(20_000)]
    mass = np.zeros(hist.NUM_BINS)
    for wait_s in samples:
        mass[hist.bin_of(wait_s)] += 1
    for age_s in (0.0, 0.7, 3.3, 20.0):
        left = sorted(w - age_s for w in samples if w > age_s)
        cuts = statistics.quantiles(left, n=10)
        found = of(mass).outlived_quantiles_s(LEVELS, age_s)
        assert found is not None
        assert found == pytest.approx([cuts[0], cuts[4], cuts[8]], rel=0.12)


def test_a_wait_that_outlived_everything_says_nothing() -> None:
    assert of(hist.lognormal(1.0, 0.3)).outlived_quantiles_s(LEVELS, 100.0) is None


def test_of_age_alone_the_pareto_tail_answers() -> None:
    median_s = tail_quantiles_s(LEVELS, 100.0)[1]
    assert median_s == pytest.approx(100 * (2 ** (1 / hist.TAIL_EXPONENT) - 1))


def test_chance_and_mean_are_those_of_a_lognormal() -> None:
    found = of(hist.lognormal(5.0, 0.5))
    assert found.mean_log_wait() == pytest.approx(math.log(5.0), abs=0.02)
    assert found.chance_within(5.0) == pytest.approx(0.5, abs=0.02)
    assert found.chance_within(5.0 * math.exp(0.5)) == pytest.approx(0.841, abs=0.02)
    assert (found.chance_within(0.0), found.chance_within(-1.0)) == (0.0, 0.0)


def test_an_unended_wait_is_spread_over_all_that_is_longer() -> None:
    whole = hist.lognormal(5.0, 1.0)
    spread = of(whole).outlived_mass(5.0)
    assert spread.sum() == pytest.approx(1.0)
    assert spread[: hist.bin_of(5.0)].sum() == 0.0
    far = slice(hist.bin_of(10.0), None)
    assert spread[far] == pytest.approx(whole[far] / whole[far].sum() * spread[far].sum())
    assert of(whole).outlived_mass(1e6).sum() == pytest.approx(1.0)


def test_the_gain_over_the_reference_is_the_divergence() -> None:
    mass, reference = hist.lognormal(5.0, 0.5), hist.pareto_tail()
    found = Distribution(mass, reference)
    full = mass > 0
    expected = float((mass[full] * np.log(mass[full] / reference[full])).sum())
    assert found.gain(0.0) == pytest.approx(expected, rel=1e-3)
    assert Distribution(reference, reference).gain(0.0) == pytest.approx(0.0, abs=1e-9)
    assert Distribution(reference, reference).gain(7.0) == pytest.approx(0.0, abs=1e-9)


def test_a_wait_that_outlived_its_hump_is_no_better_known_than_others() -> None:
    mass = 0.99 * hist.lognormal(5.0, 0.3) + 0.01 * hist.pareto_tail()
    found = Distribution(mass, hist.pareto_tail())
    assert found.gain(0.0) > 1.0
    assert found.gain(100.0) < 0.05


@given(
    st.lists(st.floats(0, 100), min_size=hist.NUM_BINS, max_size=hist.NUM_BINS).filter(any),
    st.floats(0, 1e6),
)
def test_what_is_left_is_ordered_and_finite(weights: list[float], age_s: float) -> None:
    mass = np.array(weights)
    found = of(mass) if mass.sum() > 1e-6 else of(hist.ignorance())
    left_s = found.outlived_quantiles_s(LEVELS, age_s)
    if left_s is not None:
        assert 0 <= left_s[0] <= left_s[1] <= left_s[2] < math.inf
    assert 0 <= found.gain(age_s) < math.inf


def test_the_chance_within_a_wait_is_the_interpolation_of_the_cumulative_sums() -> None:
    rng = np.random.default_rng(3)
    known = of(rng.random(hist.NUM_BINS) * (rng.random(hist.NUM_BINS) > 0.3))
    first, last = float(hist.LOG_EDGES[0]), float(hist.LOG_EDGES[-1])
    places = [*rng.uniform(first - 2, last + 2, 500), *hist.LOG_EDGES.tolist()]
    for place in places:
        found = known.chance_within(math.exp(place))
        assert found == pytest.approx(
            float(np.interp(place, hist.LOG_EDGES, known.cdf())), abs=1e-9
        )
