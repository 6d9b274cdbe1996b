"""The picture: it fits every screen, says what is known, and does what no name tells it to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from rich.cells import cell_len

from agentkv.cli.explain_report import print_stories
from agentkv.connectors.endpoint.models import Session
from agentkv.explain import pause_stories
from agentkv.top.board import Board
from agentkv.top.screen import picture, screen
from tests.test_terminal_text import EVIL

from . import answers
from .answers import engine, look, many, paused, state
from .drawn import plain, raw

SIZES = [(80, 24), (200, 60), (110, 30), (60, 10), (20, 5), (3, 2), (1, 1)]


def board(sessions: Sequence[Session] = (), **changes: Any) -> Board:
    first = look(sessions, **changes)
    return Board("http://x:8000", first, print_stories, interval_s=2.0)


def drawn(shown: Board, width: int = 80, height: int = 24) -> list[str]:
    return plain(screen(shown.scene(), width, height), width)


def text(shown: Board, width: int = 80, height: int = 24) -> str:
    return "\n".join(drawn(shown, width, height))


def with_page(name: str = "run-1", **fields: Any) -> Board:
    """Its ledger is open."""
    shown = board([paused(name)])
    shown.press("enter")
    records = [each.model_dump(mode="json") for each in answers.ledger(name).records]
    records[0] |= fields
    shown.note_ledger(
        name, {"state": "paused", "kv_tokens": {"gpu": 3_000}}, pause_stories(records)
    )
    return shown


BOARDS = {
    "busy": lambda: board(many(200)),
    "empty": lambda: board(metrics=""),
    "engines": lambda: board(many(40), told=state(*(engine(rank) for rank in range(16)))),
    "page": with_page,
}


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("kind", BOARDS)
def test_every_size_is_filled_and_not_exceeded(kind: str, width: int, height: int) -> None:
    lines = drawn(BOARDS[kind](), width, height)
    assert len(lines) == height
    assert max(cell_len(line) for line in lines) <= width


def test_what_is_known_is_on_a_small_screen() -> None:
    found = text(board(many(200), told=state(engine(sessions={"running": 23, "paused": 177}))))
    assert re.search(r"engine 0 +pool █+▒+ 30/100 run, ≤70% kept +pressure 0\.25", found)
    assert re.search(r"dram █+░+ 12GiB/32GiB", found)
    assert "running 23 " in found and "waiting 2 " in found
    assert re.search(r"held \d+  swapped \d+  dropped \d+", found)
    assert "hold 1,204  swap 310  recompute 0  regret 12 s" in found
    assert "80% of 1,000 in their 80% range · 15% before, 5% after it" in found
    assert "60% gpu, 30% dram, 10% computed again" in found
    assert "1st token  p50/p95: all >100 ms/>100 ms · gpu ≤10 ms/≤100 ms" in found
    assert re.search(
        r"^agent-\d+ +paused +read_file +\S+( s)? tool done hold +[\d,]+ pool", found, re.M
    )
    assert "200 of 200 sessions" in found


def test_a_wide_screen_has_the_reason_in_every_line() -> None:
    assert text(board([paused()]), 140).count("holding is free") == 1
    assert answers.REASON in text(board([paused(reason=answers.REASON)]), 200)
    assert "run-1: nobody waits for blocks: holding is free" in text(board([paused()]), 80)


def test_the_last_minutes_are_drawn_and_counted() -> None:
    shown = board([paused()])
    more = answers.METRICS.replace("1204.0", "1210.0").replace('inside"} 800', 'inside"} 803')
    told = state(engine(free_blocks=0))
    shown.note_look(look([paused()], told, more, taken_s=220.0))
    found = text(shown)
    assert "hold 1,210 +6" in found and "regret 12 s +0 s in 2m00s" in found
    assert "lately 100% of 3" in found
    assert re.search(r"100/100 run +▃ +█ pressure", found)


def test_nothing_is_said_of_what_is_kept_where_others_sessions_are_not_listed() -> None:
    hidden = state(engine(sessions={"paused": 5}))
    found = text(board([paused()], told=hidden))
    assert "% kept" not in found and "listed 1 of 5 " in found


def test_many_engines_leave_the_table_its_room() -> None:
    shown = board(many(40), told=state(*(engine(rank) for rank in range(16))))
    found = drawn(shown)
    assert sum(line.startswith("agent-") for line in found) >= 6
    assert re.search(r"and \d+ more engines", "\n".join(found))
    assert re.search(r"tiers +dram █+░+ 192GiB/512GiB", "\n".join(found))
    assert text(shown, 120, 60).count("pool █") == 16


def test_a_tier_that_fails_is_said() -> None:
    found = text(board(told=state(engine(tiers={}))), 120)
    assert re.search(r"dram 953\.7MiB +ssd 4\.657GiB left alone", found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "no sessions yet"),
        ({"told": state(engine(sessions={"paused": 3}))}, "none of the sessions is this key's"),
    ],
)
def test_an_empty_table_says_why(changes: dict[str, Any], said: str) -> None:
    changes = {"told": state(engine(sessions={}))} | changes
    assert said in text(board(**changes))


def test_a_filter_that_finds_nothing_says_so() -> None:
    shown = board([paused()])
    for key in ["/", "x"]:
        shown.press(key)
    assert "none of 1 sessions matches" in text(shown) and "filter: x" in text(shown)


def test_trouble_is_told_over_what_was_known() -> None:
    shown = board([paused()])
    shown.note_trouble("http://x:8000: no answer (ConnectError)")
    found = text(shown, 120)
    assert re.search(r"nothing new since \d\d:\d\d:\d\d \(\S+ m?s\): \S+ no answer", found)
    assert "run-1" in found
    shown.note_look(look([paused("run-2")], taken_s=200.0))
    found = text(shown, 120)
    assert "nothing new" not in found and "run-2" in found and "run-1" not in found


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_no_name_reaches_the_terminal_but_as_letters(evil: str) -> None:
    shown = board([paused(evil, tool=evil, reason=evil)])
    for keys in ([], ["enter"]):
        for key in keys:
            shown.press(key)
        left = re.sub(r"\x1b\[[0-9;]*m", "", raw(screen(shown.scene(), 160, 20), 160))
        assert not re.search(r"[^\n\x20-\x7e\xa0-\U0010ffff]", left)
        assert EVIL[evil].strip()[:8] in left


def test_markup_in_names_is_shown_as_it_is() -> None:
    name = "[red]x[/] [/no] :warning:"
    found = text(board([paused(name, reason="[link=http://x]r[/link]")]), 200)
    assert name in found and "[link=http://x]r[/link]" in found


# --- the ledger of one session ---


def test_the_ledger_is_printed_as_explain_prints_it() -> None:
    found = text(with_page(), 100, 30)
    assert "Now paused; KV of 3,000 tokens in gpu" in found
    assert "Session run-1: 1 pause, 9 s waited, regret 50 ms" in found
    assert f"swap: {answers.REASON[:20]}" in found and "Pause after turn 1" in found


def test_the_ledger_is_scrolled_and_closed() -> None:
    shown = with_page()
    top = drawn(shown, 80, 8)
    shown.press("j")
    assert drawn(shown, 80, 8)[1] == top[2]
    for _ in range(50):
        shown.press("page down")
    assert "it weighs reloads" in text(shown, 80, 8)
    shown.press("escape")
    assert "run-1 " in text(shown, 80, 24) and "q quit" in text(shown)


def test_a_name_with_markup_has_a_ledger() -> None:
    fields = {"tool": "[/red]", "estimate_source": "[/x]", "reason": "[bold]b[/bold] :+1:"}
    found = text(with_page("[red]x[/]", **fields), 100, 30)
    for shown in ("[red]x[/]", "· [/red]", "from [/x]", "[bold]b[/bold] :+1:"):
        assert shown in found


def test_until_the_ledger_is_here_that_is_said_and_why_it_does_not_come() -> None:
    shown = board([paused()])
    shown.press("enter")
    assert "run-1: asking the server" in text(shown)
    shown.note_no_ledger("another", "late")
    assert "asking the server" in text(shown)
    shown.note_no_ledger("run-1", "gone \x1b[2J")
    assert "gone" in text(shown)
    shown.press("enter")
    assert "asking the server" in text(shown)


# --- one picture ---


def test_a_picture_has_all_rows_or_says_how_many_more() -> None:
    shown = board(many(200))
    assert sum("agent-" in line for line in plain(picture(shown.scene(), 120), 120)) == 200
    some = plain(picture(shown.scene(), 120, max_rows=5), 120)
    assert sum("agent-" in line for line in some) == 5 and some[-1] == "and 195 more"
