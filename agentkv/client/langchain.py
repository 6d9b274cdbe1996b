"""Tells of the pauses of a LangChain or LangGraph agent through its callbacks.

    graph.invoke(state, config={"callbacks": [AgentKVCallback(session)]})

Why callbacks: the graph, its nodes and its tools stay as they are. The model needs the session's
header: `ChatOpenAI(default_headers=session.headers)`.
Where: needs langchain-core, which the rest of the SDK does not import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from agentkv.client.arguments import details_of
from agentkv.client.session import AgentSession, AsyncAgentSession, harmless


class AgentKVCallback(BaseCallbackHandler):
    """A tool's run is a pause; the end of the outermost run means that a person is next.

    It does not end the session, for the next run may continue it: close the session yourself.
    """

    run_inline = True  # In the event loop and in order; nothing here waits.

    def __init__(self, session: AgentSession | AsyncAgentSession) -> None:
        super().__init__()
        self._session = session

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """The tool's command and time-out are taken from its arguments."""
        name = (serialized or {}).get("name") or kwargs.get("name") or "unknown"
        self._tool_started(run_id, str(name), inputs if inputs is not None else input_str)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """See `AgentSession.tool_ended`."""
        self._session.tool_ended(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool that failed is done too."""
        self._session.tool_ended(run_id)

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Of the outermost run: a person has written."""
        if parent_run_id is None:
            self._session.run_started()

    def on_chain_end(
        self, outputs: Any, *, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Of the outermost run: a person is next, unless it ends in a call for a tool."""
        if parent_run_id is None and not _asks_for_a_tool(outputs):
            self._session.wait_for_human()

    def on_chain_error(
        self, error: BaseException, *, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Of the outermost run: a person decides what next."""
        if parent_run_id is None:
            self._session.wait_for_human()

    @harmless
    def _tool_started(self, run_id: UUID, name: str, arguments: str | dict[str, Any]) -> None:
        self._session.tool_started(run_id, name, **details_of(name, arguments))


def _asks_for_a_tool(outputs: Any) -> bool:
    """Whether the last message is a call that somebody else will run."""
    messages = outputs.get("messages") if isinstance(outputs, Mapping) else outputs
    last = messages[-1] if isinstance(messages, list) and messages else messages
    return bool(getattr(last, "tool_calls", None))
