"""Tags are hints: whatever a client sends, reading them never fails a request."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.events import EMPTY_TAG, TurnTag, read_tag


def test_a_full_tag_is_read() -> None:
    tag, problems = read_tag(
        {
            "agentkv": {
                "session_id": "s",
                "tool": "bash",
                "command": "pytest -q",
                "expected_wait_s": 3,
                "timeout_s": "120",
                "last_turn": True,
            }
        }
    )
    assert tag == TurnTag("s", "bash", "pytest -q", 3.0, 120.0, True)
    assert problems == ()


def test_the_flat_form_is_read_and_the_object_wins() -> None:
    flat = {"agentkv.tool": "bash", "agentkv.last_turn": "true", "other": 1}
    assert read_tag(None, flat)[0] == TurnTag(tool="bash", last_turn=True)
    assert read_tag({"agentkv": {"tool": "git"}}, flat)[0].tool == "git"


def test_no_tag_is_the_empty_tag() -> None:
    assert read_tag(None, None) == (EMPTY_TAG, ())
    assert read_tag({"do_remote_prefill": True}, {}) == (EMPTY_TAG, ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expected_wait_s", -1),
        ("expected_wait_s", math.nan),
        ("expected_wait_s", True),
        ("timeout_s", "soon"),
        ("last_turn", "perhaps"),
        ("tool", ""),
        ("session_id", 7),
    ],
)
def test_a_value_that_makes_no_sense_is_dropped_and_named(key: str, value: object) -> None:
    tag, problems = read_tag({"agentkv": {key: value, "command": "ls"}})
    assert tag == TurnTag(command="ls")
    assert len(problems) == 1 and problems[0].startswith(key)


def test_unknown_keys_and_a_tag_that_is_no_object_are_named() -> None:
    assert read_tag({"agentkv": {"toool": "bash"}}) == (EMPTY_TAG, ("toool: unknown key",))
    assert read_tag({"agentkv": ["bash"]})[1] == ("agentkv: expected an object, got list",)


def test_texts_and_times_are_bounded() -> None:
    tag, _ = read_tag({"agentkv": {"command": "x" * 100_000, "expected_wait_s": 1e300}})
    assert tag.command is not None and len(tag.command) == 4096
    assert tag.expected_wait_s == 30 * 86_400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=15), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON, JSON)
def test_reading_never_raises(params: object, extra: object) -> None:
    tag, problems = read_tag({"agentkv": params}, extra)
    assert isinstance(tag, TurnTag) and isinstance(problems, tuple)
    read_tag(params, extra)
