"""The callback in real LangGraph graphs and LangChain tools, over a scripted model."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agentkv.client import AgentSession, AsyncAgentSession
from agentkv.client.langchain import AgentKVCallback
from agentkv.signals import Event

from .recorder import Recorder, wait_until

QUESTION: Any = {"messages": [("user", "run the tests")]}


class ToolBroke(Exception):
    pass


def graph_of(server: Recorder, headers: dict[str, str], run: Any) -> Any:
    """The usual loop of a model and its tool, which is `run`."""

    @tool
    def bash(command: str, timeout: int) -> str:
        """Runs a command."""
        run()
        return "1 failed"

    model = ChatOpenAI(
        model="m", base_url=server.url + "/v1", api_key="k", default_headers=headers
    ).bind_tools([bash])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([bash], handle_tool_errors=False))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def seen_while_running(server: Recorder) -> tuple[list[str], Any]:
    """What the server knew while the tool ran, and a tool that looks."""
    seen: list[str] = []

    def look() -> None:
        wait_until(lambda: server.events)
        seen.extend(server.kinds())

    return seen, look


def test_a_graph_tells_of_its_tool_and_of_its_end(server: Recorder) -> None:
    seen, look = seen_while_running(server)
    with AgentSession(server.url, session_id="s") as session:
        config = {"callbacks": [AgentKVCallback(session)]}
        graph_of(server, session.headers, look).invoke(QUESTION, config)
    assert seen == ["pause"]
    assert server.kinds() == ["pause", "resume", "pause", "end"]
    pause, _, human, _ = server.events
    assert (pause["tool"], pause["command"], pause["timeout_s"]) == ("bash", "pytest -q", 120)
    assert pause["waits_for"] == "tool" and human["waits_for"] == "human"
    assert [chat["x-session-id"] for chat in server.chats] == ["s", "s"]


async def test_an_async_graph_tells_the_same(server: Recorder) -> None:
    seen, look = seen_while_running(server)
    async with AsyncAgentSession(server.url) as session:
        config = {"callbacks": [AgentKVCallback(session)]}
        await graph_of(server, session.headers, look).ainvoke(QUESTION, config)
    assert seen == ["pause"]
    assert server.kinds() == ["pause", "resume", "pause", "end"]


def test_the_next_question_resumes(server: Recorder) -> None:
    with AgentSession(server.url) as session:
        graph = graph_of(server, session.headers, lambda: None)
        for _ in range(2):
            graph.invoke(QUESTION, {"callbacks": [AgentKVCallback(session)]})
    one_run = ["pause", "resume", "pause"]
    assert server.kinds() == [*one_run, "resume", *one_run, "end"]


def test_parallel_tools_make_one_pause(server: Recorder) -> None:
    server.num_tool_calls = 3

    def wait_for_all() -> None:
        wait_until(lambda: server.kinds().count("pause") == 3)

    with AgentSession(server.url) as session:
        graph = graph_of(server, session.headers, wait_for_all)
        graph.invoke(QUESTION, {"callbacks": [AgentKVCallback(session)]})
    assert server.kinds() == ["pause"] * 3 + ["resume", "pause", "end"]
    assert len(server.events[2]["calls"]) == 3


def test_a_tool_that_fails_resumes(server: Recorder) -> None:
    def fail() -> None:
        raise ToolBroke

    with AgentSession(server.url) as session:
        graph = graph_of(server, session.headers, fail)
        with pytest.raises(ToolBroke):
            graph.invoke(QUESTION, {"callbacks": [AgentKVCallback(session)]})
    assert server.kinds() == ["pause", "resume", "pause", "end"]
    assert server.events[2]["waits_for"] == "human"


async def test_a_cancelled_run_leaves_nothing_open_for_the_next(server: Recorder) -> None:
    is_running = asyncio.Event()

    @tool
    async def sleep(command: str) -> str:
        """Sleeps."""
        is_running.set()
        await asyncio.sleep(600)
        return ""

    async with AsyncAgentSession(server.url) as session:
        config: Any = {"callbacks": [AgentKVCallback(session)]}
        task = asyncio.create_task(sleep.ainvoke({"command": "x"}, config))
        await is_running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await RunnableLambda(lambda _: AIMessage("done")).ainvoke("next", config)
    assert server.kinds() == ["pause", "resume", "pause", "end"]


async def test_an_async_tool_does_not_wait_for_a_free_thread(server: Recorder) -> None:
    @tool
    async def quick(command: str) -> str:
        """Does nothing."""
        return "done"

    free = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    other_tool = loop.run_in_executor(None, free.wait)
    async with AsyncAgentSession(server.url) as session:
        config: Any = {"callbacks": [AgentKVCallback(session)]}
        try:
            assert await asyncio.wait_for(quick.ainvoke({"command": "x"}, config), 60) == "done"
        finally:
            free.set()
        await other_tool
    assert server.kinds() == ["pause", "resume", "end"]


def test_a_chain_that_ends_in_a_call_for_a_tool_does_not_wait_for_a_person(
    server: Recorder,
) -> None:
    call: Any = {"name": "bash", "args": {}, "id": "1"}
    asks = RunnableLambda(lambda _: AIMessage("", tool_calls=[call]))
    with AgentSession(server.url) as session:
        asks.invoke("x", {"callbacks": [AgentKVCallback(session)]})
    assert server.kinds() == ["end"]


def test_a_tool_whose_input_makes_no_sense_disturbs_nothing(
    server: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    def odd(text: str) -> str:
        """Takes text."""
        return text

    with AgentSession(server.url) as session:
        answer = odd.invoke("\ud800 {", {"callbacks": [AgentKVCallback(session)]})
    assert answer == "\ud800 {"
    assert server.kinds() == ["pause", "resume", "end"]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    Event.model_validate(server.events[0])
