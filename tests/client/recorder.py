"""A server that takes events as agentkv's does, writes them down, and can be made to misbehave.

It also speaks enough of the chat completions API for the frameworks: a scripted model that asks for
a tool until a reply of one is in the prompt.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

WAIT_S = 60.0


class Recorder:
    """What arrived, in order of arrival. `status` is answered; `hangs` keeps answers back."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.chats: list[dict[str, str]] = []
        self.num_requests = 0
        self.status = 200
        self.result = "accepted"
        self.hangs = False
        self.num_tool_calls = 1
        self.tool_arguments = '{"command": "pytest -q", "timeout": 120}'
        self.url = ""

    def kinds(self, session_id: str | None = None) -> list[str]:
        return [event["event"] for event in self.of(session_id)]

    def of(self, session_id: str | None = None) -> list[dict[str, Any]]:
        return [e for e in self.events if session_id in (None, e["session_id"])]

    def wait_for(self, num_events: int) -> list[dict[str, Any]]:
        """Blocks until so many events are in; more of them are an error."""
        wait_until(lambda: len(self.events) >= num_events)
        assert len(self.events) == num_events, self.events
        return self.events

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/agentkv/events")
        async def events(request: Request) -> Response:
            self.num_requests += 1
            self.keys.append(request.headers.get("authorization"))
            while self.hangs:
                await asyncio.sleep(0.01)
            if self.status != 200:
                return JSONResponse({"error": {"message": "no"}}, self.status)
            body = await request.json()
            assert body.keys() == {"events"}
            self.events += body["events"]
            return JSONResponse({"results": [{"status": self.result} for _ in body["events"]]})

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            self.chats.append(dict(request.headers))
            messages = (await request.json())["messages"]
            return JSONResponse(self._completion(messages))

        @app.post("/v1/messages")
        async def anthropic(request: Request) -> Response:
            self.chats.append(dict(request.headers))
            return JSONResponse(MESSAGE)

        return app

    def _completion(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        last_question = max(i for i, m in enumerate(messages) if m["role"] == "user")
        has_output = any(m["role"] == "tool" for m in messages[last_question:])
        message: dict[str, Any] = {"role": "assistant", "content": "done"}
        if not has_output and self.num_tool_calls:
            function = {"name": "bash", "arguments": self.tool_arguments}
            message["tool_calls"] = [
                {"id": f"call_{len(self.chats)}_{i}", "type": "function", "function": function}
                for i in range(self.num_tool_calls)
            ]
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "done"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def wait_until(condition: Any) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.005)


@contextmanager
def recording() -> Iterator[Recorder]:
    recorder = Recorder()
    listener = socket.create_server(("127.0.0.1", 0))
    recorder.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(recorder.app(), log_level="error", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield recorder
    finally:
        recorder.hangs = False
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()
