"""The client against a real HTTP server that streams as vLLM does."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx
import pytest

from agentkv.demo.client import RequestError, TurnRequest, send, send_async

USAGE = {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
FIRST_TOKEN_AFTER_S = 0.15


def token(token_id: int, text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "token_ids": [token_id]}]}


class Handler(BaseHTTPRequestHandler):
    events: ClassVar[list[Any]] = []
    seen: ClassVar[dict[str, Any]] = {}
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Handler.seen = {"body": json.loads(body), "session": self.headers["X-Session-ID"]}
        self.send_response(self.status)
        self.end_headers()
        for event in self.events:
            if isinstance(event, float):
                time.sleep(event)
            else:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Handler.status = 200
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


REQUEST = TurnRequest("s1", [{"role": "user", "content": "hi"}], 2, {"tool": "bash"}, True)


def test_the_clock_stops_at_the_first_token_and_not_at_the_role(url: str) -> None:
    Handler.events = [
        ROLE,
        FIRST_TOKEN_AFTER_S,
        token(5, ""),
        0.15,
        token(6, "é"),
        {"usage": USAGE},
    ]
    with httpx.Client(base_url=url) as client:
        result = send(client, REQUEST)
    assert FIRST_TOKEN_AFTER_S <= result.ttft_s < result.total_s - 0.1
    assert (result.token_ids, result.text) == ((5, 6), "é")
    assert (result.prompt_tokens, result.cached_tokens) == (7, 4)


def test_session_and_tags_go_where_the_plugin_reads_them(url: str) -> None:
    Handler.events = [ROLE, token(5, "a"), {"usage": USAGE}]
    with httpx.Client(base_url=url) as client:
        send(client, REQUEST)
    assert Handler.seen["session"] == "s1"
    assert Handler.seen["body"]["kv_transfer_params"] == {"agentkv": {"tool": "bash"}}
    assert Handler.seen["body"]["ignore_eos"] and Handler.seen["body"]["return_token_ids"]


def test_the_async_client_reads_the_same(url: str) -> None:
    Handler.events = [ROLE, token(5, "a"), {"usage": {"prompt_tokens": 7}}]

    async def ask() -> tuple[int, ...]:
        async with httpx.AsyncClient(base_url=url) as client:
            result = await send_async(client, REQUEST)
            assert result.cached_tokens == 0
            return result.token_ids

    assert asyncio.run(ask()) == (5,)


def test_the_arguments_of_a_tool_call_are_the_text(url: str) -> None:
    pieces = [{"name": "bash", "arguments": ""}, {"arguments": "{}"}, {"arguments": None}]
    deltas = [{"tool_calls": [{"index": 0, "function": piece}]} for piece in pieces]
    Handler.events = [
        ROLE,
        *({"choices": [{"delta": delta}]} for delta in deltas),
        {"usage": USAGE},
    ]
    with httpx.Client(base_url=url) as client:
        result = send(client, REQUEST)
    assert result.text == "{}" and len(result.gaps_s) == 2


def test_a_refusal_and_a_broken_stream_are_errors(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        Handler.events = [{"error": {"message": "engine died"}}]
        with pytest.raises(RequestError, match="engine died"):
            send(client, REQUEST)
        Handler.events = [ROLE]
        with pytest.raises(RequestError, match="without a token"):
            send(client, REQUEST)
        Handler.status = 500
        with pytest.raises(RequestError, match="answered 500"):
            send(client, REQUEST)
