"""Tells of the pauses of an agent of the OpenAI Agents SDK through its run hooks.

    await Runner.run(agent, "…", hooks=AgentKVHooks(session))

Why hooks: agents and tools stay as they are. The model needs the session's header:
`OpenAIChatCompletionsModel(model, openai_client=session.wrap(AsyncOpenAI(…)))`.
Where: needs openai-agents, which the rest of the SDK does not import.
"""

from __future__ import annotations

from typing import Any

from agents import Agent, AgentHookContext, RunContextWrapper, RunHooks, Tool

from agentkv.client.arguments import details_of
from agentkv.client.session import AgentSession, AsyncAgentSession, harmless


class AgentKVHooks(RunHooks[Any]):
    """A tool's run is a pause; the final output of an agent means that a person is next.

    It does not end the session, for the next run may continue it: close the session yourself.
    """

    def __init__(self, session: AgentSession | AsyncAgentSession) -> None:
        self._session = session

    async def on_agent_start(self, context: AgentHookContext[Any], agent: Agent[Any]) -> None:
        """Ends what a run that failed has left open."""
        self._session.run_started()

    async def on_tool_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool
    ) -> None:
        """The tool's command and time-out are taken from its arguments."""
        self._tool_started(context, tool)

    async def on_tool_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object
    ) -> None:
        """See `AgentSession.tool_ended`."""
        self._tool_ended(context, tool)

    async def on_agent_end(
        self, context: AgentHookContext[Any], agent: Agent[Any], output: Any
    ) -> None:
        """See `AgentSession.wait_for_human`."""
        self._session.wait_for_human()

    @harmless
    def _tool_started(self, context: RunContextWrapper[Any], tool: Tool) -> None:
        arguments = getattr(context, "tool_arguments", None)  # Only function tools have them.
        details = details_of(tool.name, arguments if isinstance(arguments, str) else None)
        self._session.tool_started(_key(context, tool), tool.name, **details)

    @harmless
    def _tool_ended(self, context: RunContextWrapper[Any], tool: Tool) -> None:
        self._session.tool_ended(_key(context, tool))


def _key(context: RunContextWrapper[Any], tool: Tool) -> str:
    return str(getattr(context, "tool_call_id", None) or tool.name)
