"""vLLM's own app with agentkv in it, before an engine and a model that are made up.

The app is the one that vLLM serves: its middleware, its error handlers, its check of API keys.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import httpx
import vllm.plugins
from fastapi import FastAPI, Request, Response
from pytest import MonkeyPatch
from vllm.config import KVTransferConfig
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from agentkv.connectors.endpoint import Plugin, mailbox
from agentkv.scope import scope_of_salt
from agentkv.signals import (
    ControlMessage,
    ControlReply,
    EventResult,
    ScopedEvent,
    Status,
)

CHAT = "/v1/chat/completions"
GENERATION_PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages")


@dataclass
class FakeEngine:
    """Engines that know `sessions` as (scope, id), and answer as vLLM brings it: a bit later.

    `ledgers`: the records of sessions, also of ones that have ended.
    """

    num_ranks: int = 1
    first_index: int = 0
    connector: str | None = "agentkv"
    sessions: set[tuple[str, str]] = field(default_factory=set)
    requests: set[str] = field(default_factory=set)
    ledgers: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    tick_in_s: float | None = None
    is_silent: bool = False
    is_dead: bool = False
    answer: Callable[[int, ControlMessage], ControlReply | None] | None = None
    sent: list[tuple[int, ControlMessage]] = field(default_factory=list)

    @property
    def vllm_config(self) -> Any:
        transfer = self.connector and KVTransferConfig(
            kv_connector=self.connector, kv_role="kv_both"
        )
        parallel = SimpleNamespace(
            local_engines_only=False,
            data_parallel_size=self.num_ranks,
            data_parallel_size_local=self.num_ranks,
            data_parallel_index=self.first_index,
        )
        return SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel)

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        *,
        data_parallel_rank: int | None = None,
    ) -> None:
        if self.is_dead:
            raise RuntimeError("EngineCore encountered an issue")
        assert (data_parallel_rank is None) == (self.num_ranks == 1)
        message = ControlMessage.model_validate(
            json.loads(json.dumps(kv_transfer_params["agentkv"]["control"]))
        )
        assert message.id == request_id
        rank = data_parallel_rank or 0
        self.sent.append((rank, message))
        await asyncio.sleep(0)
        answer = self.answer or self.reply_to
        reply = None if self.is_silent else answer(rank, message)
        if reply is not None:
            deliver = mailbox.deliver
            asyncio.get_running_loop().call_soon(deliver, reply, self.first_index + rank)

    def reply_to(self, rank: int, message: ControlMessage) -> ControlReply:
        sessions: list[dict[str, Any]] | None = None
        if (query := message.sessions) is not None:
            sessions = [
                session_row(name)
                for scope, name in sorted(self.sessions)
                if scope == query.scope and query.session_id in (None, name)
            ][: query.limit]
        ledger: list[dict[str, Any]] | None = None
        if (asked := message.ledger) is not None:
            ledger = self.ledgers.get((asked.scope, asked.session_id), [])[-asked.limit :]
        return ControlReply(
            id=message.id,
            ledger=None if ledger is None else tuple(ledger),
            results=tuple(self._result(event) for event in message.events),
            sessions=None if sessions is None else tuple(sessions),
            state={"sessions": {"paused": 1}, "pressure": 0.5} if message.wants_state else None,
            tick_in_s=self.tick_in_s,
        )

    def _result(self, scoped: ScopedEvent) -> EventResult:
        event = scoped.event
        is_known = (scoped.scope, event.session_id) in self.sessions or (
            scoped.scope != "-" and event.request_id in self.requests
        )
        if not is_known:
            return EventResult(status=Status.UNKNOWN, detail=f"nothing in {scoped.scope!r}")
        return EventResult(status=Status.ACCEPTED)

    @property
    def events(self) -> list[ScopedEvent]:
        """All events of all messages, in order."""
        return [event for _, message in self.sent for event in message.events]

    @property
    def ticks(self) -> list[int]:
        """The ranks of messages that are nothing but a tick."""
        empty = ControlMessage(id="")
        return [
            rank for rank, message in self.sent if message.model_copy(update={"id": ""}) == empty
        ]


def session_row(name: str) -> dict[str, Any]:
    """A session as the engine tells it."""
    return {
        "session_id": name,
        "state": "paused",
        "num_turns": 2,
        "context_tokens": 100,
        "is_inferred": False,
        "pause": {"tool": "bash", "since_s": 1.5, "action": "hold", "command": None},
    }


Reply = Callable[[Request], Awaitable[Response]]


class FakeModel:
    """Generation routes in place of vLLM's; an endpoint plugin may replace them."""

    name = "model"
    required_tasks = None

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.reply: Reply = chat_reply()

    def attach_router(self, app: FastAPI) -> None:
        async def generate(request: Request) -> Response:
            self.seen.append((dict(request.headers), await request.body()))
            return await self.reply(request)

        for path in GENERATION_PATHS:
            app.post(path)(generate)

    async def init_state(self, *args: Any) -> None: ...


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """A tool call in a chat message."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"id": "call_1", "type": "function", "function": function}


def chat_body(
    *calls: dict[str, Any], request_id: str = "chatcmpl-1", finish: str = ""
) -> dict[str, Any]:
    """The JSON of a chat completion that ends in these calls, or in text."""
    message = {"role": "assistant", "content": "ok", "tool_calls": list(calls)}
    finish = finish or ("tool_calls" if calls else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": request_id, "object": "chat.completion", "choices": [choice]}


def chat_reply(*calls: dict[str, Any], **changes: Any) -> Reply:
    """Replies with the JSON of `chat_body`."""

    async def reply(request: Request) -> Response:
        return Response(json.dumps(chat_body(*calls, **changes)), media_type="application/json")

    return reply


def chat_stream(*calls: dict[str, Any], request_id: str = "chatcmpl-1") -> list[bytes]:
    """The chunks of a streamed chat completion, as vLLM sends them."""

    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        body = {"id": request_id, "object": "chat.completion.chunk", "choices": [choice]}
        return f"data: {json.dumps(body)}\n\n".encode()

    deltas = [{"index": index, **each} for index, each in enumerate(calls)]
    return [
        event({"role": "assistant", "content": ""}),
        event({"content": "let me see"}),
        *(event({"tool_calls": [delta]}) for delta in deltas),
        event({}, "tool_calls" if calls else "stop"),
        b"data: [DONE]\n\n",
    ]


@dataclass
class Served:
    """The app, a client of it, and what stands behind it."""

    app: FastAPI
    client: httpx.AsyncClient
    engine: FakeEngine
    model: FakeModel
    plugin: Plugin

    async def post(self, events: Any, key: str | None = None, **headers: str) -> httpx.Response:
        """POST /v1/agentkv/events."""
        return await self.client.post(
            "/v1/agentkv/events", json=events, headers={**with_key(key), **headers}
        )

    async def get(self, path: str, key: str | None = None, **headers: str) -> httpx.Response:
        """GET /v1/agentkv/…"""
        return await self.client.get(f"/v1/agentkv/{path}", headers={**with_key(key), **headers})

    async def chat(
        self, body: dict[str, Any] | None = None, key: str | None = None, **headers: str
    ) -> httpx.Response:
        """A chat completion, from the made-up model; its watcher has done its work then."""
        tools = [{"type": "function", "function": {"name": "bash"}}]
        content = {"messages": [], "tools": tools, **(body or {})}
        response = await self.client.post(CHAT, json=content, headers={**with_key(key), **headers})
        await settle()
        return response

    async def counters(self, key: str | None = None) -> dict[str, Any]:
        """What the endpoint counts."""
        response = await self.get("state", key)
        found: dict[str, Any] = response.json()["endpoint"]
        return found


def with_key(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def scoped(salt: str | None, name: str) -> tuple[str, str]:
    """A session as `FakeEngine.sessions` holds it."""
    return scope_of_salt(salt), name


async def settle(num_turns: int = 20) -> None:
    """Let the event loop do what is ready."""
    for _ in range(num_turns):
        await asyncio.sleep(0)


@cache
def parse(flags: tuple[str, ...]) -> Any:
    return make_arg_parser(FlexibleArgumentParser()).parse_args(list(flags))


async def make_app(
    monkeypatch: MonkeyPatch, engine: FakeEngine | None, model: FakeModel, flags: Sequence[str]
) -> tuple[FastAPI, Plugin]:
    """Builds the app as vLLM does, and connects it to the engine."""
    plugin = Plugin()
    args = parse(tuple(flags))
    with monkeypatch.context() as patched:
        patched.setattr(vllm.plugins, "load_endpoint_plugins", lambda tasks: [plugin, model])
        app = build_app(args, ("generate",))
    await plugin.init_state(engine, app.state, args)
    return app, plugin


@asynccontextmanager
async def serving(
    monkeypatch: MonkeyPatch, engine: FakeEngine | None = None, flags: Iterable[str] = ()
) -> AsyncIterator[Served]:
    """The app behind a client in the same event loop."""
    engine = FakeEngine() if engine is None else engine
    model = FakeModel()
    app, plugin = await make_app(monkeypatch, engine, model, tuple(flags))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Served(app, client, engine, model, plugin)
    mailbox.activate(None)
