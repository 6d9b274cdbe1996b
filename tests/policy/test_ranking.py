"""Who gives way first, by worth, by age, and by the rule where no worth is given."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.policy import Action, Decision
from agentkv.policy.expected_cost import ExpectedCostPolicy
from agentkv.policy.lru import LruPolicy
from agentkv.policy.ranking import Candidate, is_due, worth_by_age, worth_now

from .views import give_up_order, lognormal, make_view, pareto, wait_of

NOW_S = 1000.0


def candidate(action: Action = Action.SWAP, worth: float | None = None, **more: Any) -> Candidate:
    decision = Decision(action, "as the test wants", keep_value=worth)
    fields = {"started_s": 990.0, "decided_s": NOW_S, "returns_at_s": NOW_S + 10.0} | more
    return Candidate(decision=decision, **fields)


def order(*candidates: Candidate, **more: Any) -> list[int]:
    return give_up_order(candidates, NOW_S, **more)


def test_without_a_worth_recompute_goes_first_then_swap_then_hold_by_latest_return() -> None:
    ranked = order(
        candidate(Action.HOLD, returns_at_s=NOW_S + 99),
        candidate(Action.SWAP, returns_at_s=NOW_S + 5),
        candidate(Action.SWAP, returns_at_s=NOW_S + 50),
        candidate(Action.RECOMPUTE, returns_at_s=NOW_S + 1),
    )
    assert ranked == [3, 2, 1, 0]


def test_without_a_worth_who_is_overdue_or_done_is_expected_now() -> None:
    done = candidate(returns_at_s=NOW_S + 500, is_tool_done=True)
    overdue = candidate(returns_at_s=NOW_S - 500)
    later = candidate(returns_at_s=NOW_S + 1)

    assert order(done, overdue, later) == [2, 0, 1]


def test_the_least_worth_goes_first_whatever_the_action() -> None:
    ranked = order(
        candidate(Action.HOLD, 3.0), candidate(Action.SWAP, 2.0), candidate(Action.RECOMPUTE, 1.0)
    )
    assert ranked == [2, 1, 0]


def test_what_no_turn_needs_goes_before_all_and_who_is_done_after_all() -> None:
    ranked = order(
        candidate(Action.SWAP, 1e-9, is_tool_done=True),
        candidate(Action.HOLD, 5.0),
        candidate(Action.RECOMPUTE, None, is_tool_done=True),
        candidate(Action.RECOMPUTE, 0.0),
    )
    assert ranked == [2, 3, 1, 0]


def test_one_pause_without_a_worth_ranks_all_by_return() -> None:
    ranked = order(
        candidate(Action.HOLD, 0.1), candidate(Action.SWAP, 9.0), candidate(Action.HOLD, None)
    )
    assert ranked[0] == 1


def test_equal_pauses_go_oldest_first() -> None:
    ranked = order(*(candidate(worth=1.0, started_s=age_s) for age_s in (30.0, 10.0, 20.0)))
    assert ranked == [1, 2, 0]


def test_a_worth_fades_until_it_is_decided_anew() -> None:
    """Decided when 9 s old and looked at when 99 s old: a tenth is left, a second added to both."""
    decision = Decision(Action.SWAP, "", keep_value=2.0, keep_value_by_age=4.0, fading=0.5)
    ages = {"decided_age_s": 9.0, "age_s": 99.0}

    assert worth_now(decision, **ages) == pytest.approx(2.0 * 0.1**0.5)
    assert worth_by_age(decision, **ages) == pytest.approx(0.4)
    lasting = Decision(Action.SWAP, "", keep_value=2.0)
    assert worth_now(lasting, **ages) == worth_by_age(lasting, **ages) == 2.0


def test_a_decision_is_due_when_the_wait_has_aged_by_a_quarter_or_its_review_has_come() -> None:
    decision = Decision(Action.HOLD, "", review_in_s=0.5)

    assert not is_due(decision, decided_age_s=10.0, age_s=10.4)
    assert is_due(decision, decided_age_s=10.0, age_s=10.5)
    assert not is_due(Decision(Action.SWAP, ""), decided_age_s=10.0, age_s=12.5)
    assert is_due(Decision(Action.SWAP, ""), decided_age_s=10.0, age_s=12.6)


@given(st.lists(st.tuples(st.floats(0, 900), st.integers(1, 10**6)), max_size=12))
def test_lru_ranks_by_age_whatever_the_size(pauses: list[tuple[float, int]]) -> None:
    candidates = [
        Candidate(
            decision=LruPolicy().decide(
                make_view(age_s=0.3 * (NOW_S - started_s), context_tokens=tokens)
            ),
            started_s=started_s,
            decided_s=started_s + 0.3 * (NOW_S - started_s),
            returns_at_s=0.0,
        )
        for started_s, tokens in pauses
    ]
    ranked = [pauses[i][0] for i in order(*candidates)]

    # Decided at whatever age, the pause free longest goes first.
    assert all(earlier <= later + 1e-6 for earlier, later in pairwise(ranked))


def expected(started_s: float, **changes: Any) -> Candidate:
    view = make_view(age_s=NOW_S - started_s, **changes)
    return Candidate(
        decision=ExpectedCostPolicy().decide(view),
        started_s=started_s,
        decided_s=NOW_S,
        returns_at_s=0.0,
    )


def test_an_old_pause_that_is_expected_soon_outranks_a_young_one_that_is_not() -> None:
    soon = expected(940.0, wait=wait_of(lognormal(61.0, 0.05), 60.0))
    far = expected(995.0, wait=wait_of(lognormal(300.0, 0.3), 5.0))

    assert order(soon, far) == [1, 0]
    assert order(soon, far, is_prediction_trusted=False) == [0, 1], "LRU order"


def test_below_a_confidence_the_order_is_that_of_age() -> None:
    soon = expected(940.0, wait=wait_of(lognormal(61.0, 0.05), 60.0, confidence=0.02))
    far = expected(995.0, wait=wait_of(lognormal(300.0, 0.3), 5.0, confidence=0.01))

    assert order(soon, far) == [0, 1]


def test_where_only_a_pareto_tail_is_known_prediction_ranks_as_age_does() -> None:
    ages = (0.2, 1.0, 3.0, 10.0, 40.0, 200.0)
    candidates = [expected(NOW_S - age_s, wait=wait_of(pareto(0.1), age_s)) for age_s in ages]

    assert order(*candidates) == order(*candidates, is_prediction_trusted=False)
    assert order(*candidates) == [5, 4, 3, 2, 1, 0]


def test_without_trust_a_dearer_loss_still_counts() -> None:
    copied = expected(995.0)
    only_here = expected(990.0, dram_bytes_missing=4 * 10**9)

    assert order(copied, only_here, is_prediction_trusted=False) == [0, 1]
