"""The body of a request, read ahead of the application and then given to it unchanged.

Why: a client's identity may stand in the body, and has to be known before vLLM reads it; ASGI hands
a body out once. Where: used by the middleware. Only a body that fits into `max_bytes` is kept;
what was received of a larger one is given back first, the rest then streams by.
"""

from __future__ import annotations

from starlette.types import Message, Receive


class RequestBody:
    """Owned by one request. `receive` is for the application, in place of the server's."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._messages: list[Message] = []
        self._num_replayed = 0

    async def read(self) -> bytes | None:
        """The whole body; None if it is too large or its client has gone. Raises as the server."""
        pieces: list[bytes] = []
        num_bytes = 0
        while True:
            message = await self._receive()
            self._messages.append(message)
            if message["type"] != "http.request":
                return None
            piece = message.get("body", b"")
            num_bytes += len(piece)
            if num_bytes > self._max_bytes:
                return None
            pieces.append(piece)
            if not message.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def receive(self) -> Message:
        """What the server would have given, in the same order."""
        if self._num_replayed < len(self._messages):
            message = self._messages[self._num_replayed]
            self._messages[self._num_replayed] = {}  # Not kept for as long as the reply takes.
            self._num_replayed += 1
            return message
        return await self._receive()
