"""Signals about pauses that come from outside the engine, and the wire format that carries them.

    agent, SDK ──HTTP──► endpoint plugin ──control message──► connector ──► Controller
                  Event                     ControlMessage                     │
    agent, SDK ◄──────── endpoint plugin ◄────── reply ─────────────────────────┘
                  EventResult                 ControlReply

A control message travels as a pre-aborted request (the engine client's method
`notify_kv_transfer_request_rejected`), a reply in the engine's statistics: vLLM's own paths.
Where: below `controller`; both processes validate with these models, neither trusts the other.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

CONTROL_KEY = "control"
"""Under `kv_transfer_params["agentkv"]`: marks a control message. Believed only when the request
was aborted before it began, which no client of the HTTP server can do."""

REPLY_KEY = "agentkv.reply"
"""In the connector's statistics: what the engine answers, a list of ControlReply objects."""

MAX_EVENTS = 256
MAX_LEDGER_RECORDS = 200
MAX_FEED_RECORDS = 500
MAX_TEXT_CHARS = 4096
MAX_SECONDS = 30 * 86_400.0

_Id = Annotated[str, Field(min_length=1, max_length=256)]
_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
_Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]


class Status(str, Enum):
    """What became of an event. Nothing is called accepted that the engine has not done.

    deferred: on its way, or it takes effect when the running turn ends. unknown: no such session,
    or not yours. unsupported: this server cannot. rejected: stale or contradictory.
    """

    ACCEPTED = "accepted"
    DEFERRED = "deferred"
    UNKNOWN = "unknown"
    UNSUPPORTED = "unsupported"
    REJECTED = "rejected"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(_Model):
    """One of the calls a pause waits for; the pause ends with the last of them."""

    tool: _Text
    command: _Text | None = None
    timeout_s: _Seconds | None = None
    expected_wait_s: _Seconds | None = None


class Event(_Model):
    """One signal about one session, named by its id or by a request of it.

    pause: the turn ended and the agent waits. resume: the tool is done, the next turn is being
    prepared. heartbeat: still waiting. end: no turn will follow.
    """

    event: Literal["pause", "resume", "heartbeat", "end"] = Field(description="What happened.")
    session_id: _Id | None = Field(None, description="The session, as its requests name it.")
    request_id: _Id | None = Field(
        None, description="A request of the session, by the id in its reply; instead of session_id."
    )
    cache_salt: _Id | None = Field(
        None, description="The cache salt of the session's requests, if they have one."
    )
    seq: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="Grows within a session; an event not above the last one is not applied."
    )
    tool: _Text | None = Field(None, description="The tool that runs.")
    command: _Text | None = Field(None, description="What the tool runs, a shell line for example.")
    expected_wait_s: _Seconds | None = Field(None, description="How long it will take, if known.")
    timeout_s: _Seconds | None = Field(None, description="When the tool is cut off.")
    waits_for: Literal["tool", "human"] | None = Field(
        None, description="Who answers next, if that is known."
    )
    calls: Annotated[tuple[ToolCall, ...], Field(max_length=64)] = Field(
        (), description="Parallel calls; the pause lasts as long as the longest."
    )

    @model_validator(mode="after")
    def _names_a_session(self) -> Event:
        if self.session_id is None and self.request_id is None:
            raise ValueError("session_id or request_id is needed")
        return self


class EventResult(_Model):
    """`detail` says why, in one sentence; it never tells a foreign session from an unknown one."""

    status: Status
    detail: str = ""


class ScopedEvent(_Model):
    """An event with the tenant it comes from: a digest, never the cache salt itself."""

    event: Event
    scope: str = ""


class SessionQuery(_Model):
    """Asks for sessions: one by name, or the `limit` that were active last."""

    scope: str = ""
    session_id: _Id | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class LedgerQuery(_Model):
    """Asks for the newest `limit` ledger records: of one session, or, without one, the feed.

    The feed is what a watcher of all sessions of the scope needs of the records after `since_s`
    (Unix seconds).
    """

    scope: str = ""
    session_id: _Id | None = None
    since_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    limit: Annotated[int, Field(ge=1, le=MAX_FEED_RECORDS)] = MAX_LEDGER_RECORDS


class ControlMessage(_Model):
    """What the API process tells the engine. Empty but for its id, it is a tick of the clock."""

    id: str
    events: tuple[ScopedEvent, ...] = ()
    sessions: SessionQuery | None = None
    ledger: LedgerQuery | None = None
    wants_state: bool = False


class ControlReply(_Model):
    """The engine's answer to the message `id`; "" for what it tells unasked.

    `tick_in_s`: when it wants the clock told next, None if no pause is open. `sessions`,
    `ledger` and `state` are plain objects for the HTTP reply.
    """

    id: str
    results: tuple[EventResult, ...] = ()
    sessions: tuple[dict[str, Any], ...] | None = None
    ledger: tuple[dict[str, Any], ...] | None = None
    state: dict[str, Any] | None = None
    tick_in_s: float | None = None
