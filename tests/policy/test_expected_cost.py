"""The rule of expected cost: worked cases, and what must hold for any view."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.cost_model import Prices, break_even_s
from agentkv.policy import Action, Decision, PauseView
from agentkv.policy.break_even import BreakEvenPolicy
from agentkv.policy.expected_cost import ExpectedCostPolicy
from agentkv.predict import WaitEstimate
from agentkv.predict.curve import WaitCurve

from .views import (
    NO_SWAP_PAYS,
    RECOMPUTE_S,
    RELOAD_S,
    lognormal,
    make_view,
    pareto,
    quantiles,
    under,
    wait_of,
)


def decide(**changes: Any) -> Decision:
    return ExpectedCostPolicy().decide(make_view(**changes))


def test_a_wait_far_beyond_break_even_is_swapped_and_says_why() -> None:
    decision = decide()

    assert decision.action is Action.SWAP
    assert decision.reason == (
        "bash:test: too few return within break-even 0.4 s to hold at pressure 0.8;"
        " reload 0.4 s < recompute 4 s"
    )
    assert decision.break_even_s == pytest.approx(RELOAD_S)
    assert decision.review_in_s is None


def test_a_short_wait_is_held_until_a_moment_to_look_again() -> None:
    decision = decide(wait=quantiles(0.02, 0.05, 0.1))

    assert decision.action is Action.HOLD
    assert decision.reason == (
        "bash:test: 90% return within 0.1 s: holding until then costs less than letting go,"
        " break-even 0.4 s at pressure 0.8"
    )
    assert decision.review_in_s == pytest.approx(0.1)


@pytest.mark.parametrize("pressure", [0.1, 0.5, 1.0])
def test_the_break_even_is_the_documents(pressure: float) -> None:
    """T* = 2M/B · hbm/(hbm - dram) + stall, with a copy out and one back."""
    one_way_s = 10.7e9 / 512e9
    decision = decide(
        **under(pressure), store_s=one_way_s, reload_s=one_way_s, recompute_s=1.3, stall_s=0.01
    )
    prices = Prices(hbm=pressure, dram=0.05)

    assert decision.break_even_s == pytest.approx(break_even_s(10.7e9, 512e9, prices, stall_s=0.01))


def test_two_humps_are_held_through_the_first() -> None:
    fast, slow = lognormal(0.02, 0.3), lognormal(60.0, 0.3)
    decision = decide(wait=wait_of(lambda t: 0.6 * fast(t) + 0.4 * slow(t)))

    assert decision.action is Action.HOLD
    assert decision.review_in_s is not None
    assert 0.02 < decision.review_in_s < 1.0, "the hazard drops after the first hump"
    assert decide(wait=wait_of(slow)).action is Action.SWAP


def test_the_moment_to_look_again_is_the_best_one() -> None:
    """A hold until t costs (hbm - dram)·E[min(wait, t)], and for those not back by then a swap."""
    wait = wait_of(lambda t: 0.7 * lognormal(0.1, 1.0)(t) + 0.3 * pareto(2.0)(t))
    decision = decide(wait=wait, store_s=0.1, stall_s=0.2, **under(0.8))
    assert decision.break_even_s == pytest.approx((0.1 + RELOAD_S) * 0.8 / 0.75 + 0.2)
    curve, edge_s = wait.curve, decision.break_even_s
    until_s, chance, held_s = max(
        zip(curve.times_s, curve.chances, curve.held_s(), strict=True),
        key=lambda point: edge_s * point[1] - point[2],
    )

    assert decision.action is Action.HOLD
    assert decision.review_in_s == until_s
    swap = 0.8 * (0.1 + RELOAD_S) + 0.75 * 0.2
    assert decision.costs_s["swap"] == pytest.approx(swap)
    assert decision.costs_s["hold"] == pytest.approx(0.75 * held_s + (1 - chance) * swap)


def test_costs_are_seconds_of_contended_memory() -> None:
    costs = decide().costs_s

    assert costs["swap"] == pytest.approx(0.8 * RELOAD_S)
    assert costs["recompute"] == pytest.approx(0.8 * RECOMPUTE_S)
    assert costs["hold"] > costs["swap"]


def test_a_session_that_has_probably_ended_pays_for_no_return() -> None:
    wait = wait_of(lognormal(20.0, 0.5), chance_ended=0.95)

    assert decide(wait=wait).costs_s["recompute"] == pytest.approx(0.05 * 0.8 * RECOMPUTE_S)
    assert decide(wait=wait, store_s=0.0).action is Action.SWAP, "the copy is there already"
    unworthy = decide(wait=wait, store_s=0.3)
    assert unworthy.action is Action.RECOMPUTE, "not worth copying out"
    assert "recompute 4 s costs less than keeping a copy" in unworthy.reason
    assert decide(wait=wait_of(lognormal(20.0, 0.5)), store_s=0.3).action is Action.SWAP


@pytest.mark.parametrize(("changes", "words"), NO_SWAP_PAYS)
def test_letting_go_means_recompute_where_a_swap_cannot_pay(
    changes: dict[str, Any], words: str
) -> None:
    decision = decide(**changes)

    assert decision.action is Action.RECOMPUTE
    assert words in decision.reason
    assert decision.break_even_s == pytest.approx(RECOMPUTE_S)


def test_what_dram_cannot_take_is_charged_as_recompute() -> None:
    decision = decide(dram_bytes_missing=10**9)

    assert decision.action is Action.SWAP
    assert decision.break_even_s == pytest.approx(0.75 * RELOAD_S + 0.25 * RECOMPUTE_S)


@pytest.mark.parametrize("previous", [Action.HOLD, Action.SWAP])
def test_near_break_even_the_action_in_force_stays(previous: Action) -> None:
    """Neither side is 10 % better here; further away either one gives way."""
    edge = quantiles(0.409, 0.41, 0.411)

    assert decide(wait=edge, previous_action=previous).action is previous
    shorter = decide(wait=quantiles(0.2, 0.21, 0.22), previous_action=previous)
    longer = decide(wait=quantiles(0.8, 0.81, 0.82), previous_action=previous)
    assert (shorter.action, longer.action) == (Action.HOLD, Action.SWAP)


@pytest.mark.parametrize("previous", [Action.SWAP, Action.RECOMPUTE])
def test_swap_and_recompute_do_not_flip_while_they_cost_alike(previous: Action) -> None:
    assert decide(reload_s=3.95, previous_action=previous).action is previous
    assert decide(reload_s=3.0, previous_action=previous).action is Action.SWAP
    assert decide(reload_s=5.0, previous_action=previous).action is Action.RECOMPUTE


def test_free_memory_is_held_and_still_ranked() -> None:
    for changes in (under(0.0), under(0.05), {"kv_bytes": 0}):
        decision = decide(**changes)
        assert decision.action is Action.HOLD
        assert decision.keep_value is not None and decision.keep_value > 0
    assert "nobody waits" in decide(**under(0.0)).reason


def test_what_no_turn_needs_is_worth_nothing() -> None:
    for changes in ({"is_ended": True}, {"is_superseded": True}):
        decision = decide(**changes)
        assert decision.action is Action.RECOMPUTE
        assert (decision.keep_value, decision.keep_value_by_age) == (0.0, 0.0)


def test_without_prediction_only_the_age_counts() -> None:
    blind = ExpectedCostPolicy(uses_prediction=False)
    views = [make_view(age_s=3.0, wait=quantiles(*waits)) for waits in ((1, 2, 3), (50, 60, 70))]

    first, second = (blind.decide(view) for view in views)
    assert first == second
    assert first.keep_value == first.keep_value_by_age
    assert first.fading == 1.0


spans = st.floats(0, 1e5)
anything = st.one_of(spans, st.sampled_from([0.0, math.inf, 1e300]))


@st.composite
def curves(draw: st.DrawFn) -> WaitCurve:
    num = draw(st.integers(1, 30))
    start_s = draw(st.floats(1e-4, 10))
    ratio = draw(st.floats(1.01, 3))
    steps = draw(st.lists(st.floats(0, 1), min_size=num, max_size=num))
    last = draw(st.floats(0, 1))
    total, chances = sum(steps) or 1.0, []
    for i in range(num):
        chances.append(min(last, last * sum(steps[: i + 1]) / total))
    return WaitCurve(tuple(start_s * ratio**i for i in range(num)), tuple(chances))


@st.composite
def waits(draw: st.DrawFn) -> WaitEstimate:
    quantile_s = sorted(draw(st.tuples(spans, spans, spans)))
    return WaitEstimate(
        *quantile_s,
        source="any",
        num_observed=draw(st.integers(0, 200)),
        chance_ended=draw(st.floats(0, 1)),
        confidence=draw(st.floats(0, 1)),
        points=draw(st.one_of(st.none(), curves())),
    )


views = st.builds(
    make_view,
    age_s=spans,
    wait=waits(),
    context_tokens=st.integers(0, 10**7),
    kv_bytes=st.integers(0, 10**12),
    recompute_s=anything,
    reload_s=anything,
    store_s=anything,
    stall_s=st.floats(0, 10),
    running_bytes=st.integers(0, 10**13),
    dram_bytes_missing=st.integers(0, 10**12),
    prices=st.builds(Prices, hbm=st.floats(0, 1), dram=st.floats(0, 1)),
    min_load_tokens=st.one_of(st.integers(0, 10**7), st.just(math.inf)),
    previous_action=st.one_of(st.none(), st.sampled_from(Action)),
    is_ended=st.booleans(),
)


@given(views)
def test_any_view_gets_a_finite_decision_that_only_it_determines(view: PauseView) -> None:
    decision = ExpectedCostPolicy().decide(view)

    assert decision == ExpectedCostPolicy().decide(dataclasses.replace(view))
    assert decision.reason and "\n" not in decision.reason and "nan" not in decision.reason
    assert all(math.isfinite(cost) and cost >= -1e-6 for cost in decision.costs_s.values())
    assert decision.break_even_s is None or math.isfinite(decision.break_even_s)
    assert decision.review_in_s is None or 0 < decision.review_in_s < math.inf
    for worth in (decision.keep_value, decision.keep_value_by_age):
        assert worth is not None and 0 <= worth < math.inf
    if view.is_ended:
        assert decision.action is Action.RECOMPUTE
    elif view.prices.hbm == 0:
        assert decision.action is Action.HOLD


plain = views.map(lambda view: dataclasses.replace(view, previous_action=None, is_ended=False))


@given(plain)
def test_the_cheapest_action_wins(view: PauseView) -> None:
    view = dataclasses.replace(view, min_load_tokens=0)
    costs = ExpectedCostPolicy().decide(view).costs_s
    action = ExpectedCostPolicy().decide(view).action

    if costs:
        assert costs[action.value] <= min(costs.values()) * (1 + 1e-6) + 1e-6


@given(plain, st.floats(0.02, 1), st.floats(0.02, 1))
def test_more_pressure_never_turns_letting_go_into_a_hold(
    view: PauseView, one: float, other: float
) -> None:
    weak, strong = (
        ExpectedCostPolicy().decide(dataclasses.replace(view, **under(pressure, 0.01)))
        for pressure in sorted((one, other))
    )
    if weak.action is not Action.HOLD:
        assert strong.action is not Action.HOLD


@given(plain, st.floats(1, 1e3))
def test_who_cannot_be_back_before_break_even_is_not_held(view: PauseView, late: float) -> None:
    view = dataclasses.replace(view, stall_s=0.0, **under(1.0))
    edge_s = ExpectedCostPolicy().decide(view).break_even_s
    if edge_s is None or edge_s > 1e4:
        return
    curve = WaitCurve((edge_s + 1e-3, edge_s * late + 1.0), (0.0, 0.9))
    wait = dataclasses.replace(view.wait, points=curve, chance_ended=0.0)
    decision = ExpectedCostPolicy().decide(dataclasses.replace(view, wait=wait))

    if decision.break_even_s is not None and decision.break_even_s <= edge_s:
        assert decision.action is not Action.HOLD


@settings(derandomize=True)  # "Nearly" has exceptions; the same views every time.
@given(plain)
def test_with_three_quantiles_it_decides_nearly_as_break_even_does(view: PauseView) -> None:
    """The two differ only in their points, so only where neither action is much better.

    But for the stall of a swap, which `break_even` leaves out when it compares it with computing.
    """
    view = dataclasses.replace(
        view,
        stall_s=0.0,
        wait=dataclasses.replace(view.wait, points=None, chance_ended=0.0),
        recompute_s=min(view.recompute_s, 1e4),
        store_s=min(view.store_s, 1e4),
    )
    ours, theirs = ExpectedCostPolicy().decide(view), BreakEvenPolicy().decide(view)

    assert ours.break_even_s == pytest.approx(theirs.break_even_s)
    if ours.action is not theirs.action:
        hold = theirs.costs_s["hold"] if theirs.action is Action.HOLD else ours.costs_s["hold"]
        away = min(cost for name, cost in ours.costs_s.items() if name != "hold")
        assert min(hold, away) > 0.8 * max(hold, away) - 0.1
