"""The hooks in real runs of the OpenAI Agents SDK, over a scripted model."""

import asyncio
from typing import Any

import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    Tool,
    function_tool,
    set_tracing_disabled,
)
from agents.exceptions import UserError
from openai import AsyncOpenAI

from agentkv.client import AsyncAgentSession
from agentkv.client.openai_agents import AgentKVHooks

from .recorder import Recorder, wait_until

set_tracing_disabled(True)


class ToolBroke(Exception):
    pass


def bash_tool(run: Any, **options: Any) -> Tool:
    @function_tool(name_override="bash", **options)
    async def bash(command: str, timeout: int) -> str:
        """Runs a command."""
        run()
        return "1 failed"

    return bash


async def ask(server: Recorder, session: AsyncAgentSession, *tools: Tool) -> Any:
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="k") as client:
        model = OpenAIChatCompletionsModel("m", openai_client=session.wrap(client))
        agent = Agent(name="a", model=model, tools=list(tools))
        return await Runner.run(agent, "run the tests", hooks=AgentKVHooks(session))


async def test_a_run_tells_of_its_tool_and_of_its_end(server: Recorder) -> None:
    seen: list[str] = []

    def look() -> None:
        wait_until(lambda: server.events)
        seen.extend(server.kinds())

    async with AsyncAgentSession(server.url, session_id="s") as session:
        result = await ask(server, session, bash_tool(look))
    assert result.final_output == "done"
    assert seen == ["pause"]
    assert server.kinds() == ["pause", "resume", "pause", "end"]
    pause, _, human, _ = server.events
    assert (pause["tool"], pause["command"], pause["timeout_s"]) == ("bash", "pytest -q", 120)
    assert pause["waits_for"] == "tool" and human["waits_for"] == "human"
    assert [chat["x-session-id"] for chat in server.chats] == ["s", "s"]


async def test_the_pause_of_parallel_tools_ends_with_the_last(server: Recorder) -> None:
    server.num_tool_calls = 2
    seen: list[str] = []
    num_running = 0

    @function_tool
    async def bash(command: str, timeout: int) -> str:
        """The second call goes on after the first is done."""
        nonlocal num_running
        num_running += 1
        if num_running == 2:
            await asyncio.sleep(0.2)
            while len(server.kinds()) < 2:
                await asyncio.sleep(0.01)
            seen.extend(server.kinds())
        return "done"

    async with AsyncAgentSession(server.url) as session:
        await ask(server, session, bash)
    assert seen == ["pause", "pause"]
    assert server.kinds() == ["pause", "pause", "resume", "pause", "end"]


async def test_a_tool_that_fails_resumes_where_the_sdk_tells_the_model(server: Recorder) -> None:
    def fail() -> None:
        raise ToolBroke

    async with AsyncAgentSession(server.url) as session:
        await ask(server, session, bash_tool(fail))
    assert server.kinds() == ["pause", "resume", "pause", "end"]


async def test_a_run_that_a_tool_ends_leaves_nothing_open_for_the_next(server: Recorder) -> None:
    def fail() -> None:
        raise ToolBroke

    async with AsyncAgentSession(server.url) as session:
        with pytest.raises((ToolBroke, UserError)):
            await ask(server, session, bash_tool(fail, failure_error_function=None))
        assert (await ask(server, session, bash_tool(lambda: None))).final_output == "done"
    one_run = ["pause", "resume", "pause"]
    assert server.kinds() == ["pause", "resume", *one_run, "end"]
