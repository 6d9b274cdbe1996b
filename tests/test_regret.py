"""Regret: by hand for each action, zero for the best one, and what really happened counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv import appraisal, regret
from agentkv.cost_model import Prices
from agentkv.policy import Action, Decision, PauseView
from agentkv.predict import WaitEstimate
from agentkv.regret import (
    MAX_CHOICES,
    MAX_OPEN,
    ChoiceBook,
    Found,
    Hindsight,
    PriceMeter,
    expected_costs_s,
    hindsight,
)

IN_POOL = Found(useful=1.0, loaded=0.0, computed=0.0)
IN_DRAM = Found(useful=1.0, loaded=1.0, computed=0.0)
GONE = Found(useful=1.0, loaded=0.0, computed=1.0)
UNUSED = Found(useful=0.0, loaded=0.0, computed=0.0)


def view(at_s: float = 0.0, *, hbm: float = 1.0, dram: float = 0.05, **fields: Any) -> PauseView:
    """A pause whose KV is computed in 4 s and reloaded in half a second."""
    defaults: dict[str, Any] = {
        "now_s": at_s,
        "age_s": at_s,
        "context_tokens": 1000,
        "kv_bytes": 1000,
        "wait": WaitEstimate(1.0, 2.0, 30.0, "test", 9),
        "recompute_s": 4.0,
        "reload_s": 0.5,
        "store_s": 0.0,
        "dram_bytes_missing": 0,
        "load_bytes_per_s": 2000.0,
        "prices": Prices(hbm=hbm, dram=dram),
        "pressure": hbm,
    }
    return PauseView(**{**defaults, **fields})


def known(
    *choices: tuple[Action, PauseView],
    wait_s: float,
    found: Found,
    queued_s: float = 0.0,
    price: float = 1.0,
) -> Hindsight:
    """The hindsight of a pause with these decisions, the first of them when it began."""
    book = ChoiceBook()
    for action, seen in choices:
        book.note(1, Decision(action, "test"), seen)
    closed = book.close(1, now_s=wait_s + queued_s, price=price)
    assert closed is not None
    return hindsight(closed, found, arrived_s=wait_s)


# --- each action by hand ---


def test_a_hold_costs_the_wait_by_its_price() -> None:
    short = known((Action.HOLD, view()), wait_s=0.25, found=IN_POOL)
    assert short.cost_s == pytest.approx(0.25)
    assert short.costs_s == pytest.approx({"hold": 0.25, "swap": 0.5 + 0.05 * 0.25, "recompute": 4})
    assert short.regret_s == 0 and short.best == "hold"
    long = known((Action.HOLD, view()), wait_s=10.0, found=IN_POOL)
    assert long.best == "swap" and long.regret_s == pytest.approx(10 - (0.5 + 0.05 * 10))


def test_half_the_pressure_halves_what_a_hold_costs() -> None:
    seen = known((Action.HOLD, view(hbm=0.5)), wait_s=10.0, found=IN_POOL, price=0.5)
    assert seen.cost_s == pytest.approx(5.0) and seen.regret_s == pytest.approx(4.0)


def test_a_hold_that_nobody_paid_for_is_not_regretted() -> None:
    seen = known((Action.HOLD, view(hbm=0.0)), wait_s=900.0, found=IN_POOL, price=0.0)
    assert (seen.cost_s, seen.regret_s) == (0.0, 0.0)


def test_a_swap_costs_the_reload_and_the_rent() -> None:
    right = known((Action.SWAP, view()), wait_s=10.0, found=IN_DRAM)
    assert right.cost_s == pytest.approx(0.5 + 0.5) and right.regret_s == 0
    wrong = known((Action.SWAP, view()), wait_s=0.1, found=IN_DRAM)
    assert wrong.best == "hold" and wrong.regret_s == pytest.approx(0.5 + 0.005 - 0.1)


def test_store_and_stall_are_a_part_of_a_swap() -> None:
    seen = known((Action.SWAP, view(store_s=0.25, stall_s=0.125)), wait_s=0.0, found=IN_DRAM)
    assert seen.cost_s == pytest.approx(0.5 + 0.25 + 0.125)


def test_the_rent_of_a_copy_is_never_more_than_recomputing_adds() -> None:
    seen = known((Action.SWAP, view()), wait_s=86_400.0, found=IN_DRAM)
    assert seen.cost_s == pytest.approx(4.0) and seen.regret_s == 0


def test_a_recompute_costs_what_is_computed_again() -> None:
    wrong = known((Action.RECOMPUTE, view()), wait_s=10.0, found=GONE)
    assert wrong.cost_s == 4.0 and wrong.best == "swap" and wrong.regret_s == pytest.approx(3.0)
    right = known((Action.RECOMPUTE, view(recompute_s=0.25)), wait_s=10.0, found=GONE)
    assert right.cost_s == 0.25 and right.regret_s == 0


# --- what really happened ---


def test_a_hold_whose_blocks_were_lost_costs_the_recompute_as_well() -> None:
    seen = known((Action.HOLD, view(hbm=0.0)), wait_s=2.0, found=GONE, price=0.0)
    assert seen.cost_s == 4.0 == seen.costs_s["hold"]
    assert seen.best == "swap" and seen.regret_s == pytest.approx(4 - (0.5 + 0.05 * 2))


def test_a_swap_whose_copy_was_dropped_costs_the_recompute_and_no_rent() -> None:
    seen = known((Action.SWAP, view()), wait_s=2.0, found=GONE)
    assert seen.cost_s == 4.0 == seen.costs_s["swap"]
    assert seen.best == "hold" and seen.regret_s == pytest.approx(2.0)


def test_a_swap_whose_blocks_nobody_took_costs_nothing() -> None:
    seen = known((Action.SWAP, view()), wait_s=10.0, found=IN_POOL)
    assert (seen.cost_s, seen.best, seen.regret_s) == (0.0, "swap", 0.0)


def test_what_is_found_in_parts_costs_its_parts() -> None:
    half = Found(useful=1.0, loaded=0.5, computed=0.25, slow_s=1.5)
    seen = known((Action.SWAP, view()), wait_s=0.0, found=half)
    assert seen.cost_s == pytest.approx(0.5 * 0.5 + 1.5 + 0.25 * 4.0)


def test_kv_that_the_turn_does_not_go_on_from_was_best_dropped() -> None:
    seen = known((Action.HOLD, view()), wait_s=3.0, found=UNUSED)
    assert seen.best == "recompute" and seen.costs_s["recompute"] == 0
    assert seen.regret_s == pytest.approx(3.0)


def test_what_dram_could_not_take_is_no_alternative() -> None:
    all_missing = view(dram_bytes_missing=1000)
    assert "swap" not in known((Action.HOLD, all_missing), wait_s=9.0, found=IN_POOL).costs_s
    half_missing = view(dram_bytes_missing=500, dram=0.0)
    seen = known((Action.HOLD, half_missing), wait_s=9.0, found=IN_POOL)
    assert seen.costs_s["swap"] == pytest.approx(0.5 * 0.5 + 0.5 * 4.0)
    half_useful = Found(useful=0.5, loaded=0.0, computed=0.0)
    seen = known((Action.HOLD, half_missing), wait_s=9.0, found=half_useful)
    assert seen.costs_s["swap"] == pytest.approx(0.5 * (0.5 * 0.5 + 0.5 * 4.0))


# --- a pause that was decided more than once ---


def test_a_hold_counts_until_it_was_decided_anew() -> None:
    seen = known((Action.HOLD, view(0.0)), (Action.SWAP, view(3.0)), wait_s=13.0, found=IN_DRAM)
    assert seen.cost_s == pytest.approx(3.0 + 0.5 + 0.05 * 10)
    assert seen.costs_s == pytest.approx({"hold": 13.0, "swap": 0.5 + 0.05 * 13, "recompute": 4.0})
    assert seen.regret_s == pytest.approx(3.0 - 0.05 * 3)


def test_the_price_of_each_part_of_the_wait_counts() -> None:
    """Free for 100 s, then contended: the late swap was right."""
    seen = known(
        (Action.HOLD, view(0.0, hbm=0.0)), (Action.SWAP, view(100.0)), wait_s=160.0, found=IN_DRAM
    )
    assert seen.costs_s["hold"] == pytest.approx(60.0)
    assert seen.cost_s == pytest.approx(0.5 + 0.05 * 60) and seen.regret_s == 0


def test_the_time_a_turn_waits_for_blocks_is_not_part_of_the_pause() -> None:
    seen = known((Action.HOLD, view()), wait_s=2.0, queued_s=6.0, found=IN_POOL)
    assert seen.cost_s == pytest.approx(2.0)


# --- the price over time ---


def test_a_price_between_two_looks_fades_as_the_pressure_does() -> None:
    assert regret._PRESSURE_HALF_LIFE_S == appraisal._PRESSURE_HALF_LIFE_S
    meter = PriceMeter()
    start_s = meter.read(50.0, 1.0)
    assert meter.read(53.0, 1.0) - start_s == pytest.approx(3.0)
    before_s = meter.read(53.0, 1.0)
    faded_s = meter.read(153.0, 0.25) - before_s
    assert faded_s == pytest.approx(0.25 * 100 + 0.75 / 0.6931471805599453)
    assert meter.read(154.0, 1.0) - before_s - faded_s == pytest.approx(0.25)


def test_time_that_goes_back_adds_nothing() -> None:
    meter = PriceMeter()
    start_s = meter.read(50.0, 1.0)
    assert meter.read(40.0, 1.0) == start_s
    assert meter.read(51.0, 1.0) == pytest.approx(start_s + 1.0)


def test_decisions_about_other_pauses_tell_of_the_price() -> None:
    """The pressure was gone a second after the pause began; the decision alone could not know."""
    book = ChoiceBook()
    book.note(1, Decision(Action.HOLD, "test"), view(0.0))
    book.note(2, Decision(Action.HOLD, "test"), view(1.0, hbm=0.0))
    closed = book.close(1, now_s=1000.0, price=0.0)
    assert closed is not None
    seen = hindsight(closed, IN_POOL, arrived_s=1000.0)
    assert 0 < seen.cost_s < 1.0


# --- bounds ---


def test_a_forgotten_pause_has_no_hindsight() -> None:
    book = ChoiceBook()
    assert book.close(1, now_s=0.0, price=0.0) is None
    for pause_id in range(MAX_OPEN + 1):
        book.note(pause_id, Decision(Action.HOLD, "test"), view())
    assert len(book) == MAX_OPEN
    assert book.close(0, now_s=0.0, price=0.0) is None
    assert book.close(1, now_s=0.0, price=0.0) is not None
    assert book.close(1, now_s=0.0, price=0.0) is None


def test_a_pause_decided_over_and_over_keeps_its_first_and_its_last_decision() -> None:
    book = ChoiceBook()
    for at_s in range(10 * MAX_CHOICES):
        book.note(1, Decision(Action.HOLD, "test"), view(float(at_s)))
    closed = book.close(1, now_s=1e3, price=0.0)
    assert closed is not None and len(closed.choices) == MAX_CHOICES
    assert closed.choices[0].at_s == 0.0 and closed.choices[-1].at_s == 10 * MAX_CHOICES - 1


@given(
    actions=st.lists(st.sampled_from(list(Action)), min_size=1, max_size=4),
    gaps_s=st.lists(st.floats(0, 1e4), min_size=5, max_size=5),
    hbm=st.floats(0, 1),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
    missing=st.integers(0, 1000),
)
def test_regret_is_finite_and_never_negative(
    actions: list[Action],
    gaps_s: list[float],
    hbm: float,
    shares: tuple[float, float, float],
    missing: int,
) -> None:
    useful, loaded, computed = shares
    found = Found(useful=useful, loaded=useful * loaded, computed=useful * (1 - loaded) * computed)
    at_s, choices = 0.0, []
    for action, gap_s in zip(actions, gaps_s, strict=False):
        choices.append((action, view(at_s, hbm=hbm, dram_bytes_missing=missing)))
        at_s += gap_s
    seen = known(*choices, wait_s=at_s, queued_s=gaps_s[-1], found=found)
    assert 0 <= seen.regret_s < 1e6
    assert seen.regret_s == 0 or seen.cost_s > min(seen.costs_s.values())
    if len(set(actions)) == 1 and seen.best == actions[0].value:
        assert seen.regret_s == 0


# --- before the wait is known ---


def test_what_is_expected_at_the_median_wait() -> None:
    assert expected_costs_s(view(hbm=0.5)) == pytest.approx(
        {"hold": 0.5 * 2, "swap": 0.5 + 0.05 * 2, "recompute": 4.0}
    )
    assert expected_costs_s(view(dram_bytes_missing=1000)).keys() == {"hold", "recompute"}
    assert expected_costs_s(view(kv_bytes=0, recompute_s=0.0, reload_s=0.0))["swap"] == 0
