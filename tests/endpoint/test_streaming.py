"""A slow stream over a real socket: each chunk arrives before the next one is made."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from agentkv.connectors.endpoint import mailbox

from .builders import CHAT, FakeEngine, FakeModel, call, chat_stream, make_app


async def test_no_chunk_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, model = FakeEngine(), FakeModel()
    app, _ = await make_app(monkeypatch, engine, model, ())
    chunks = chat_stream(call("bash", command="pytest -q"))
    has_arrived = asyncio.Event()

    async def reply(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk
                await asyncio.wait_for(has_arrived.wait(), 60)
                has_arrived.clear()

        return StreamingResponse(pieces(), media_type="text/event-stream")

    model.reply = reply
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        config = uvicorn.Config(app, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        received = []
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
            client.stream("POST", CHAT, json={"messages": []}) as response,
        ):
            async for chunk in response.aiter_raw():
                received.append(chunk)
                has_arrived.set()
        server.should_exit = True
        await serving
    assert received == chunks
    (event,) = engine.events
    assert event.event.calls[0].command == "pytest -q"
    mailbox.activate(None)
