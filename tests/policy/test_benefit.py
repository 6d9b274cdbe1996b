"""Predictions switch themselves off where they do not pay: streams of known quality."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

import pytest

from agentkv.policy.base import PauseView
from agentkv.policy.benefit import RankingBenefit
from agentkv.policy.expected_cost import ExpectedCostPolicy
from agentkv.predict import WaitEstimate

from .views import lognormal, make_view, quantiles, wait_of

SHORT, LONG = lognormal(20.0, 0.5), lognormal(200.0, 0.5)
Predict = Callable[[random.Random, float, float], WaitEstimate]


def right(rng: random.Random, wait_s: float, age_s: float) -> WaitEstimate:
    return wait_of(SHORT if wait_s < 60 else LONG, age_s)


def guessed(rng: random.Random, wait_s: float, age_s: float) -> WaitEstimate:
    return wait_of(rng.choice((SHORT, LONG)), age_s)


def adversarial(rng: random.Random, wait_s: float, age_s: float) -> WaitEstimate:
    return wait_of(LONG if wait_s < 60 else SHORT, age_s)


def pareto_wait(rng: random.Random) -> float:
    return float(min(1e3, 0.5 * ((1 - rng.random()) ** -2.5 - 1)))


def two_humps(rng: random.Random) -> float:
    return (20.0 if rng.random() < 0.8 else 200.0) * math.exp(rng.gauss(0, 0.5))


def play(
    benefit: RankingBenefit,
    predict: Predict,
    *,
    draw_wait: Callable[[random.Random], float] = two_humps,
    num_returns: int = 1200,
    num_sessions: int = 24,
    seed: int = 1,
    start_s: float = 0.0,
) -> None:
    """Sessions of one size pause and return in a pool with room for a third of them."""
    rng, policy = random.Random(seed), ExpectedCostPolicy()
    events = [(start_s + rng.random(), name, "pause") for name in range(num_sessions)]
    heapq.heapify(events)
    while num_returns:
        now_s, name, event = heapq.heappop(events)
        if event == "return":
            benefit.note_returned(name)
            num_returns -= 1
            heapq.heappush(events, (now_s + rng.expovariate(1.0), name, "pause"))
            continue
        wait_s = draw_wait(rng)
        view = view_at(now_s, predict(rng, wait_s, 0.0))
        benefit.note_pressure(num_sessions / 3 * view.kv_bytes)
        benefit.note_decided(name, view, policy.decide(view))
        heapq.heappush(events, (now_s + wait_s, name, "return"))


def view_at(now_s: float, wait: WaitEstimate, age_s: float = 0.0, **more: object) -> PauseView:
    return make_view(now_s=now_s, age_s=age_s, wait=wait, kv_bytes=10**9, **more)


def test_predictions_count_until_there_is_evidence() -> None:
    assert RankingBenefit().is_worth_it
    assert RankingBenefit().score == 0.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_right_predictions_are_used(seed: int) -> None:
    benefit = RankingBenefit()
    play(benefit, right, seed=seed)

    assert benefit.is_worth_it
    assert benefit.score > 3


@pytest.mark.parametrize("predict", [guessed, adversarial])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_guesses_and_lies_are_not(predict: Predict, seed: int) -> None:
    benefit = RankingBenefit()
    play(benefit, predict, seed=seed)

    assert benefit.num_differences > 16, "there was something to see"
    assert not benefit.is_worth_it


def test_a_guess_about_waits_that_only_their_age_tells_of_is_not_used() -> None:
    benefit = RankingBenefit()
    play(benefit, guessed, draw_wait=pareto_wait)

    assert not benefit.is_worth_it
    assert benefit.score < 0


def test_predictions_that_turn_wrong_are_switched_off_and_on_again_when_right() -> None:
    benefit = RankingBenefit()
    play(benefit, right)
    play(benefit, adversarial, start_s=1e6)
    assert not benefit.is_worth_it

    play(benefit, right, start_s=2e6)
    assert benefit.is_worth_it


def test_without_pressure_there_is_no_evidence() -> None:
    benefit, policy = RankingBenefit(), ExpectedCostPolicy()
    for i in range(200):
        view = view_at(float(i), wait_of(SHORT))
        benefit.note_decided(i, view, policy.decide(view))
    for i in range(200):
        benefit.note_returned(i)

    assert benefit.num_differences == 0


def filled(predicted_soon: bool) -> RankingBenefit:
    """Room for one of two pauses: "old" began first, and is predicted to return soon or late."""
    benefit, policy = RankingBenefit(), ExpectedCostPolicy()
    benefit.note_pressure(10**9)
    old = view_at(0.0, quantiles(5.9, 6.0, 6.1) if predicted_soon else quantiles(600, 900, 999))
    young = view_at(5.0, quantiles(600, 900, 999))
    for name, view in (("old", old), ("young", young)):
        benefit.note_decided(name, view, policy.decide(view))
    return benefit


def test_a_return_that_only_prediction_kept_counts_for_it_and_the_other_way_round() -> None:
    for name, sign in (("old", 1), ("young", -1)):
        benefit = filled(predicted_soon=True)
        benefit.note_returned(name)
        assert (benefit.num_differences, benefit.score) == (1, sign)


def test_a_return_that_both_kept_or_both_lost_counts_for_neither() -> None:
    for name in ("old", "young"):
        benefit = filled(predicted_soon=False)
        benefit.note_returned(name)
        assert benefit.num_differences == 0


def add_outcomes(benefit: RankingBenefit, names: str) -> None:
    """One return for each letter: "w" only prediction kept, "l" only age kept."""
    policy = ExpectedCostPolicy()
    for name in names:
        for key, view in (
            ("w", view_at(0.0, quantiles(5.9, 6.0, 6.1))),
            ("l", view_at(5.0, quantiles(600, 900, 999))),
        ):
            benefit.note_decided(key, view, policy.decide(view))
        benefit.note_returned(name)
        benefit.note_ended("l" if name == "w" else "w")


def judged(names: str) -> RankingBenefit:
    benefit = RankingBenefit()
    benefit.note_pressure(10**9)
    add_outcomes(benefit, names)
    return benefit


def test_a_few_unlucky_returns_prove_nothing_but_a_clear_loss_does_at_once() -> None:
    for names, is_worth_it in (("lwl", True), ("llll", True), ("lllll", False)):
        assert judged(names).is_worth_it is is_worth_it, names


def test_with_enough_evidence_no_benefit_is_too_little() -> None:
    assert judged("wl" * 7 + "l").is_worth_it, "fifteen returns are not enough"
    assert not judged("wl" * 7 + "ll").is_worth_it


def test_it_takes_more_to_switch_on_again_than_to_stay_on() -> None:
    """Twenty to sixteen is enough to stay on, but not to begin again."""
    benefit = judged("w" * 20 + "l" * 16)
    assert 0 < benefit.score < 1.5
    assert benefit.is_worth_it

    benefit = judged("l" * 8 + "w" * 12)
    assert 0 < benefit.score < 1.5
    assert not benefit.is_worth_it
    add_outcomes(benefit, "w" * 8)
    assert benefit.is_worth_it


def test_an_end_is_no_return() -> None:
    benefit = filled(predicted_soon=True)
    benefit.note_ended("old")
    benefit.note_returned("old")
    benefit.note_returned("never seen")

    assert benefit.num_differences == 0


def test_memory_is_bounded_by_following_fewer_sessions() -> None:
    benefit, policy = RankingBenefit(max_pauses=16), ExpectedCostPolicy()
    benefit.note_pressure(1e12)
    view = view_at(0.0, wait_of(SHORT))
    decision = policy.decide(view)
    for name in range(500):
        benefit.note_decided(name, view, decision)
        assert len(benefit._open) <= 16


def test_after_a_rush_all_sessions_are_followed_again() -> None:
    benefit, policy = RankingBenefit(max_pauses=16), ExpectedCostPolicy()
    view = view_at(0.0, wait_of(SHORT))
    decision = policy.decide(view)
    for name in range(500):
        benefit.note_decided(name, view, decision)
    for name in range(500):
        benefit.note_ended(name)
    for name in range(10):
        benefit.note_decided(name, view, decision)

    assert len(benefit._open) == 10


def test_a_sample_of_the_sessions_tells_the_same() -> None:
    benefit = RankingBenefit(max_pauses=16)
    play(benefit, right, num_sessions=96, num_returns=4000)

    assert len(benefit._open) <= 16
    assert benefit.is_worth_it
