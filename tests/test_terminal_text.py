"""Names from users do nothing to a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.terminal_text import clean, clean_all

EVIL = {
    "\x1b[31mred\x1b[0m": "red",
    "\x1b[2J\x1b[Hcleared": "cleared",
    "\x1b]0;title\x07name": "name",
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x9b31mred": "red",
    "\x9d0;title\x9cname": "name",
    "\x1bPdevice\x1b\\name": "name",
    "\x1bcreset": "reset",
    "\x1b(0boxes": "boxes",
    "unfinished \x1b[": "unfinished ",
    "unfinished \x1b]0;": "unfinished ",
    "line\nbreak\r\nand\ttab": "line break and tab",
    "back\x08space\x7f\x00": "backspace",
    "\u202egnp.exe": "gnp.exe",
    "zero\u200bwidth\ufeff": "zerowidth",
    "half \ud800 pair": "half  pair",
    "агент 🤖 [red]markup[/]": "агент 🤖 [red]markup[/]",
}


@pytest.mark.parametrize(("text", "wanted"), EVIL.items(), ids=range(len(EVIL)))
def test_escapes_and_control_characters_are_taken_out(text: str, wanted: str) -> None:
    assert clean(text) == wanted


@given(st.text(st.characters() | st.sampled_from("\x1b\x9b\x9d[]m;07\x07\x9c\\(")))
def test_nothing_that_controls_is_left(text: str) -> None:
    cleaned = clean(text)
    assert not [letter for letter in cleaned if unicodedata.category(letter)[0] == "C"]
    assert clean(cleaned) == cleaned


def test_all_strings_of_a_value_are_cleaned() -> None:
    assert clean_all({"a\x1b[1m": ["\x07b", 1, None, {"c": "\x9bmd"}]}) == {
        "a": ["b", 1, None, {"c": "d"}]
    }
