"""Each rival against the rule it is published with."""

from __future__ import annotations

import math

import pytest

from agentkv.policy import Action
from agentkv.policy.continuum import ContinuumPolicy
from agentkv.policy.fixed_ttl import FixedTtlPolicy
from agentkv.policy.infercept import InferCeptPolicy
from agentkv.policy.lru import LruPolicy
from agentkv.policy.progress_ttl import ProgressTtlPolicy, utility_s
from agentkv.policy.ranking import Candidate
from agentkv.policy.thunderagent import ThunderAgentPolicy, weight

from .views import (
    RECOMPUTE_S,
    RELOAD_S,
    VIEW,
    give_up_order,
    lognormal,
    make_view,
    quantiles,
    under,
    wait_of,
)


def test_lru_keeps_everything_and_what_was_free_longest_goes_first() -> None:
    views = [make_view(age_s=age_s, kv_bytes=size) for age_s, size in ((5, 9), (50, 1), (1, 4))]
    decisions = [LruPolicy().decide(view) for view in views]
    candidates = [
        Candidate(
            decision=decision,
            started_s=100 - view.age_s,
            decided_s=100.0,
            returns_at_s=100.0 + view.age_s,
        )
        for decision, view in zip(decisions, views, strict=True)
    ]

    assert {decision.action for decision in decisions} == {Action.HOLD}
    assert give_up_order(candidates, 100.0) == [1, 0, 2]


def test_a_fixed_ttl_holds_for_its_time_and_then_lets_go() -> None:
    policy = FixedTtlPolicy(ttl_s=10.0)

    within = policy.decide(make_view(age_s=4.0))
    assert (within.action, within.review_in_s) == (Action.HOLD, 6.0)
    assert policy.decide(make_view(age_s=10.0)).action is Action.SWAP
    gone = policy.decide(make_view(age_s=10.0, dram_bytes_missing=VIEW.kv_bytes))
    assert gone.action is Action.RECOMPUTE


@pytest.mark.parametrize(
    ("remaining_s", "running_bytes", "action"),
    [
        (1.9, 0, Action.HOLD),  # below half of the recompute: its memory grows chunk by chunk
        (2.1, 0, Action.RECOMPUTE),
        (2.1, VIEW.kv_bytes, Action.HOLD),  # a batch as large waits all the while
        (5.9, VIEW.kv_bytes, Action.HOLD),
        (6.1, VIEW.kv_bytes, Action.RECOMPUTE),
    ],
)
def test_infercept_discards_where_that_wastes_less_than_preserving(
    remaining_s: float, running_bytes: int, action: Action
) -> None:
    """w_discard = T·(own/2 + batch), w_preserve = remaining·own; T = 4 s."""
    view = make_view(
        wait=quantiles(0.1, remaining_s, 99.0),
        running_bytes=running_bytes,
        dram_bytes_missing=VIEW.kv_bytes,
    )
    decision = InferCeptPolicy().decide(view)

    assert decision.action is action
    assert decision.costs_s["recompute"] == pytest.approx(
        RECOMPUTE_S * (0.5 + running_bytes / VIEW.kv_bytes)
    )


def test_infercept_swaps_where_the_transfer_wastes_least() -> None:
    decision = InferCeptPolicy().decide(make_view(store_s=0.3))

    assert decision.action is Action.SWAP
    assert decision.costs_s == {"hold": 12.0, "recompute": 2.0, "swap": 0.3 + RELOAD_S}


def test_continuum_holds_for_the_time_of_highest_utility() -> None:
    """argmax P(wait <= τ)·reload - τ over the moments of the distribution."""
    wait = wait_of(lognormal(0.5, 0.6))
    view = make_view(wait=wait, reload_s=3.4)
    curve = wait.curve
    best_s = max((0.0, *curve.times_s), key=lambda ttl_s: curve.chance_within(ttl_s) * 3.4 - ttl_s)
    decision = ContinuumPolicy().decide(view)

    assert 0.5 < best_s < 2.0
    assert (decision.action, decision.review_in_s) == (Action.HOLD, best_s)


def test_continuum_lets_go_where_no_time_to_live_pays() -> None:
    assert ContinuumPolicy().decide(make_view(wait=wait_of(lognormal(30, 0.3)))).action is (
        Action.SWAP
    )


def test_continuum_holds_two_seconds_before_the_first_sample() -> None:
    unseen = wait_of(lognormal(30.0, 0.3))
    unseen = type(unseen)(unseen.p10_s, unseen.p50_s, unseen.p90_s, "any tool", 0)

    fresh = ContinuumPolicy().decide(make_view(wait=unseen, age_s=0.5))
    assert (fresh.action, fresh.review_in_s) == (Action.HOLD, 1.5)
    assert ContinuumPolicy().decide(make_view(wait=unseen, age_s=2.0)).action is Action.SWAP


def test_a_pause_that_was_let_go_gives_way_before_any_that_is_held() -> None:
    """A younger one whose time to live is over before an older one whose is not."""
    held = ContinuumPolicy().decide(make_view(age_s=9.0, wait=wait_of(lognormal(0.1, 0.3))))
    over = ContinuumPolicy().decide(make_view(age_s=1.0, wait=wait_of(lognormal(90.0, 0.3))))

    assert (held.action, over.action) == (Action.HOLD, Action.SWAP)
    candidates = [
        Candidate(decision=held, started_s=91.0, decided_s=100.0, returns_at_s=101.0),
        Candidate(decision=over, started_s=99.0, decided_s=100.0, returns_at_s=100.0),
    ]
    assert give_up_order(candidates, 100.0) == [1, 0]


def test_thunderagent_halves_a_pause_every_second() -> None:
    assert [weight(age_s) for age_s in (0.0, 1.0, 3.0)] == [1.0, 0.5, 0.125]
    assert weight(1e9) < 1e-300

    policy = ThunderAgentPolicy()
    assert policy.decide(make_view(age_s=0.9, **under(0.5))).action is Action.HOLD
    assert policy.decide(make_view(age_s=1.1, **under(0.5))).action is Action.SWAP
    assert policy.decide(make_view(age_s=1e6, **under(0.0))).action is Action.HOLD


def test_thunderagents_victims_are_the_shortest_contexts() -> None:
    lengths = (9_000, 400, 70_000)
    candidates = [
        Candidate(
            decision=ThunderAgentPolicy().decide(
                make_view(context_tokens=tokens, age_s=age_s, min_load_tokens=0)
            ),
            started_s=100 - age_s,
            decided_s=100.0,
            returns_at_s=100.0,
        )
        for age_s, tokens in enumerate(lengths)
    ]
    assert give_up_order(candidates, 160.0) == [1, 0, 2]


def test_the_utility_of_a_time_to_live_is_the_published_one() -> None:
    """U = I·F - E[X; X <= τ] - τ(1 - F), the latter two by summing the tail of a lognormal."""
    gain_s, mean_log, sigma, ttl_s = 7.4, math.log(2.0), 0.8, 3.0
    chance = lognormal(2.0, 0.8)
    steps = 20_000
    held_s = sum(1 - chance((i + 0.5) * ttl_s / steps) for i in range(steps)) * ttl_s / steps

    assert utility_s(ttl_s, gain_s, mean_log, sigma) == pytest.approx(
        gain_s * chance(ttl_s) - held_s, rel=1e-4
    )


def test_progress_ttl_holds_while_a_time_to_live_is_of_use() -> None:
    wait = quantiles(0.05, 0.5, 5.0)
    decision = ProgressTtlPolicy().decide(make_view(wait=wait, recompute_s=1.0))
    assert decision.action is Action.HOLD
    assert decision.break_even_s == pytest.approx(1.85)
    assert decision.review_in_s is not None
    at = (1.85, math.log(0.5), math.log(10) / 1.28155)
    best = utility_s(decision.review_in_s, *at)
    assert all(utility_s(0.05 * 1.05**i, *at) < best * 1.02 for i in range(132))

    late = ProgressTtlPolicy().decide(make_view(wait=quantiles(60.0, 90.0, 135.0)))
    assert late.action is Action.SWAP
