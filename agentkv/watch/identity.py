"""Who speaks: the session of a request, from what real clients send without being asked.

What: one table of the headers, and the body fields, that name a session. Why: an agent that needs
no change is one that its users do not have to change. Where: the endpoint plugin asks before it
tags a request. The headers are those of NVIDIA Dynamo and of the agents that Dynamo recognises
(`lib/llm/src/protocols/agents.rs` of ai-dynamo/dynamo); the older ones of Codex, and the body
fields of Codex and Claude Code, are from their own requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

VLLM_SOURCES = frozenset(("session_id", "x-session-id", "vllm_xargs.session_id"))
"""Sources that vLLM itself reads: a session named by one of them needs no tag of ours."""

MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class Identity:
    """`source` names the header or field; `is_final`: this is the session's last request.

    A sub-agent of Claude Code is named "session/agent", for its own id is short.
    """

    name: str
    source: str
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class _Client:
    """Headers of one client; `agent` is an id within the session."""

    session: str
    agent: str | None = None


_FINAL_HEADER = "x-dynamo-session-final"

_CLIENTS = (
    _Client("x-dynamo-session-id"),
    _Client("x-claude-code-session-id", agent="x-claude-code-agent-id"),
    _Client("thread-id"),  # Codex: a thread is one agent
    _Client("session-id"),  # Codex, until it sent thread-id
    _Client("session_id"),  # Codex in 2025
    _Client("conversation_id"),  # Codex before that
    _Client("x-deepseek-harness-session-id"),
    _Client("x-opencode-session"),
    _Client("x-session-affinity"),  # OpenCode, with X-Session-Id
)


def session_of(headers: Mapping[str, str], body: Mapping[str, Any] | None) -> Identity | None:
    """The session of a request, None if it names none. Any case of headers; never raises.

    What vLLM reads itself comes first and in vLLM's order, so that there is one truth.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    body = body if isinstance(body, Mapping) else {}
    is_final = sent.get(_FINAL_HEADER, "").strip().lower() in ("1", "true", "yes", "on")
    found = _vllms_own(sent, body) or _from_headers(sent) or _from_body(body)
    if found is None:
        return None
    name, source = found
    return Identity(name, source, is_final)


_Found = tuple[str, str]


def _vllms_own(sent: Mapping[str, str], body: Mapping[str, Any]) -> _Found | None:
    for source, value in (
        ("session_id", body.get("session_id")),
        ("x-session-id", sent.get("x-session-id")),
        ("vllm_xargs.session_id", _object(body.get("vllm_xargs")).get("session_id")),
    ):
        name = _name(value)
        if name is not None:
            return name, source
    return None


def _from_headers(sent: Mapping[str, str]) -> _Found | None:
    for client in _CLIENTS:
        session = _name(sent.get(client.session))
        if session is None:
            continue
        agent = _name(sent.get(client.agent)) if client.agent else None
        if agent is None:
            return session, client.session
        name = _name(f"{session}/{agent}")
        return (name, client.agent or "") if name else None
    return None


def _from_body(body: Mapping[str, Any]) -> _Found | None:
    for source, read in _BODY_FIELDS.items():
        name = _name(read(body))
        if name is not None:
            return name, source
    return None


def _codex_thread(body: Mapping[str, Any]) -> object:
    client_metadata = _object(body.get("client_metadata"))
    return client_metadata.get("thread_id") or client_metadata.get("session_id")


_LEGACY_USER_ID = re.compile(
    r"user_[0-9a-f]{1,64}_account_[0-9a-f-]{0,64}_session_([0-9a-f-]{8,64})"
)


def _claude_code_session(user_id: object) -> object:
    """Claude Code packs the session into the user id: as JSON, before that between "_"."""
    if not isinstance(user_id, str) or len(user_id) > 1024:
        return None
    if match := _LEGACY_USER_ID.fullmatch(user_id):
        return match[1]
    if not user_id.startswith("{"):
        return None
    try:
        return _object(json.loads(user_id)).get("session_id")
    except (ValueError, RecursionError):
        return None


_BODY_FIELDS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "client_metadata.thread_id": _codex_thread,
    "metadata.user_id": lambda b: _claude_code_session(_object(b.get("metadata")).get("user_id")),
    # A gateway that turns messages into chat completions moves the user id there.
    "user": lambda b: _claude_code_session(b.get("user")),
}


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(value: object) -> str | None:
    """The value if it can name a session: printable, and short enough for an event."""
    if not isinstance(value, str):
        return None
    name = value.strip()
    return name if 0 < len(name) <= MAX_NAME_CHARS and name.isprintable() else None
