"""The wire format of signals: what is let in, what is not, and that it survives the way there."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentkv.signals import (
    MAX_SECONDS,
    MAX_TEXT_CHARS,
    ControlMessage,
    ControlReply,
    Event,
    EventResult,
    ScopedEvent,
    SessionQuery,
    Status,
)


def event(**fields: Any) -> Event:
    return Event.model_validate({"event": "pause", "session_id": "s", **fields})


FULL = event(
    request_id="chatcmpl-1",
    cache_salt="salt",
    seq=7,
    tool="bash",
    command="pytest -q",
    expected_wait_s=40,
    timeout_s=120,
    waits_for="tool",
    calls=[{"tool": "bash", "command": "ls", "timeout_s": 3, "expected_wait_s": 0.5}],
)


@pytest.mark.parametrize("kind", ["pause", "resume", "heartbeat", "end"])
def test_an_event_needs_no_more_than_a_session(kind: str) -> None:
    assert event(event=kind).session_id == "s"
    assert Event.model_validate({"event": kind, "request_id": "r"}).request_id == "r"


def test_an_event_that_names_no_session_is_refused() -> None:
    with pytest.raises(ValidationError, match="session_id or request_id is needed"):
        Event.model_validate({"event": "pause", "cache_salt": "x"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("event", "explode"),
        ("session_id", ""),
        ("session_id", "s" * 257),
        ("session_id", 5),
        ("session_id", "\ud800"),
        ("request_id", ""),
        ("seq", -1),
        ("seq", 2**53 + 1),
        ("seq", 1.5),
        ("tool", ""),
        ("tool", "t" * (MAX_TEXT_CHARS + 1)),
        ("command", "c" * (MAX_TEXT_CHARS + 1)),
        ("expected_wait_s", -1),
        ("expected_wait_s", float("nan")),
        ("expected_wait_s", float("inf")),
        ("timeout_s", MAX_SECONDS + 1),
        ("waits_for", "godot"),
        ("calls", [{"tool": "bash"}] * 65),
        ("calls", [{"command": "ls"}]),
        ("calls", [{"tool": "bash", "colour": "red"}]),
        ("colour", "red"),
    ],
)
def test_a_field_that_is_wrong_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        event(**{field: value})
    assert {error["loc"][0] for error in caught.value.errors()} == {field}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session_id", "s" * 256),
        ("seq", 0),
        ("seq", 2**53),
        ("expected_wait_s", 0),
        ("timeout_s", MAX_SECONDS),
        ("tool", "t" * MAX_TEXT_CHARS),
        ("calls", [{"tool": "bash"}] * 64),
    ],
)
def test_the_limits_themselves_are_allowed(field: str, value: Any) -> None:
    event(**{field: value})


def test_an_event_cannot_be_changed_after_it_was_checked() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        event().session_id = "another"  # type: ignore[misc]


@pytest.mark.parametrize(
    "message",
    [
        ControlMessage(id="tick"),
        ControlMessage(id="m", events=(ScopedEvent(event=FULL, scope="digest"),) * 3),
        ControlMessage(id="m", sessions=SessionQuery(), wants_state=True),
        ControlMessage(id="m", sessions=SessionQuery(scope="x", session_id="s", limit=1)),
    ],
)
def test_a_message_arrives_as_it_was_sent(message: ControlMessage) -> None:
    """As the endpoint sends it: plain objects, without what is the default anyway."""
    sent = message.model_dump(mode="json", exclude_defaults=True)
    assert ControlMessage.model_validate(sent) == message


@pytest.mark.parametrize(
    "reply",
    [
        ControlReply(id=""),
        ControlReply(id="m", tick_in_s=0.0),
        ControlReply(id="m", results=(EventResult(status=Status.REJECTED, detail="old"),)),
        ControlReply(id="m", sessions=()),
        ControlReply(id="m", sessions=({"session_id": "ä", "pause": None},), state={"x": 0.5}),
    ],
)
def test_a_reply_arrives_as_it_was_sent(reply: ControlReply) -> None:
    """As the connector sends it: text. "No session matches" is another answer than "not asked"."""
    assert ControlReply.model_validate_json(reply.model_dump_json(exclude_defaults=True)) == reply


def test_a_tick_of_the_clock_is_next_to_nothing() -> None:
    assert ControlMessage(id="x").model_dump(exclude_defaults=True) == {"id": "x"}


@pytest.mark.parametrize("limit", [0, 1001, -1])
def test_a_query_has_a_limit_within_reason(limit: int) -> None:
    with pytest.raises(ValidationError):
        SessionQuery(limit=limit)


def test_a_status_is_its_own_text() -> None:
    assert [status.value for status in Status] == [
        "accepted",
        "deferred",
        "unknown",
        "unsupported",
        "rejected",
    ]
