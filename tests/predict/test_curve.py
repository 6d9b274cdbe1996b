"""The distribution of a wait as a curve: chances, held seconds, and what lies beyond its points."""

from __future__ import annotations

import random

import pytest

from agentkv.predict.base import WaitEstimate
from agentkv.predict.curve import WaitCurve, from_quantiles

CURVE = WaitCurve((1.0, 10.0, 100.0), (0.2, 0.5, 0.9))


def test_chances_between_points_grow_with_the_logarithm_of_time() -> None:
    assert CURVE.chance_within(1.0) == pytest.approx(0.2)
    assert CURVE.chance_within(10**0.5) == pytest.approx(0.35)
    assert CURVE.chance_within(100.0) == pytest.approx(0.9)
    assert CURVE.chance_within(0.5) == pytest.approx(0.1)


def test_beyond_its_last_point_nothing_more_is_hoped_for() -> None:
    assert CURVE.chance_within(1e9) == 0.9
    assert CURVE.chance_within(0.0) == CURVE.chance_within(-1.0) == 0.0


def test_held_seconds_are_those_of_a_sample() -> None:
    """Against an average over the uniform waits that this curve describes."""
    fine = WaitCurve([i / 100 for i in range(1, 1001)], [i / 1000 for i in range(1, 1001)])
    source = random.Random(0)
    waits = [source.uniform(0, 10) for _ in range(20_000)]
    for i in (99, 499, 999):
        until_s = fine.times_s[i]
        expected = sum(min(wait, until_s) for wait in waits) / len(waits)
        assert fine.held_s()[i] == pytest.approx(expected, rel=0.02)


def test_an_estimate_without_points_has_a_curve_through_its_quantiles() -> None:
    estimate = WaitEstimate(1.0, 10.0, 100.0, "test", 1)
    assert estimate.curve.chance_within(10.0) == pytest.approx(0.5)
    assert estimate.curve.chance_within(1e6) == 0.9


def test_equal_or_zero_quantiles_make_a_step() -> None:
    curve = from_quantiles(0.0, 0.0, 5.0)
    assert curve.chance_within(0.001) > 0.5
    same = from_quantiles(5.0, 5.0, 5.0)
    assert same.chance_within(4.0) < 0.1 and same.chance_within(5.1) == 0.9
