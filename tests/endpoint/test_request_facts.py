"""What a request says of its session: who wins, and what is added where nobody names one."""

import json
from typing import Any

import pytest

from agentkv.connectors.endpoint.request_facts import RequestReader
from agentkv.scope import scope_of_salt

CLAUDE = {"x-claude-code-session-id": "claude"}


def reader(body: Any = None, **headers: str) -> RequestReader:
    return RequestReader(headers, json.dumps({} if body is None else body).encode())


@pytest.mark.parametrize(
    ("body", "headers", "added"),
    [
        ({}, {}, None),
        ({}, CLAUDE, "claude"),
        ({"messages": [{"content": "my session_id"}]}, CLAUDE, "claude"),
        ({}, {**CLAUDE, "x-session-id": "s"}, None),
        ({}, {**CLAUDE, "x-session-id": ""}, "claude"),
        ({"session_id": "s"}, CLAUDE, None),
        ({"session_id": ""}, CLAUDE, "claude"),
        ({"vllm_xargs": {"session_id": "s"}}, CLAUDE, None),
        ({"vllm_xargs": {"agentkv.session_id": "s"}}, CLAUDE, None),
        ({"kv_transfer_params": {"agentkv": {"session_id": "s"}}}, CLAUDE, None),
        ({}, {**CLAUDE, "x-agentkv-session-id": "tag"}, "tag"),
        ({"agentkv": {"session_id": "tag"}}, CLAUDE, "tag"),
        ([], CLAUDE, "claude"),
    ],
)
def test_the_name_that_is_added(body: Any, headers: dict[str, str], added: str | None) -> None:
    assert reader(body, **headers).name_to_add() == added


@pytest.mark.parametrize("name", ["x\r\nset-cookie: a", "", " ", "ü", "a" * 257, "\x00"])
def test_a_name_that_cannot_stand_in_a_header_is_not_added(name: str) -> None:
    assert reader(**{"x-claude-code-session-id": name}).name_to_add() in (
        None,
        name.strip() or None,
    )
    added = reader({"agentkv": {"session_id": name}}).name_to_add()
    assert added is None or (added.isascii() and added.isprintable())


def test_without_the_body_nothing_is_added() -> None:
    request = RequestReader(CLAUDE, None)
    assert request.name_to_add() is None
    assert request.facts().session_id is None


@pytest.mark.parametrize(
    ("body", "headers", "session_id"),
    [
        ({}, CLAUDE, "claude"),
        ({"session_id": "body"}, {"x-session-id": "header"}, "body"),
        ({"vllm_xargs": {"session_id": "xargs"}}, {"x-session-id": "header"}, "header"),
        ({"vllm_xargs": {"session_id": "xargs"}}, {}, "xargs"),
        ({"kv_transfer_params": {"agentkv": {"session_id": "tag"}}}, {}, "tag"),
        ({"session_id": 5}, {}, None),
        ({"session_id": "inferred-1"}, {}, None),
        ({}, {"x-session-id": "inferred-1"}, None),
    ],
)
def test_the_session_is_the_one_that_vllm_takes(
    body: Any, headers: dict[str, str], session_id: str | None
) -> None:
    assert reader(body, **headers).facts().session_id == session_id


def test_salt_tools_hints_and_the_last_turn() -> None:
    body = {
        "cache_salt": "red",
        "tools": [{"type": "function"}],
        "kv_transfer_params": {"agentkv": {"tool": "bash", "last_turn": True}},
    }
    facts = reader(body).facts()
    assert (facts.scope, facts.offers_tools, facts.is_last) == (scope_of_salt("red"), True, True)
    assert facts.hints.tool == "bash"
    plain = reader({"cache_salt": 5}).facts()
    assert (plain.scope, plain.offers_tools, plain.is_last) == ("", False, False)


def test_the_conversation_is_never_parsed() -> None:
    nonsense = b'"messages": [{"content": 1e999999, "x": ' + b"9" * 5000 + b"}]"
    request = RequestReader({}, b'{"session_id": "s", ' + nonsense + b"}")
    assert request.facts().session_id == "s"


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"\xff", b"[" * 100_000, b'{"a": ' + b"[" * 100_000),
        *(b'{"vllm_xargs": "\xff"}', b'{"cache_salt": NaN}', b'{"session_id": "\\ud800"}'),
        b'{"tools": 1e400}',
    ],
)
def test_nonsense_says_nothing(raw: bytes) -> None:
    request = RequestReader(CLAUDE, raw)
    assert request.name_to_add() == "claude"
    assert request.facts().session_id == "claude"
