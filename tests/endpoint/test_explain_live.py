"""`agentkv explain` against the served API: what one writes the other reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from agentkv.cli import explain_source
from agentkv.cli.explain_source import fetch_ledger
from agentkv.errors import ConfigError
from agentkv.explain import pause_stories
from agentkv.session_report import ledger_of
from agentkv.signals import ControlMessage, ControlReply, LedgerQuery
from tests.test_controller import BLOCK, World

from .builders import FakeEngine, Served, scoped
from .conftest import Serve

Fetch = Callable[..., Awaitable[list[dict[str, Any]]]]


class ToLoop(httpx.BaseTransport):
    """Brings requests from another thread to the served app."""

    def __init__(self, served: Served, loop: asyncio.AbstractEventLoop) -> None:
        self._served, self._loop = served, loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        sent = self._served.client.get(str(request.url), headers=request.headers)
        response = asyncio.run_coroutine_threadsafe(sent, self._loop).result(10)
        return httpx.Response(response.status_code, content=response.content)


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch) -> Fetch:
    """`fetch_ledger` in a thread, as a process of its own would."""

    async def call(served: Served, session: str, key: str | None = None) -> list[dict[str, Any]]:
        transport, client = ToLoop(served, asyncio.get_running_loop()), httpx.Client
        with monkeypatch.context() as patched:
            patched.setattr(
                explain_source.httpx, "Client", lambda **f: client(**f, transport=transport)
            )
            fields = {"url": "http://test", "api_key": key, "cache_salt": None}
            return await asyncio.to_thread(fetch_ledger, session, **fields)

    return call


def told_by(world: World) -> FakeEngine:
    """An engine that answers from this world's ledger."""

    def answer(rank: int, message: ControlMessage) -> ControlReply:
        query = message.ledger or LedgerQuery(session_id="?")
        sessions = tuple({"session_id": name, "state": "paused"} for name in ("a/b.c", "x"))
        if message.sessions is not None and message.sessions.session_id is not None:
            sessions = ()
        found = ledger_of(world.ledger, query)
        reply = ControlReply(id=message.id, ledger=found, sessions=sessions)
        return ControlReply.model_validate_json(reply.model_dump_json(exclude_defaults=True))

    return FakeEngine(answer=answer)


async def test_what_the_engine_has_in_memory_is_read_over_http(serve: Serve, fetch: Fetch) -> None:
    world = World()
    world.turn("a/b.c", range(20))
    world.clock.advance(3)
    world.turn("a/b.c", range(24), gpu=20 * BLOCK)
    records = await fetch(await serve(told_by(world)), "a/b.c")
    calm, still_open = pause_stories(records)
    assert calm.regret_s == 0 and calm.resume is not None and calm.resume["wait_s"] == 3
    assert still_open.resume is None
    assert records == list(ledger_of(world.ledger, LedgerQuery(session_id="a/b.c")))


async def test_a_session_that_is_not_there_names_those_that_are(serve: Serve, fetch: Fetch) -> None:
    served = await serve(told_by(World()))
    with pytest.raises(ConfigError, match=r"knows no session 's'.* some are .*a/b\.c"):
        await fetch(served, "s")


async def test_the_key_of_another_gets_no_ledger(serve: Serve, fetch: Fetch) -> None:
    known = {scoped(None, "s"): [{"kind": "pause", "t": 1.0}]}
    engine = FakeEngine(sessions={scoped(None, "s")}, ledgers=known)
    served = await serve(engine, "--api-key", "key-a", "key-b")
    await served.chat({"session_id": "s"}, key="key-a")
    assert await fetch(served, "s", "key-a") == known[scoped(None, "s")]
    with pytest.raises(ConfigError, match="it knows none"):
        await fetch(served, "s", "key-b")
    with pytest.raises(ConfigError, match=r"401 .*--api-key"):
        await fetch(served, "s", "wrong")


async def test_a_server_without_agentkv_says_so(serve: Serve, fetch: Fetch) -> None:
    served = await serve(FakeEngine(connector="NixlConnector"))
    with pytest.raises(ConfigError, match="503 agentkv is not the KV connector"):
        await fetch(served, "s")
