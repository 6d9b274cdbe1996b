"""The scores of forecasts, against cases whose answer is known."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from agentkv.bench.predict_forecasts import Cdf, _Moments, exponential, lognormal
from agentkv.bench.predict_scores import auc, coverage, log_densities, r2, score
from agentkv.predict.histogram import LOG_EDGES, LOG_WIDTHS, NUM_BINS, bin_of


def moments_of(waits_s: list[float]) -> _Moments:
    moments = _Moments()
    for wait_s in waits_s:
        moments.add(wait_s, 0.0)
    return moments


def drawn(num: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.lognormvariate(1.0, 1.5) for _ in range(num)]


def test_the_right_forecast_explains_nothing_more_but_covers_as_it_says() -> None:
    waits_s = drawn(4000)
    right = lognormal(moments_of(drawn(20_000, seed=1)))
    found = score([right] * len(waits_s), waits_s, seed=0)

    assert found.r2_log_wait == pytest.approx(0.0, abs=0.01)
    assert found.auc_gt_10s == 0.5  # all alike: ties
    for at_age in found.coverage.values():
        assert at_age.within_80 == pytest.approx(0.8, abs=max(0.02, 1.6 * at_age.margin_80()))
        assert at_age.within_95 == pytest.approx(0.95, abs=max(0.015, at_age.margin_80() / 2))


def test_a_forecast_that_knows_explains_all() -> None:
    waits_s = drawn(500)
    near = [lognormal(moments_of([wait_s * 0.95, wait_s * 1.05])) for wait_s in waits_s]
    found = score(near, waits_s, seed=0)

    assert found.r2_log_wait > 0.99
    assert found.auc_gt_10s > 0.999
    assert found.log_score > score([lognormal(moments_of(waits_s))] * 500, waits_s, 0).log_score + 1


def test_the_log_score_is_the_mean_log_density_of_the_log_wait() -> None:
    waits_s = drawn(20_000)
    found = score([lognormal(moments_of(waits_s))] * len(waits_s), waits_s, seed=0).log_score
    assert found == pytest.approx(-math.log(1.5 * math.sqrt(2 * math.pi * math.e)), abs=0.02)


def test_what_was_held_impossible_costs_no_more_than_the_floor() -> None:
    never = np.where(np.arange(NUM_BINS + 1) > bin_of(2.0), 1.0, 0.0)
    found = log_densities(np.diff([never]), [500.0])[0]
    assert found == pytest.approx(math.log(1e-6 / LOG_WIDTHS[bin_of(500.0)]))


def test_auc_is_the_share_of_pairs_in_order() -> None:
    is_long = np.array([True, False, True, False])
    assert auc(is_long, np.array([0.9, 0.1, 0.8, 0.2])) == 1.0
    assert auc(is_long, np.array([0.1, 0.9, 0.2, 0.8])) == 0.0
    assert auc(is_long, np.array([0.5, 0.5, 0.9, 0.1])) == pytest.approx(3.5 / 4)
    assert math.isnan(auc(np.array([True, True]), np.array([0.1, 0.2])))


def test_r2_of_the_mean_is_nothing() -> None:
    truth = np.array([1.0, 2.0, 3.0])
    assert r2(truth, np.array([2.0, 2.0, 2.0])) == 0.0
    assert r2(truth, truth) == 1.0
    assert math.isnan(r2(np.array([1.0, 1.0]), np.array([1.0, 1.0])))


def test_a_spike_of_waits_of_nothing_is_covered_as_it_says() -> None:
    spike: Cdf = np.interp(LOG_EDGES, LOG_EDGES[[0, 1, -1]], [0.0, 0.6, 1.0])
    rng = random.Random(0)
    waits_s = [0.0 if rng.random() < 0.6 else draw(spike, rng) for _ in range(4000)]
    found = coverage([spike] * len(waits_s), waits_s, 0.0, seed=0)
    assert found.within_80 == pytest.approx(0.8, abs=0.02)


def draw(cdf: Cdf, rng: random.Random) -> float:
    return float(np.exp(np.interp(rng.uniform(0.6, 1.0), cdf, LOG_EDGES)))


def test_too_narrow_a_forecast_covers_less_than_it_says() -> None:
    waits_s = drawn(2000)
    narrow = moments_of([wait_s**0.3 for wait_s in waits_s])
    found = coverage([lognormal(narrow)] * len(waits_s), waits_s, 0.0, seed=0)
    assert found.within_80 < 0.5


def test_the_exponential_has_the_mean_of_what_was_seen() -> None:
    cdf = exponential(moments_of([4.0, 6.0]))
    assert np.interp(math.log(5.0), LOG_EDGES, cdf) == pytest.approx(1 - math.exp(-1), abs=0.01)
    assert np.interp(math.log(1.0), LOG_EDGES, exponential(_Moments())) == pytest.approx(
        1 - math.exp(-1), abs=0.01
    )
