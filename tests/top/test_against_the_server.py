"""The command against vLLM's own app with agentkv in it: what one writes the other reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from agentkv.events import TurnTag
from agentkv.session_report import engine_state, sessions_matching
from agentkv.signals import ControlMessage, ControlReply, SessionQuery
from agentkv.top.board import Board
from agentkv.top.fetch import Look, Source, Trouble
from agentkv.top.screen import screen
from tests.endpoint.builders import FakeEngine, Served, serving
from tests.test_controller import World

from .drawn import plain


class ToLoop(httpx.BaseTransport):
    """Brings requests from another thread to the served app."""

    def __init__(self, served: Served) -> None:
        self._served, self._loop = served, asyncio.get_running_loop()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        sent = self._served.client.get(str(request.url), headers=request.headers)
        response = asyncio.run_coroutine_threadsafe(sent, self._loop).result(10)
        return httpx.Response(response.status_code, content=response.content)


def told_by(world: World) -> FakeEngine:
    """An engine that answers from this world's controller."""

    def answer(rank: int, message: ControlMessage) -> ControlReply:
        now_s = world.clock.monotonic_s()
        query = message.sessions or SessionQuery(limit=1)
        reply = ControlReply(
            id=message.id,
            sessions=sessions_matching(world.controller, query, now_s),
            state=engine_state(world.controller, pool_blocks=100, free_blocks=40),
        )
        return ControlReply.model_validate_json(reply.model_dump_json(exclude_defaults=True))

    return FakeEngine(answer=answer)


@pytest.fixture
async def world() -> World:
    """One session waits for a tool, one has just asked for another."""
    world = World()
    world.turn("waits", range(20), TurnTag(tool="bash", expected_wait_s=300))
    world.clock.advance(40)
    world.turn("asked", range(50, 60), TurnTag(tool="read_file"))
    return world


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch, world: World) -> AsyncIterator[Served]:
    async with serving(monkeypatch, told_by(world), ("--api-key", "secret")) as served:
        yield served


async def look(served: Served, **options: str) -> Look:
    source = Source("http://test", transport=ToLoop(served), **options)
    return await asyncio.to_thread(source.look)


async def test_what_the_engine_tells_is_shown(served: Served) -> None:
    found = await look(served, api_key="secret")
    assert not found.note
    board = Board("http://test", found, lambda *_: None)
    lines = plain(screen(board.scene(), 120, 24), 120)
    text = "\n".join(lines)
    assert "60/100 run" in text and "held 2 " in text
    [waits] = [line for line in lines if line.startswith("waits")]
    assert waits.split()[:5] == ["waits", "paused", "bash", "41", "s"] and "hold" in waits
    assert any(line.startswith("asked") and "read_file" in line for line in lines)


async def test_a_wrong_key_and_another_salt_see_nothing(served: Served) -> None:
    with pytest.raises(Trouble, match="401"):
        await look(served, api_key="wrong")
    found = await look(served, api_key="secret", salt="another")
    assert not found.sessions and found.state["engines"]


async def test_a_server_with_another_connector_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch, FakeEngine(connector="NixlConnector")) as served:
        found = await look(served)
        assert found.note.endswith("(503): agentkv is not the KV connector of this server.")
