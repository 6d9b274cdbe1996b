"""Lets every request and reply pass, and has a look at those of agents.

What: pure ASGI. A generation request is named and its reply watched; a chunk is sent on at once and
unchanged, and looked at only then. Why: middleware is the one place that sees the replies of all
APIs as the client gets them. Where: added by `plugin` before vLLM adds its own, so it sits inside
of those: a request that arrives here has passed the check of its API key.
"""

from __future__ import annotations

import time

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .request_body import RequestBody
from .state import Endpoint
from .watched_turn import WatchedTurn

EVENTS_PATH = "/v1/agentkv/events"
GENERATION_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
LOOKING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY_BYTES = 8 << 20
"""A larger generation request is not read. It is given no session, its pause counts only without a
cache salt, and on a server with several keys it does not make a session its caller's."""

MAX_EVENTS_BYTES = 4 << 20


class AgentKVMiddleware:
    """Owned by the app. Raises what the app or the server raise, and nothing of its own."""

    def __init__(self, app: ASGIApp, endpoint: Endpoint) -> None:
        self._app = app
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `starlette.types.ASGIApp`."""
        if scope["type"] != "http" or scope["method"] in LOOKING_METHODS:
            await self._app(scope, receive, send)
            return
        activity = self._endpoint.activity
        activity.begin()
        try:
            await self._pass(scope, receive, send)
        finally:
            activity.end(time.monotonic())

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = ""
        if scope["method"] == "POST":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path == EVENTS_PATH:
            await self._pass_events(scope, receive, send)
        elif path in GENERATION_PATHS and self._endpoint.link is not None:
            await self._watch(path, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _watch(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        body = RequestBody(receive, MAX_BODY_BYTES)
        raw = await body.read() if _announced_bytes(headers) <= MAX_BODY_BYTES else None
        turn = WatchedTurn(self._endpoint, path, headers, raw)
        del raw
        turn.name_session(scope)

        async def send_on(message: Message) -> None:
            turn.before(message)
            await send(message)
            turn.after(message)

        try:
            await self._app(scope, body.receive, send_on)
        finally:
            turn.close()

    async def _pass_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A body that is larger than any sensible batch is refused before it is parsed."""
        body = RequestBody(receive, MAX_EVENTS_BYTES)
        if _announced_bytes(Headers(scope=scope)) > MAX_EVENTS_BYTES or await body.read() is None:
            await _too_large()(scope, receive, send)
        else:
            await self._app(scope, body.receive, send)


def _announced_bytes(headers: Headers) -> int:
    """0 where the size is not announced: it is then found out while reading."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _too_large() -> JSONResponse:
    message = (
        f"The body has more than {MAX_EVENTS_BYTES} bytes; send the events in several requests"
    )
    error = {"message": message, "type": "Content Too Large", "param": "body", "code": 413}
    return JSONResponse({"error": error}, status_code=413)
