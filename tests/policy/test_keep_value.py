"""What keeping is worth per byte and second."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.policy.base import PauseView
from agentkv.policy.expected_cost import ExpectedCostPolicy
from agentkv.policy.keep_value import age_estimate, mixed_rate, rate_by_age, trust
from agentkv.policy.outlook import outlook_of, rate_after, rate_within
from agentkv.predict import WaitEstimate
from agentkv.predict.curve import WaitCurve

from .views import RECOMPUTE_S, RELOAD_S, VIEW, lognormal, make_view, pareto, wait_of


def worth(view: PauseView) -> float:
    value = ExpectedCostPolicy().decide(view).keep_value
    assert value is not None
    return value


def test_the_rate_is_the_best_ratio_of_chance_to_time_held() -> None:
    """Two points: 0.5 by 1 s holds 0.75 s, 0.9 by 3 s holds 0.75 + 2·0.3 s."""
    outlook = outlook_of(
        WaitEstimate(0, 0, 0, "", 0, points=WaitCurve((1.0,) * 1 + (3.0,), (0.5, 0.9)))
    )
    found = rate_within(outlook, 0.9)
    brute = max(
        chance / held_s
        for time_s, chance, held_s in zip(*outlook[:3], strict=True)
        if time_s >= 0.9
    )

    assert found == pytest.approx(brute, rel=0.05)
    assert outlook.chances[4] == 0.5 and outlook.held_s[4] == pytest.approx(0.75)


def test_a_wait_that_is_spread_evenly_has_its_best_moment_at_the_end() -> None:
    """P(H)/E[min] = (H/T) / (H - H²/2T), highest at H = T: 2/T."""
    grid = tuple(i / 30 for i in range(1, 31))
    outlook = outlook_of(WaitEstimate(0.1, 0.5, 0.9, "", 0, points=WaitCurve(grid, grid)))

    assert rate_within(outlook, 0.01) == pytest.approx(2.0)
    assert rate_after(outlook, 0.5) == pytest.approx(4.0), "half of it has passed"


def test_between_two_points_the_rate_follows_the_curve() -> None:
    """Where returns get ever rarer, the shortest hold is the best."""
    wait = wait_of(pareto(1.0))
    curve, shortest_s = wait.curve, 0.8
    chance = curve.chance_within(shortest_s)
    i = next(i for i, time_s in enumerate(curve.times_s) if time_s > shortest_s) - 1
    held_s = curve.held_s()[i]
    held_s += (shortest_s - curve.times_s[i]) * (1 - (curve.chances[i] + chance) / 2)

    assert rate_within(outlook_of(wait), shortest_s) == pytest.approx(chance / held_s)


def test_where_a_curve_ends_early_its_last_word_stands() -> None:
    """0.9 are back by 1 s, after 0.55 s on average; the others stay away."""
    outlook = outlook_of(WaitEstimate(0, 0, 0, "", 0, points=WaitCurve((1.0,), (0.9,))))

    assert rate_within(outlook, 3.0) == pytest.approx(0.9 / (0.55 + 2.0 * 0.1))
    assert rate_after(outlook, 3.0) == 0.0


@pytest.mark.parametrize(("age_s", "rel"), [(0.0, 0.3), (2.0, 0.3), (10.0, 0.1), (500.0, 0.1)])
def test_the_rate_by_age_is_that_of_the_age_curve(age_s: float, rel: float) -> None:
    """A young pause is worth a little less, as no hold below a second is thought of."""
    outlook = outlook_of(age_estimate(age_s))
    predicted, fading = mixed_rate(outlook, age_s, 1.0)

    assert predicted == pytest.approx(rate_by_age(age_s), rel=rel)
    assert fading == pytest.approx(1.0, abs=0.5 if age_s < 10 else 0.25)
    assert mixed_rate(outlook, age_s, 0.0) == (rate_by_age(age_s), 1.0)


def test_the_slim_chance_that_a_long_wait_is_over_at_once_does_not_decide() -> None:
    """Both waits may be over in a moment; one of them else takes far longer."""

    def stated(median_s: float) -> PauseView:
        sure, hump = lognormal(median_s, 0.35), lognormal(0.03, 0.5)
        return make_view(wait=wait_of(lambda t: 0.98 * sure(t) + 0.02 * hump(t)))

    assert worth(stated(20.0)) > 2 * worth(stated(300.0))


@given(st.floats(0, 1e6), st.floats(1.001, 10))
def test_by_age_alone_a_longer_wait_is_always_worth_less(age_s: float, factor: float) -> None:
    blind = ExpectedCostPolicy(uses_prediction=False)
    young, old = (blind.decide(make_view(age_s=age)) for age in (age_s, age_s * factor + 1e-3))

    assert young.keep_value is not None and old.keep_value is not None
    assert young.keep_value > old.keep_value


def test_who_is_expected_soon_with_confidence_is_worth_more_than_its_age_says() -> None:
    soon = make_view(age_s=58.0, wait=wait_of(lognormal(60.0, 0.05), 58.0))
    plain = make_view(age_s=58.0, wait=wait_of(pareto(0.1), 58.0))

    assert worth(soon) > 10 * worth(plain)


def test_who_has_just_begun_a_long_wait_is_worth_less_than_its_age_says() -> None:
    long = make_view(age_s=1.0, wait=wait_of(lognormal(600.0, 0.3), 1.0))
    plain = make_view(age_s=1.0, wait=wait_of(pareto(0.1), 1.0))

    assert worth(long) < 0.1 * worth(plain)


def test_a_hardly_confident_estimate_moves_a_pause_only_a_little() -> None:
    """On a logarithmic scale, in proportion to the trust, and without a jump."""

    def moved(confidence: float) -> float:
        wait = wait_of(lognormal(600.0, 0.3), 1.0, confidence=confidence)
        view = make_view(age_s=1.0, wait=wait)
        by_age = ExpectedCostPolicy().decide(view).keep_value_by_age
        assert by_age is not None
        return math.log(worth(view) / by_age)

    whole = moved(1.0)
    assert moved(0.0) == moved(0.02) == 0.0
    assert moved(0.03) == pytest.approx(0.1 * whole)
    assert moved(0.07) == pytest.approx(0.5 * whole)
    assert moved(0.12) == pytest.approx(whole)


def test_worth_is_the_delay_of_a_loss_per_byte() -> None:
    half = make_view(kv_bytes=VIEW.kv_bytes // 2)
    alone = make_view(dram_bytes_missing=VIEW.kv_bytes)

    assert worth(half) == pytest.approx(2 * worth(VIEW))
    assert worth(alone) / worth(VIEW) == pytest.approx(RECOMPUTE_S / RELOAD_S)
    slower = make_view(reload_s=2 * RELOAD_S)
    assert worth(slower) == pytest.approx(2 * worth(VIEW))


def test_a_session_that_may_have_ended_is_worth_less() -> None:
    wait, ended = (wait_of(lognormal(5.0, 0.5), chance_ended=chance) for chance in (0.0, 0.9))

    assert worth(make_view(wait=ended)) < 0.2 * worth(make_view(wait=wait))


@given(st.floats())
def test_any_confidence_gives_a_trust_between_nothing_and_all(confidence: float) -> None:
    assert 0.0 <= trust(confidence) <= 1.0
