"""Which sessions are shown, in which order, and what is said of each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentkv.connectors.endpoint.models import Session
from agentkv.top.rows import Row, Sort, matching, ordered, rows_of

from .answers import many, paused, session


def rows(*sessions: Session, age_s: float = 0.0) -> list[Row]:
    return rows_of([each.model_dump(mode="json") for each in sessions], age_s)


def names(found: Sequence[Row]) -> list[str]:
    return [row.label for row in found]


MIXED = (
    session("runs"),
    paused("later", 90.0, since_s=1.0, context_tokens=9),
    session("arrived", "resuming"),
    paused("unknown", None, since_s=50.0),
    paused("overdue", 0.0, since_s=30.0),
    paused("done", 100.0, is_tool_done=True, since_s=2.0),
)
ORDERS = {
    Sort.RETURN: ["done", "overdue", "later", "unknown", "arrived", "runs"],
    Sort.WAITED: ["unknown", "overdue", "done", "later", "arrived", "runs"],
    Sort.CONTEXT: ["arrived", "done", "overdue", "runs", "unknown", "later"],
    Sort.NAME: ["arrived", "done", "later", "overdue", "runs", "unknown"],
}


@pytest.mark.parametrize("sort", Sort)
def test_each_order(sort: Sort) -> None:
    assert names(ordered(rows(*MIXED), sort)) == ORDERS[sort]


def test_all_orders_come_round() -> None:
    assert [Sort.RETURN.next(), Sort.NAME.next()] == [Sort.WAITED, Sort.RETURN]


@pytest.mark.parametrize(
    ("needle", "found"),
    [
        ("", 6),
        ("RUNS", 1),
        ("paused", 4),
        ("paused over", 1),
        ("bash", 4),
        ("hold", 4),
        ("pool", 5),
        ("no such", 0),
    ],
)
def test_a_filter_finds_all_its_words(needle: str, found: int) -> None:
    assert len(matching(rows(*MIXED), needle)) == found


def test_pauses_have_gone_on_since_the_engine_told_them() -> None:
    [row] = rows(paused(returns_in_s=5.0, since_s=12.0), age_s=3.0)
    assert (row.waited_s, row.returns_in_s) == (15.0, 2.0)
    [row] = rows(paused(returns_in_s=5.0), age_s=60.0)
    assert row.returns_in_s == 0


@pytest.mark.parametrize(
    ("told", "place", "is_swapped", "is_dropped"),
    [
        (session(), "pool", False, False),
        (session(state="resuming"), "", False, False),
        (paused(), "pool", False, False),
        (paused(parked_in="ssd"), "pool+ssd", False, False),
        (paused(action="swap"), "pool", False, False),
        (paused(action="swap", is_given_up=True), "dram", True, False),
        (paused(action="swap", is_given_up=True, parked_in="redis"), "redis", True, False),
        (paused(action="recompute", is_given_up=True), "-", False, True),
    ],
)
def test_where_the_kv_lies(told: Session, place: str, is_swapped: bool, is_dropped: bool) -> None:
    [row] = rows(told)
    assert (row.kept_in, row.is_swapped, row.is_dropped) == (place, is_swapped, is_dropped)


def test_a_session_keeps_its_own_name_beside_the_clean_one() -> None:
    [row] = rows(paused("\x1b[31mred", tool="b\x07ash", reason="a\nb"))
    assert row.session_id == "\x1b[31mred"
    assert (row.label, row.tool, row.reason) == ("red", "bash", "a b")


@pytest.mark.parametrize(
    "pause", [None, {}, 3, {"since_s": "x", "action": 4, "returns_in_s": True}]
)
def test_odd_sessions_have_a_row_too(pause: object) -> None:
    [row] = rows_of([{"session_id": 7, "state": None, "pause": pause}], 0.0)
    assert row.label == "7" and row.waited_s is None and row.returns_in_s is None
    assert ordered([row, *rows(*many(20))], Sort.RETURN)
