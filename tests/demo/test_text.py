"""The shipped text, and cutting token counts out of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agentkv.demo.text import FillText, RecordedSession


def test_the_package_ships_whole_sessions_with_text_in_every_turn(
    recorded: list[RecordedSession],
) -> None:
    assert len(recorded) == 19
    assert all(len(session.turns) >= 5 for session in recorded)
    assert all(turn.added and turn.answer for session in recorded for turn in session.turns)


def test_no_message_begins_or_ends_with_white_space(recorded: list[RecordedSession]) -> None:
    for session in recorded:
        for turn in session.turns:
            assert turn.added == turn.added.strip()
            assert turn.answer == turn.answer.strip()


@pytest.mark.parametrize("wanted", [1, 20, 500, 4000])
def test_a_cut_has_about_the_wanted_number_of_tokens(
    fill: FillText, tokenizer: Tokenizer, wanted: int
) -> None:
    found = len(tokenizer.encode(fill.cut(wanted, "key")).ids)
    assert abs(found - wanted) <= max(3, 0.01 * wanted)


@settings(deadline=None, max_examples=20)
@given(st.text(max_size=8), st.integers(1, 300), st.integers(1, 300))
def test_a_shorter_cut_begins_a_longer_one_of_the_same_key(
    fill: FillText, key: str, one: int, other: int
) -> None:
    shorter, longer = (fill.cut(size, key) for size in sorted((one, other)))
    assert longer.startswith(shorter) or shorter == "(no output)"  # Of white space alone.


def test_cuts_of_different_keys_differ(fill: FillText) -> None:
    assert fill.cut(50, "a") != fill.cut(50, "b")


def test_a_cut_may_be_longer_than_the_text(fill: FillText, tokenizer: Tokenizer) -> None:
    wanted = 150_000
    assert len(tokenizer.encode(fill.cut(wanted, "k")).ids) == pytest.approx(wanted, rel=0.01)


def test_the_head_of_a_text_keeps_its_first_tokens(fill: FillText, tokenizer: Tokenizer) -> None:
    text = fill.cut(100, "k")
    head = fill.head(text, 40)
    assert text.startswith(head)
    assert abs(len(tokenizer.encode(head).ids) - 40) <= 2
    assert fill.head(text, 1000) == text
