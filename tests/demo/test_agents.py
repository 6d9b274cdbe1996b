"""What an agent of the demo says besides its requests."""

import asyncio

import pytest

from agentkv.demo.agents import Agent, ClientKind

from ..client.recorder import recording
from .builders import planned, session

PLANNED = session("a", planned(tool="bash", command="pytest -q"), planned())


@pytest.mark.parametrize("kind", list(ClientKind))
def test_only_the_sdk_tells_of_the_tool_while_it_runs(kind: ClientKind) -> None:
    with recording() as recorder:
        asyncio.run(_one_pause(kind, recorder.url))
        if kind is not ClientKind.SDK:
            assert recorder.events == []
            return
        events = recorder.wait_for(3)
    assert [event["event"] for event in events] == ["pause", "resume", "end"]
    assert events[0]["session_id"] == "a" and events[0]["command"] == "pytest -q"


async def _one_pause(kind: ClientKind, url: str) -> None:
    agent = Agent(kind, PLANNED)
    async with agent.session(url), agent.tool(PLANNED.turns[0]):
        await asyncio.sleep(0.05)
