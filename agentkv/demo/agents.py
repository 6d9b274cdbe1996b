"""How the demo's agents speak to the server: from not knowing agentkv at all to its SDK.

plain   what an unmodified OpenAI client sends: agentkv finds the session by its prefix, and the
        tool in the answer's tool call if there is one
header  one header, X-Session-ID
tags    the header, and with each turn the tool that will run after it
sdk     the header, and `agentkv.client`: a signal when a tool starts, one when it is done
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from enum import Enum
from typing import Any

from agentkv.client import AsyncAgentSession
from agentkv.demo.client import MODEL_NAME, TurnRequest
from agentkv.demo.forced_answers import ForcedAnswer, ForcedCall, ForcedEnd
from agentkv.demo.workload import PlannedSession, PlannedTurn

SHELL = "bash"


class ClientKind(str, Enum):
    PLAIN = "plain"
    HEADER = "header"
    TAGS = "tags"
    SDK = "sdk"


class Agent:
    """One session's side of the conversation; `model` is the name that the server gave it.

    With `calls_tools` the model's answers are the tool calls of the plan.
    """

    def __init__(
        self,
        kind: ClientKind,
        session: PlannedSession,
        model: str = MODEL_NAME,
        *,
        calls_tools: bool = False,
    ) -> None:
        self._kind = kind
        self._model = model
        self._calls_tools = calls_tools
        self._planned = session
        self._sdk: AsyncAgentSession | None = None

    @asynccontextmanager
    async def session(self, url: str) -> AsyncIterator[Agent]:
        """The whole run of an agent; with the SDK the server is told when it ends."""
        if self._kind is not ClientKind.SDK:
            yield self
            return
        async with AsyncAgentSession(url, session_id=self._planned.session_id) as self._sdk:
            yield self

    def request(self, number: int, *, max_tokens: int) -> TurnRequest:
        """Turn `number` (0-based) of the session."""
        turn = self._planned.turns[number]
        is_last = number == len(self._planned.turns) - 1
        tags: dict[str, Any] = {}
        if self._kind is ClientKind.TAGS:
            tags = turn.tags(is_last=is_last)
        is_named = self._kind is not ClientKind.PLAIN
        return TurnRequest(
            session_id=self._planned.session_id if is_named else None,
            messages=turn.messages,
            max_tokens=max_tokens,
            tags=tags,
            with_token_ids=True,
            model=self._model,
            forced=self._forced(turn, is_last=is_last) if self._calls_tools else None,
        )

    def _forced(self, turn: PlannedTurn, *, is_last: bool) -> ForcedAnswer | None:
        if is_last:
            return ForcedEnd(turn.tool or SHELL)
        if turn.tool is None or turn.command is None:
            return None
        return ForcedCall.of(turn.tool, turn.command)

    def tool(self, turn: PlannedTurn) -> AbstractAsyncContextManager[None]:
        """While the tool runs."""
        if self._sdk is None or turn.tool is None:
            return nullcontext()
        return self._sdk.tool(turn.tool, command=turn.command, timeout_s=turn.timeout_s)
