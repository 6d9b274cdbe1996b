"""What every policy owes the controller, whichever is chosen."""

from __future__ import annotations

import pytest

from agentkv.cost_model import Prices
from agentkv.policy import POLICIES, Action, PauseView
from agentkv.predict import WaitEstimate

VIEW = PauseView(
    now_s=0.0,
    age_s=0.0,
    context_tokens=16_384,
    kv_bytes=2 * 10**9,
    wait=WaitEstimate(5.0, 60.0, 600.0, source="task", num_observed=3),
    recompute_s=2.0,
    reload_s=0.1,
    store_s=0.0,
    dram_bytes_missing=0,
    load_bytes_per_s=20e9,
    prices=Prices(hbm=0.8, dram=0.05),
    pressure=0.8,
)


def with_(**changes: object) -> PauseView:
    fields = {name: getattr(VIEW, name) for name in PauseView.__slots__}
    return PauseView(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", POLICIES)
def test_an_ended_session_is_given_up(name: str) -> None:
    decision = POLICIES[name]().decide(with_(is_ended=True))

    assert decision.action is Action.RECOMPUTE
    assert "ended" in decision.reason


@pytest.mark.parametrize("name", POLICIES)
def test_a_replaced_context_is_given_up(name: str) -> None:
    decision = POLICIES[name]().decide(with_(is_superseded=True))

    assert decision.action is Action.RECOMPUTE
    assert "replaced" in decision.reason


@pytest.mark.parametrize("name", POLICIES)
def test_equal_views_give_equal_decisions(name: str) -> None:
    assert POLICIES[name]().decide(VIEW) == POLICIES[name]().decide(with_())


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("always_hold", Action.HOLD),
        ("always_swap", Action.SWAP),
        ("always_recompute", Action.RECOMPUTE),
    ],
)
def test_a_fixed_policy_does_as_it_is_called(name: str, action: Action) -> None:
    decision = POLICIES[name]().decide(VIEW)

    assert decision.action is action
    assert decision.reason == f"policy {name} says so"


def test_an_action_prints_as_the_word_users_know() -> None:
    assert [str(action) for action in Action] == ["hold", "swap", "recompute"]
    assert f"{Action.SWAP}" == "swap"
