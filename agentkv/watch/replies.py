"""Watches a reply go by and tells how the turn ended.

What: `reply_watcher` picks by path and content type; a watcher is fed the bytes of the body as
they pass. Why: this is how a pause is known when the client says nothing. Where: the endpoint
plugin feeds it after each chunk was sent on, so that it delays nothing. A watcher never raises,
keeps at most 1 MiB, and spends a few substring tests on a chunk of text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from agentkv.watch.chat import ChatFormat
from agentkv.watch.formats import ReplyFormat
from agentkv.watch.messages import MessagesFormat
from agentkv.watch.responses import ResponsesFormat
from agentkv.watch.sse import EventSplitter
from agentkv.watch.turn_end import TurnEnd

MAX_KEPT_BYTES = 1 << 20
BAD_INPUT = (ValueError, TypeError, RecursionError)
"""What a reply raises that is no JSON, nests too deep, or has an unhashable thing for an index. Its
reader gets it all the same; anything else is a fault of ours, which the caller counts."""

_PATH_TO_FORMAT: dict[str, Callable[[], ReplyFormat]] = {
    "/v1/chat/completions": ChatFormat,
    "/v1/completions": ChatFormat,
    "/v1/responses": ResponsesFormat,
    "/v1/messages": MessagesFormat,
}


class ReplyWatcher(Protocol):
    """Owned by one reply; not for several threads. Nothing that a reply holds makes it raise."""

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the body, cut anywhere."""

    def finish(self) -> TurnEnd | None:
        """Once, after the last byte or when the reply breaks off. None: nothing is known."""


def reply_watcher(path: str, content_type: str) -> ReplyWatcher | None:
    """A watcher for a successful reply to a POST at `path`; None if it ends no turn.

    A prefix of the path (a root path, a proxy's) does not matter.
    """
    make_format = next((f for p, f in _PATH_TO_FORMAT.items() if path.endswith(p)), None)
    if make_format is None:
        return None
    match content_type.partition(";")[0].strip().lower():
        case "text/event-stream":
            return _StreamWatcher(make_format())
        case "application/json":
            return _BodyWatcher(make_format())
    return None


class _StreamWatcher:
    """Server-sent events. Most chunks are one event of text and are passed over unread."""

    def __init__(self, reply: ReplyFormat) -> None:
        self._reply = reply
        self._events = EventSplitter()
        self._num_events = 0
        self._has_given_up = False

    def feed(self, chunk: bytes) -> None:
        """See `ReplyWatcher.feed`."""
        if self._has_given_up:
            return
        try:
            is_whole = self._events.is_between_events and chunk.endswith(b"\n\n")
            if is_whole and self._num_events and self._is_dull(chunk):
                return
            for data in self._events.split(chunk):
                self._read(data)
            kept_bytes = self._events.kept_bytes + self._reply.kept_bytes
            self._has_given_up = kept_bytes > MAX_KEPT_BYTES
        except BAD_INPUT:
            self._has_given_up = True
        if self._has_given_up:
            self._events = EventSplitter()

    def finish(self) -> TurnEnd | None:
        """See `ReplyWatcher.finish`."""
        return self._reply.end() if self._num_events and not self._has_given_up else None

    def _is_dull(self, data: bytes) -> bool:
        for marker in self._reply.markers:  # noqa: SIM110  (a generator costs more than the tests)
            if marker in data:
                return False
        return True

    def _read(self, data: bytes) -> None:
        if self._num_events and self._is_dull(data):
            return
        event = json.loads(data)
        if isinstance(event, dict):
            self._num_events += 1
            self._reply.read_event(event)


class _BodyWatcher:
    """One JSON object, read when it is whole."""

    def __init__(self, reply: ReplyFormat) -> None:
        self._reply = reply
        self._body = bytearray()
        self._has_given_up = False

    def feed(self, chunk: bytes) -> None:
        """See `ReplyWatcher.feed`."""
        if self._has_given_up:
            return
        self._body += chunk
        if len(self._body) > MAX_KEPT_BYTES:
            self._has_given_up = True
            self._body.clear()

    def finish(self) -> TurnEnd | None:
        """See `ReplyWatcher.finish`."""
        if self._has_given_up or not self._body:
            return None
        try:
            return self._reply.read_body(json.loads(self._body))
        except BAD_INPUT:
            return TurnEnd(None, (), "cut")
