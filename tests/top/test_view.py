"""What keys do to what is shown."""

from __future__ import annotations

import pytest

from agentkv.connectors.endpoint.models import Session
from agentkv.top.keys import keys_in
from agentkv.top.rows import Row, Sort, rows_of
from agentkv.top.view import View, Wish

from .answers import paused


def rows(*sessions: Session) -> list[Row]:
    return rows_of([each.model_dump(mode="json") for each in sessions], 0.0)


TEN = rows(*(paused(f"s{index}", float(index)) for index in range(10)))


def view_of(shown: list[Row], height: int = 4) -> View:
    view = View()
    view.show(shown)
    view.scroll_to(height)
    return view


def press(view: View, *keys: str, shown: list[Row] = TEN) -> Wish:
    """The last one's wish; between keys the screen is drawn."""
    wish = Wish.NOTHING
    for key in keys:
        wish = view.press(key, shown)
        view.scroll_to(view.height)
    return wish


def chosen(view: View) -> str:
    assert view.row is not None
    return view.row.label


@pytest.mark.parametrize(
    ("keys", "name", "first"),
    [
        (["j", "down"], "s2", 0),
        (["down", "up", "k", "k"], "s0", 0),
        (["j"] * 5, "s5", 2),
        (["end"], "s9", 6),
        (["G", "home"], "s0", 0),
        (["page down"], "s4", 1),
        (["page down", "page down", "page up"], "s4", 4),
        (["j"] * 50, "s9", 6),
    ],
)
def test_the_mark_moves_and_stays_in_sight(keys: list[str], name: str, first: int) -> None:
    view = view_of(TEN)
    press(view, *keys)
    assert (chosen(view), view.first) == (name, first)


def test_the_mark_stays_on_its_session_when_the_order_changes() -> None:
    view = view_of(TEN)
    press(view, "j", "j")
    now = rows(*(paused(f"s{index}", float(100 - index)) for index in range(10)))
    view.show(now)
    assert chosen(view) == "s2" and view.index == 7
    view.show([row for row in now if row.label != "s2"])
    assert view.index == 7


def test_an_untouched_mark_stays_on_the_first_place() -> None:
    view = view_of(TEN)
    view.show(rows(paused("new", 0.1), paused("s0", 1.0)))
    assert chosen(view) == "new"


def test_sorts_come_one_after_the_other() -> None:
    view = view_of(TEN)
    seen = [(press(view, "s"), view.sort)[1] for _ in range(4)]
    assert seen == [Sort.WAITED, Sort.CONTEXT, Sort.NAME, Sort.RETURN]


def test_a_filter_is_typed_kept_and_cleared() -> None:
    view = view_of(TEN)
    press(view, "/", *"sqx", "backspace", "backspace", *"7")
    assert view.is_typing and view.needle == "s7" and chosen(view) == "s7"
    press(view, "enter")
    assert not view.is_typing and [row.label for row in view.rows] == ["s7"]
    press(view, "escape")
    assert len(view.rows) == 10 and not view.needle
    press(view, "/", "s", "escape")
    assert not view.is_typing and not view.needle


def test_enter_opens_the_chosen_session_and_q_goes_back_first() -> None:
    view = view_of(TEN)
    assert press(view, "j", "enter") is Wish.OPEN and view.page_of == "s1"
    view.page_lines = 10
    press(view, "j", "page down")
    assert view.page_first == 5
    press(view, "end")
    assert view.page_first == 6
    assert press(view, "enter") is Wish.OPEN
    assert press(view, "q") is Wish.NOTHING and view.page_of is None
    assert chosen(view) == "s1" and press(view, "q") is Wish.QUIT


def test_with_no_sessions_keys_do_no_harm() -> None:
    view = view_of([])
    assert press(view, "j", "G", "s", "enter", shown=[]) is Wish.NOTHING
    assert view.row is None and view.page_of is None


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("jq", ["j", "q"]),
        ("\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        ("\x1b[5~\x1b[6~\x1b[1~\x1bOF", ["page up", "page down", "home", "end"]),
        ("\x1b", ["escape"]),
        ("\r\n\x7f", ["enter", "enter", "backspace"]),
        ("\x1b[24~\x1b[1;5C\x01ä", ["ä"]),
        ("\x1b[200~", []),
    ],
)
def test_bytes_become_keys(typed: str, keys: list[str]) -> None:
    assert keys_in(typed) == keys
