"""The sessions of real clients, from the headers and fields that they send unasked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.watch.identity import VLLM_SOURCES, Identity, session_of

UUID = "0198c0de-7c1e-7b52-9f61-2d5f1c9d2f11"
LEGACY_USER = f"user_{'ab12' * 16}_account__session_{UUID}"
USER_WITH_ACCOUNT = f"user_{'ab12' * 16}_account_{UUID[::-1]}_session_{UUID}"
JSON_USER = f'{{"device_id":"d","account_uuid":"","session_id":"{UUID}"}}'


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (
            {"X-Claude-Code-Session-Id": UUID},
            Identity(UUID, "x-claude-code-session-id"),
        ),
        (
            {"x-claude-code-session-id": UUID, "x-claude-code-agent-id": "a1f"},
            Identity(f"{UUID}/a1f", "x-claude-code-agent-id"),
        ),
        (
            {
                "x-claude-code-session-id": UUID,
                "x-claude-code-agent-id": "a1f",
                "x-claude-code-parent-agent-id": "b2",
            },
            Identity(f"{UUID}/a1f", "x-claude-code-agent-id"),
        ),
        (
            {"session-id": "root", "thread-id": "t2", "x-codex-parent-thread-id": "t1"},
            Identity("t2", "thread-id"),
        ),
        ({"session-id": "s"}, Identity("s", "session-id")),
        ({"session_id": "s", "conversation_id": "s"}, Identity("s", "session_id")),
        ({"conversation_id": "c"}, Identity("c", "conversation_id")),
        ({"x-opencode-session": "ses_1"}, Identity("ses_1", "x-opencode-session")),
        (
            {"x-session-affinity": "ses_1", "x-parent-session-id": "ses_0"},
            Identity("ses_1", "x-session-affinity"),
        ),
        (
            {"x-session-affinity": "ses_1", "X-Session-Id": "ses_1", "x-parent-session-id": "p"},
            Identity("ses_1", "x-session-id"),
        ),
        (
            {"x-deepseek-harness-session-id": "d"},
            Identity("d", "x-deepseek-harness-session-id"),
        ),
        (
            {
                "x-dynamo-session-id": "d",
                "x-dynamo-parent-session-id": "p",
                "X-Dynamo-Session-Final": "True",
                "x-claude-code-session-id": UUID,
            },
            Identity("d", "x-dynamo-session-id", is_final=True),
        ),
        (
            {"x-claude-code-session-id": UUID, "x-dynamo-session-final": "1"},
            Identity(UUID, "x-claude-code-session-id", is_final=True),
        ),
        ({"x-dynamo-session-final": "true"}, None),
        ({"x-request-id": "r", "user-agent": "claude-cli/2"}, None),
    ],
)
def test_a_session_named_by_headers(headers: dict[str, str], expected: Identity | None) -> None:
    assert session_of(headers, None) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"metadata": {"user_id": LEGACY_USER}}, Identity(UUID, "metadata.user_id")),
        ({"metadata": {"user_id": USER_WITH_ACCOUNT}}, Identity(UUID, "metadata.user_id")),
        ({"metadata": {"user_id": JSON_USER}}, Identity(UUID, "metadata.user_id")),
        ({"user": LEGACY_USER}, Identity(UUID, "user")),
        (
            {"client_metadata": {"session_id": "root", "thread_id": "t2"}},
            Identity("t2", "client_metadata.thread_id"),
        ),
        ({"user": "jane"}, None),
        ({"metadata": {"user_id": "jane_session_7"}}, None),
        ({"metadata": {"user_id": '{"session_id"'}}, None),
        ({"metadata": {"user_id": '{"session_id": 7}'}}, None),
        ({"prompt_cache_key": "my-app"}, None),
    ],
)
def test_a_session_named_by_the_body(body: dict[str, Any], expected: Identity | None) -> None:
    assert session_of({}, body) == expected


def test_what_vllm_reads_itself_comes_first_in_vllms_order() -> None:
    xargs = {"vllm_xargs": {"session_id": "three"}}
    client = {"x-claude-code-session-id": UUID}
    own_header = {**client, "X-Session-ID": "two"}
    found = [
        session_of(own_header, {"session_id": "one", **xargs}),
        session_of(own_header, xargs),
        session_of(client, xargs),
    ]
    assert [identity.name for identity in found if identity] == ["one", "two", "three"]
    assert all(identity.source in VLLM_SOURCES for identity in found if identity)


@pytest.mark.parametrize("value", ["", "  ", "x" * 257, "a\x00b", "a\nb"])
def test_a_name_that_cannot_be_one_is_passed_over(value: str) -> None:
    headers = {"x-dynamo-session-id": value, "session-id": "s"}
    assert session_of(headers, None) == Identity("s", "session-id")


def test_sub_agents_of_two_sessions_do_not_share_a_name() -> None:
    agent = {"x-claude-code-agent-id": "a1"}
    names = {
        identity.name
        for session in ("s1", "s2")
        if (identity := session_of({"x-claude-code-session-id": session, **agent}, None))
    }
    assert len(names) == 2


@given(
    st.dictionaries(
        st.sampled_from(["session_id", "user", "metadata", "client_metadata", "vllm_xargs"]),
        st.recursive(
            st.none() | st.integers() | st.text() | st.just("{" * 999),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(st.sampled_from(["user_id", "session_id", "thread_id"]), inner)
            ),
        ),
    )
)
def test_bodies_of_any_shape_do_not_raise(body: dict[str, Any]) -> None:
    identity = session_of({}, body)
    assert identity is None or identity.name
