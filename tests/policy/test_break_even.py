"""The break-even rule: worked cases, and what must hold for any view."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.cost_model import Prices
from agentkv.policy import Action, Decision, PauseView
from agentkv.policy.break_even import BreakEvenPolicy, _hold_points
from agentkv.predict import WaitEstimate

from .views import NO_SWAP_PAYS, RECOMPUTE_S, RELOAD_S, quantiles
from .views import make_view as plain_view


def wait_of(p10_s: float, p50_s: float, p90_s: float, source: str = "bash:pytest/test") -> Any:
    return quantiles(p10_s, p50_s, p90_s, source)


def make_view(**changes: Any) -> PauseView:
    return plain_view(**{"wait": wait_of(6.0, 12.0, 30.0), **changes})


def decide(**changes: Any) -> Decision:
    return BreakEvenPolicy().decide(make_view(**changes))


def test_a_wait_beyond_break_even_is_swapped_and_says_why() -> None:
    decision = decide()

    assert decision.action is Action.SWAP
    assert decision.reason == (
        "bash:pytest/test: wait p50 12 s > break-even 0.4 s at pressure 0.8;"
        " reload 0.4 s < recompute 4 s"
    )
    assert decision.break_even_s == pytest.approx(RELOAD_S)
    assert decision.review_in_s is None


def test_a_wait_below_break_even_is_held_until_a_moment_to_look_again() -> None:
    decision = decide(wait=wait_of(0.02, 0.05, 0.1, "edit"))

    assert decision.action is Action.HOLD
    assert decision.reason == "edit: wait p50 0.05 s <= break-even 0.4 s at pressure 0.8"
    assert decision.review_in_s == pytest.approx(0.1)


def test_nothing_is_done_while_nobody_waits_for_blocks() -> None:
    decision = decide(prices=Prices(hbm=0.0, dram=0.0), pressure=0.0)

    assert decision.action is Action.HOLD
    assert "nobody waits" in decision.reason
    assert decision.break_even_s is None


def test_weak_pressure_that_dram_would_cost_as_much_as_is_held() -> None:
    assert decide(prices=Prices(hbm=0.05, dram=0.05), pressure=0.05).action is Action.HOLD


def test_blocks_that_others_share_are_held() -> None:
    assert decide(kv_bytes=0).action is Action.HOLD


def test_weaker_pressure_holds_longer() -> None:
    wait, dram = wait_of(0.4, 0.5, 0.6), 0.05
    strong = decide(wait=wait, prices=Prices(hbm=1.0, dram=dram))
    weak = decide(wait=wait, prices=Prices(hbm=0.1, dram=dram))

    assert strong.action is Action.SWAP
    assert weak.action is Action.HOLD
    assert weak.break_even_s == pytest.approx(2 * RELOAD_S)
    assert strong.break_even_s == pytest.approx(RELOAD_S / 0.95)


def test_a_store_that_is_still_to_come_raises_the_break_even() -> None:
    assert decide(store_s=0.3).break_even_s == pytest.approx(0.7)


def test_a_stall_raises_the_break_even() -> None:
    assert decide(stall_s=0.25).break_even_s == pytest.approx(0.65)


def test_two_humps_are_held_through_the_first() -> None:
    wait = wait_of(0.005, 5.0, 60.0, "mixed")
    decision = decide(wait=wait)

    assert decision.action is Action.HOLD
    assert decision.reason.startswith(
        "mixed: wait p50 5 s > break-even 0.4 s at pressure 0.8, but "
    )
    assert "return within" in decision.reason
    assert decision.review_in_s is not None
    assert decision.review_in_s < 1.0
    # Once the first hump has passed, there is nothing left to hold for.
    assert decide(wait=wait_of(4.0, 20.0, 80.0)).action is Action.SWAP


def test_a_heavy_tail_beyond_break_even_tips_the_scale() -> None:
    decision = decide(wait=wait_of(0.2, 0.35, 90.0))

    assert decision.action is Action.SWAP
    assert "but p90 90 s makes holding dearer" in decision.reason


@pytest.mark.parametrize(("changes", "words"), NO_SWAP_PAYS)
def test_letting_go_means_recompute_where_a_swap_cannot_pay(
    changes: dict[str, Any], words: str
) -> None:
    decision = decide(**changes)

    assert decision.action is Action.RECOMPUTE
    assert words in decision.reason
    assert decision.break_even_s == pytest.approx(RECOMPUTE_S)


def test_a_recompute_is_worth_a_longer_hold_than_a_reload() -> None:
    wait = wait_of(1.5, 2.0, 2.5)

    assert decide(wait=wait).action is Action.SWAP
    assert decide(wait=wait, dram_bytes_missing=4 * 10**9).action is Action.HOLD


def test_what_dram_cannot_take_is_charged_as_recompute() -> None:
    decision = decide(dram_bytes_missing=10**9)

    assert decision.action is Action.SWAP
    assert decision.break_even_s == pytest.approx(0.75 * RELOAD_S + 0.25 * RECOMPUTE_S)


@pytest.mark.parametrize("previous", [Action.HOLD, Action.SWAP])
def test_near_break_even_the_action_in_force_stays(previous: Action) -> None:
    """Neither side is 10 % better here; further away either one gives way."""
    edge = make_view(wait=wait_of(0.409, 0.41, 0.411))
    shorter = dataclasses.replace(edge, wait=wait_of(0.2, 0.21, 0.22), previous_action=previous)
    longer = dataclasses.replace(edge, wait=wait_of(0.8, 0.81, 0.82), previous_action=previous)
    policy = BreakEvenPolicy()

    assert policy.decide(dataclasses.replace(edge, previous_action=previous)).action is previous
    assert policy.decide(shorter).action is Action.HOLD
    assert policy.decide(longer).action is Action.SWAP


@pytest.mark.parametrize("previous", [Action.SWAP, Action.RECOMPUTE])
def test_swap_and_recompute_do_not_flip_while_they_cost_alike(previous: Action) -> None:
    assert decide(reload_s=3.95, previous_action=previous).action is previous
    assert decide(reload_s=3.0, previous_action=previous).action is Action.SWAP
    assert decide(reload_s=5.0, previous_action=previous).action is Action.RECOMPUTE


def test_costs_of_impossible_actions_are_absent() -> None:
    assert set(decide().costs_s) == {"hold", "swap", "recompute"}
    assert set(decide(dram_bytes_missing=4 * 10**9).costs_s) == {"hold", "recompute"}


def test_costs_are_seconds_of_contended_memory() -> None:
    costs = decide().costs_s

    assert costs["swap"] == pytest.approx(0.8 * RELOAD_S)
    assert costs["recompute"] == pytest.approx(0.8 * RECOMPUTE_S)
    assert costs["hold"] > costs["swap"]


def test_a_hold_costs_less_than_a_swap_by_what_the_chance_of_return_is_worth() -> None:
    """(hbm - dram)·(E[min(wait, t)] - T*·P(wait <= t)), T* as decided, t the moment to let go."""
    wait, prices = wait_of(0.01, 0.8, 1.2), Prices(hbm=0.8, dram=0.05)
    decision = decide(wait=wait, prices=prices)
    hold = next(p for p in _hold_points(wait) if p.until_s == decision.review_in_s)
    assert decision.break_even_s is not None
    saved = hold.held_s - decision.break_even_s * hold.chance

    assert decision.action is Action.HOLD
    assert decision.costs_s["hold"] - decision.costs_s["swap"] == pytest.approx(0.75 * saved)


def test_rent_in_dram_is_part_of_a_swap_up_to_what_recompute_costs() -> None:
    free = decide().costs_s["swap"]
    rented = decide(prices=Prices(hbm=0.8, dram=0.05)).costs_s["swap"]
    for_hours = decide(prices=Prices(hbm=0.8, dram=0.05), wait=wait_of(1e3, 1e4, 1e5)).costs_s

    assert free < rented < free + 0.05 * 30
    assert for_hours["swap"] == pytest.approx(for_hours["recompute"])


def test_the_expected_hold_of_a_uniform_wait_is_found() -> None:
    """E[min(T, t)] of a wait spread evenly over 0..1 s is t - t²/2."""
    points = list(_hold_points(WaitEstimate(0.1, 0.5, 0.9, source="uniform", num_observed=0)))

    for point in points[:4]:  # below p10 the wait is spread evenly
        assert point.chance == pytest.approx(point.until_s)
        assert point.held_s == pytest.approx(point.until_s - point.until_s**2 / 2)
    assert points[-1].until_s == pytest.approx(0.9)
    assert points[-1].held_s == pytest.approx(0.9 - 0.9**2 / 2, rel=0.06)


spans = st.floats(0, 1e5)
views = st.builds(
    lambda quantiles, **fields: make_view(wait=wait_of(*sorted(quantiles)), **fields),
    quantiles=st.tuples(spans, spans, spans),
    context_tokens=st.integers(0, 10**7),
    kv_bytes=st.integers(0, 10**12),
    recompute_s=spans,
    reload_s=st.one_of(spans, st.just(math.inf)),
    store_s=spans,
    stall_s=st.floats(0, 10),
    dram_bytes_missing=st.integers(0, 10**12),
    prices=st.builds(Prices, hbm=st.floats(0, 1), dram=st.floats(0, 1)),
    min_load_tokens=st.one_of(st.integers(0, 10**7), st.just(math.inf)),
    previous_action=st.one_of(st.none(), st.sampled_from(Action)),
    is_ended=st.booleans(),
)


@given(views)
def test_any_view_gets_a_finite_decision_that_only_it_determines(view: PauseView) -> None:
    decision = BreakEvenPolicy().decide(view)

    assert decision == BreakEvenPolicy().decide(dataclasses.replace(view))
    assert decision.reason and "\n" not in decision.reason and "nan" not in decision.reason
    assert all(math.isfinite(cost) and cost >= 0 for cost in decision.costs_s.values())
    assert decision.break_even_s is None or math.isfinite(decision.break_even_s)
    assert decision.review_in_s is None or decision.review_in_s > 0
    if view.is_ended:
        assert decision.action is Action.RECOMPUTE
    elif view.prices.hbm == 0:
        assert decision.action is Action.HOLD


@given(views)
def test_with_free_dram_the_cheapest_action_wins(view: PauseView) -> None:
    plain = dataclasses.replace(
        view,
        prices=Prices(view.prices.hbm, 0.0),
        stall_s=0.0,
        min_load_tokens=0,
        previous_action=None,
        is_ended=False,
    )
    decision = BreakEvenPolicy().decide(plain)

    if decision.costs_s:
        chosen = decision.costs_s[decision.action.value]
        assert chosen <= min(decision.costs_s.values()) * (1 + 1e-9) + 1e-9


@given(views, st.floats(1.0, 100.0))
def test_a_longer_wait_never_turns_letting_go_into_a_hold(view: PauseView, factor: float) -> None:
    wait = view.wait
    longer = wait_of(wait.p10_s * factor, wait.p50_s * factor, wait.p90_s * factor)

    if BreakEvenPolicy().decide(view).action is not Action.HOLD:
        later = BreakEvenPolicy().decide(dataclasses.replace(view, wait=longer))
        assert later.action is not Action.HOLD
