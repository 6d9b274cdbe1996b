"""The shapes of the HTTP API that are not on the wire to the engine, for OpenAPI above all.

Why: what the engine sends is shown as it is, a field that this file does not know included: the two
sides are of one version, and a reply must not fail over a field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from agentkv.signals import MAX_EVENTS, Event, EventResult

from .counters import Counters


class EventBatch(BaseModel):
    """Several events, of one or many sessions; they are applied in this order."""

    model_config = ConfigDict(extra="forbid")

    events: Annotated[list[Event], Field(min_length=1, max_length=MAX_EVENTS)]


def _shape_of(body: Any) -> str:
    return "[batch]" if isinstance(body, dict) and "events" in body else "[event]"


# The brackets: vLLM leaves such parts out when it names the field that is wrong.
EventBody = Annotated[
    Annotated[Event, Tag("[event]")] | Annotated[EventBatch, Tag("[batch]")],
    Discriminator(_shape_of),
]


class EventResults(BaseModel):
    """One result for each event of a batch, in the same order."""

    results: list[EventResult]


class _FromEngine(BaseModel):
    model_config = ConfigDict(extra="allow")


class Pause(_FromEngine):
    """An open pause, and what was decided about the session's KV. What runs is not shown."""

    tool: str | None = Field(None, description="The tool that runs, if known.")
    since_s: float | None = Field(None, description="How long the pause has lasted.")
    expected_wait_s: float | None = Field(None, description="What the client expects, if it said.")
    returns_in_s: float | None = Field(None, description="The predicted time until the next turn.")
    is_tool_done: bool | None = Field(None, description="The client has said that it resumes.")
    action: str | None = Field(None, description="hold, swap or recompute.")
    reason: str | None = Field(None, description="Why, in the words of the ledger.")
    is_given_up: bool | None = Field(None, description="Its KV in the GPU pool was given up.")
    parked_in: str | None = Field(None, description="The tier below DRAM that has all its KV.")


class Session(_FromEngine):
    """One session as the engine sees it now."""

    session_id: str
    state: str = Field(description="running, paused or resuming.")
    num_turns: int | None = None
    context_tokens: int | None = None
    is_inferred: bool | None = Field(
        None, description="Recognised by its growing prompt: its requests name no session."
    )
    idle_s: float | None = Field(None, description="Since its last turn or event.")
    pause: Pause | None = None
    kv_tokens: dict[str, int] | None = Field(
        None,
        description="Tokens whose KV each tier has: gpu, dram, ssd, redis; some may be in several. "
        "Only where one session is asked for.",
    )


class Sessions(BaseModel):
    """The caller's sessions, the ones that were active last first."""

    sessions: list[Session]


class LedgerRecord(_FromEngine):
    """One entry of the ledger; which fields it has depends on its kind. Costs are seconds."""

    kind: str = Field(description="pause, redecide, park, resume or end.")
    t: float = Field(description="When, in Unix seconds.")
    session_id: str | None = None
    pause_id: int | None = Field(None, description="Joins the records of one pause.")
    action: str | None = Field(None, description="hold, swap or recompute.")
    reason: str | None = Field(None, description="Why, in one sentence.")
    estimate_p50_s: float | None = Field(None, description="Predicted rest of the wait, median.")
    costs_s: dict[str, float | None] | None = Field(None, description="Expected, by action.")
    wait_s: float | None = Field(None, description="How long the pause was.")
    tier: str | None = Field(None, description="Where the KV was found, or parked.")
    hindsight_s: dict[str, float | None] | None = Field(
        None, description="What each action would have cost, now that the wait is known."
    )
    cost_s: float | None = Field(None, description="What the pause cost.")
    regret_s: float | None = Field(None, description="Over the best action in hindsight.")


class SessionLedger(BaseModel):
    """What was decided about one session, oldest first, as far as it is in memory."""

    session_id: str
    state: str | None = Field(description="None where the session has ended.")
    records: list[LedgerRecord]


class Tier(BaseModel):
    """A place for KV besides the GPU pool."""

    used_bytes: int | None = Field(description="null until the engine has sent a number.")
    size_bytes: int | None = Field(description="null where it has no limit that is known here.")
    is_available: bool = Field(description="False while it is left alone after failures.")


class EngineState(_FromEngine):
    """One engine; there are several with data parallelism."""

    rank: int
    sessions: dict[str, int] = Field(default_factory=dict, description="Sessions by state.")
    pressure: float | None = None
    pool_blocks: int | None = None
    free_blocks: int | None = None
    pauses_away: int | None = Field(None, description="Pauses whose KV is not in the GPU pool.")

    tiers: dict[str, Tier] = Field(
        default_factory=dict, description="dram, ssd, redis, lmcache: those that are set up."
    )


class State(BaseModel):
    """The engines, and the API process that was asked."""

    engines: list[EngineState]
    endpoint: Counters


class Live(State):
    """All that a watcher needs. The relative seconds of sessions count from `as_of_s`.

    Poll with `since` a second before the newest `t` seen, and drop the records that are known.
    """

    now_s: float = Field(description="The server's clock, Unix seconds.")
    as_of_s: float = Field(
        description="When the engines said this: earlier while nothing happens, for then they are "
        "not asked again."
    )
    started_s: float = Field(description="When this API process started.")
    sessions: list[Session]
    records: list[LedgerRecord] = Field(
        description="What was decided about the caller's sessions after `since`, oldest first."
    )
    is_cut: bool = Field(description="Older records than these were left out.")


class ErrorInfo(BaseModel):
    """As in every error of vLLM's server."""

    message: str
    type: str
    param: str | None = Field(None, description="The field that is wrong.")
    code: int


class ErrorReply(BaseModel):
    """vLLM's own shape."""

    error: ErrorInfo | Literal["Unauthorized"]
