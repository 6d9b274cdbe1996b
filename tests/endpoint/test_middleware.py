"""The watcher on vLLM's own app: what it adds, what the engine is told, and that nobody notices."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from agentkv.connectors.endpoint import middleware, watched_turn
from agentkv.connectors.endpoint.middleware import AgentKVMiddleware
from agentkv.signals import ScopedEvent

from .builders import (
    CHAT,
    GENERATION_PATHS,
    FakeEngine,
    Reply,
    Served,
    call,
    chat_body,
    chat_reply,
    chat_stream,
    scoped,
    settle,
)
from .conftest import Serve

PYTEST = call("bash", command="pytest -q", timeout=120)


def streamed(chunks: list[bytes]) -> Reply:
    async def reply(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        return StreamingResponse(pieces(), media_type="text/event-stream")

    return reply


def the_event(served: Served) -> dict[str, Any]:
    (event,) = served.engine.events
    return event.event.model_dump(mode="json", exclude_defaults=True)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_tool_call_in_the_reply_is_a_pause_with_its_tool_and_command(
    served: Served, is_streamed: bool
) -> None:
    served.model.reply = streamed(chat_stream(PYTEST)) if is_streamed else chat_reply(PYTEST)
    await served.chat()
    event = the_event(served)
    assert (event["event"], event["request_id"]) == ("pause", "chatcmpl-1")
    assert event["waits_for"] == "tool"
    assert [(each["tool"], each["command"]) for each in event["calls"]] == [("bash", "pytest -q")]


async def test_parallel_calls_are_all_told(served: Served) -> None:
    served.model.reply = chat_reply(PYTEST, call("bash", command="sleep 5"))
    await served.chat()
    assert [each["command"] for each in the_event(served)["calls"]] == ["pytest -q", "sleep 5"]


async def test_an_end_without_a_call_waits_for_a_human(served: Served) -> None:
    await served.chat()
    assert the_event(served)["waits_for"] == "human"


async def test_where_no_tools_are_offered_nobody_knows_who_is_next(served: Served) -> None:
    await served.chat({"tools": []})
    assert served.engine.events == []
    assert (await served.counters())["turns_human"] == 1


@pytest.mark.parametrize("finish", ["length", "error"])
async def test_a_reply_that_was_cut_off_says_nothing(served: Served, finish: str) -> None:
    served.model.reply = chat_reply(PYTEST, finish=finish)
    await served.chat()
    assert served.engine.events == []


async def test_a_failed_request_is_not_watched(served: Served) -> None:
    async def refuse(request: Request) -> Response:
        return Response(json.dumps(chat_body(PYTEST)), 500, media_type="application/json")

    served.model.reply = refuse
    assert (await served.chat()).status_code == 500
    assert served.engine.sent == []
    assert (await served.counters())["requests_watched"] == 0


async def test_a_pause_has_the_scope_of_its_requests_salt(serve: Serve) -> None:
    served = await serve(FakeEngine(sessions={scoped("red", "s")}))
    served.model.reply = chat_reply(PYTEST)
    await served.chat({"cache_salt": "red"})
    (event,) = served.engine.events
    assert event.scope == scoped("red", "s")[0]


async def test_a_pause_goes_to_the_engine_that_the_request_chose_or_to_all(serve: Serve) -> None:
    served = await serve(FakeEngine(num_ranks=3))
    served.model.reply = chat_reply(PYTEST)
    await served.chat(**{"X-data-parallel-rank": "2"})
    assert [rank for rank, _ in served.engine.sent] == [2]
    served.engine.sent.clear()
    for rank in ("7", "-1", "x", ""):  # vLLM ignores or refuses these itself.
        await served.chat(**{"X-data-parallel-rank": rank})
    assert sorted({rank for rank, _ in served.engine.sent}) == [0, 1, 2]


async def test_the_last_turn_ends_its_session(served: Served) -> None:
    served.model.reply = chat_reply(PYTEST)
    await served.chat(**{"x-dynamo-session-id": "d", "x-dynamo-session-final": "true"})
    assert the_event(served) == {"event": "end", "request_id": "chatcmpl-1"}


async def test_a_hint_of_another_dialect_reaches_the_pause_and_is_counted(served: Served) -> None:
    hint = {"agentkv": {"expected_wait_s": 40}}
    served.model.reply = chat_reply(PYTEST)
    await served.chat({"kv_transfer_params": hint})
    assert the_event(served)["expected_wait_s"] == 40
    counters = await served.counters()
    assert counters["hints_seen"] == 1
    assert counters["hints_by_source"] == {"agentkv/kv_transfer_params": 1}


async def test_a100_a_hint_that_is_lost_on_the_way_is_missed_at_its_source(served: Served) -> None:
    """In the log `agentkv doctor` says from which request on: tests/doctor/faults_in_head.py."""
    for carried in ({"vllm_xargs": {"agentkv.tool": "bash"}}, {"metadata": {"agentkv.tool": "x"}}):
        await served.chat(carried)
    for header in ({"x-agentkv-tool": "bash"}, {"x-agentkv-tool": "bash"}, {}):
        await served.chat(**header)
    counters = await served.counters()
    seen = {"vllm_xargs": 1, "metadata": 1, "header": 2}
    assert counters["hints_by_source"] == {f"agentkv/{name}": num for name, num in seen.items()}
    assert (counters["hints_seen"], counters["requests_watched"]) == (4, 5)


async def test_a_wish_to_be_kept_reaches_no_pause_and_is_counted(served: Served) -> None:
    served.model.reply = chat_reply(PYTEST)
    await served.chat({"nvext": {"cache_control": {"ttl": "1h"}}, "prompt_cache_retention": "24h"})
    assert the_event(served).keys() == {"event", "request_id", "waits_for", "calls"}
    counters = await served.counters()
    assert (counters["hints_seen"], counters["hints_ignored"]) == (1, 0)
    assert counters["hints_by_source"] == {"dynamo/cache_control": 1, "openai/prompt_cache": 1}
    assert counters["hints_not_followed"] == 2


async def test_the_claude_code_session_becomes_vllms_and_the_body_stays(served: Served) -> None:
    response = await served.chat({"n": 1}, **{"X-Claude-Code-Session-Id": "abc"})
    assert response.status_code == 200
    headers, body = served.model.seen[0]
    assert headers["x-session-id"] == "abc"
    assert json.loads(body)["n"] == 1 and b"session_id" not in body
    assert (await served.counters())["sessions_named"] == 1


@pytest.mark.parametrize("path", GENERATION_PATHS)
@pytest.mark.parametrize(
    "body",
    [b'{"metadata": {}}', b"{", b"", b"\xff", b"[1]", b"null", b"[" * 100_000, b'{"tools": 5}'],
)
async def test_any_body_reaches_the_model_byte_for_byte(
    served: Served, path: str, body: bytes
) -> None:
    response = await served.client.post(path, content=body, headers={"x-opencode-session": "o"})
    assert response.status_code == 200
    assert served.model.seen[0][1] == body
    assert (await served.counters())["problems"] == 0


async def test_a_body_sent_in_pieces_reaches_the_model_whole(served: Served) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b'{"messages"', b"", b": []}"):
            yield piece

    await served.client.post(CHAT, content=pieces())
    assert served.model.seen[0][1] == b'{"messages": []}'


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_too_large_to_look_at_passes_and_its_session_is_not_touched(
    served: Served, monkeypatch: pytest.MonkeyPatch, is_announced: bool
) -> None:
    monkeypatch.setattr(middleware, "MAX_BODY_BYTES", 1000)
    content = b'{"messages": [], "x": "' + b"x" * 5000 + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 300):
            yield content[start : start + 300]

    served.model.reply = chat_reply(PYTEST)
    await served.client.post(
        CHAT,
        content=content if is_announced else pieces(),
        headers={"x-claude-code-session-id": "abc"},
    )
    await settle()
    headers, body = served.model.seen[0]
    assert body == content and "x-session-id" not in headers
    assert the_event(served)["calls"][0]["command"] == "pytest -q"


ODD_STREAMS: dict[str, list[bytes]] = {
    "as vLLM sends it": chat_stream(PYTEST),
    "byte by byte": [bytes([byte]) for chunk in chat_stream(PYTEST) for byte in chunk],
    "all at once": [b"".join(chat_stream(PYTEST))],
    "empty chunks": [b"", *chat_stream(PYTEST), b"", b""],
    "not a stream": [b"\xff\xfe", b"data: {", b"\n\n", b"data: [1]\n\n", b"data: null\n\n"],
    "nothing": [],
    "megabytes": [b"data: " + b"x" * 100_000] * 30,
}


@pytest.mark.parametrize("name", ODD_STREAMS)
async def test_a_stream_passes_byte_for_byte(served: Served, name: str) -> None:
    served.model.reply = streamed(ODD_STREAMS[name])
    response = await served.chat()
    assert response.content == b"".join(ODD_STREAMS[name])
    assert (await served.counters())["problems"] == 0


async def test_messages_are_passed_on_as_the_very_objects_and_before_they_are_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Spy:
        def feed(self, chunk: bytes) -> None:
            order.append("read")

        def finish(self) -> None:
            order.append("finish")

    monkeypatch.setattr(watched_turn, "reply_watcher", lambda path, content_type: Spy())
    served = await serve()
    messages = [
        {"type": "http.response.start", "status": 200, "headers": []},
        {"type": "http.response.body", "body": b"a", "more_body": True},
        {"type": "http.response.body", "body": b"b"},
    ]
    passed: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        passed.append(message)
        order.append("sent")

    watching = AgentKVMiddleware(app, served.plugin._endpoint)  # type: ignore[arg-type]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    await watching(scope, receive, send)
    assert all(one is other for one, other in zip(passed, messages, strict=True))
    # Not even between the pieces of one burst: a token must not wait for it.
    assert order == ["sent", "sent", "sent", "read", "read", "finish"]


@pytest.mark.parametrize("broken", ["reply_watcher", "event_of"])
async def test_a_broken_watcher_breaks_no_request(
    served: Served, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(watched_turn, broken, fail)
    monkeypatch.setattr(logging.getLogger("vllm.agentkv"), "disabled", True)
    served.model.reply = streamed(chat_stream(PYTEST))
    response = await served.chat()
    assert response.content == b"".join(chat_stream(PYTEST))
    assert (await served.counters())["problems"] == 1


async def test_a_broken_reading_of_requests_breaks_no_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr("agentkv.connectors.endpoint.request_facts.session_of", fail)
    monkeypatch.setattr(logging.getLogger("vllm.agentkv"), "disabled", True)
    assert (await served.chat()).status_code == 200
    assert served.model.seen[0][1]
    assert (await served.counters())["problems"] == 1


async def test_a_dead_engine_breaks_no_request(serve: Serve) -> None:
    served = await serve(FakeEngine(is_dead=True))
    served.model.reply = chat_reply(PYTEST)
    assert (await served.chat()).json() == chat_body(PYTEST)
    assert served.plugin._endpoint is not None
    assert served.plugin._endpoint.counters.problems == 1


async def test_a_client_that_leaves_after_the_last_event_has_paused_all_the_same(
    served: Served,
) -> None:
    """Starlette then never sends the empty message that ends the body."""

    async def reply(request: Request) -> Response:
        raise RuntimeError("not used")

    chunks = chat_stream(PYTEST)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        raise asyncio.CancelledError

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None: ...

    watching = AgentKVMiddleware(app, served.plugin._endpoint)  # type: ignore[arg-type]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    with pytest.raises(asyncio.CancelledError):
        await watching(scope, receive, send)
    await settle()
    assert the_event(served)["calls"][0]["tool"] == "bash"
    served.engine.sent.clear()
    chunks = chunks[:2]  # Now it leaves in the middle.
    with pytest.raises(asyncio.CancelledError):
        await watching({**scope}, receive, send)
    await settle()
    assert served.engine.events == []


async def test_a_thousand_requests_at_once_are_a_thousand_pauses(served: Served) -> None:
    async def reply(request: Request) -> Response:
        name = request.headers["x-session-id"]
        await asyncio.sleep(0.001)
        command = call("bash", command=f"run {name}")
        chunks = chat_stream(command, request_id=f"chatcmpl-{name}")
        return await streamed(chunks)(request)

    served.model.reply = reply
    names = [f"s{number}" for number in range(1000)]
    responses = await asyncio.gather(
        *(served.chat(**{"x-opencode-session": name}) for name in names)
    )
    assert all(response.content.endswith(b"data: [DONE]\n\n") for response in responses)
    await settle()

    def told(scoped_event: ScopedEvent) -> tuple[str | None, str | None]:
        return scoped_event.event.request_id, scoped_event.event.calls[0].command

    assert sorted(map(told, served.engine.events)) == sorted(
        (f"chatcmpl-{name}", f"run {name}") for name in names
    )
    assert (await served.counters())["problems"] == 0


async def test_pauses_told_while_the_engine_is_busy_go_together(serve: Serve) -> None:
    gate = asyncio.Event()

    class BusyEngine(FakeEngine):
        async def notify_kv_transfer_request_rejected(self, *args: Any, **kwargs: Any) -> None:
            await gate.wait()
            await super().notify_kv_transfer_request_rejected(*args, **kwargs)

    served = await serve(BusyEngine())
    served.model.reply = chat_reply(PYTEST)
    for _ in range(600):
        await served.chat()
    gate.set()
    await settle()
    assert [len(message.events) for _, message in served.engine.sent] == [1, 256, 256, 87]


async def test_an_engine_that_takes_nothing_does_not_fill_the_memory(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv.connectors.endpoint.engine_link.MAX_QUEUED", 10)
    monkeypatch.setattr(logging.getLogger("vllm.agentkv"), "disabled", True)

    class StuckEngine(FakeEngine):
        async def notify_kv_transfer_request_rejected(self, *args: Any, **kwargs: Any) -> None:
            await gate.wait()

    gate = asyncio.Event()
    served = await serve(StuckEngine())
    served.model.reply = chat_reply(PYTEST)
    for _ in range(20):
        await served.chat()
    assert served.plugin._endpoint is not None
    assert served.plugin._endpoint.counters.problems >= 8
    gate.set()
    await settle()
