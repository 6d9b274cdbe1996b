"""One generation request as it passes, and what the engine is told when its reply is complete.

What: names the session before vLLM sees the request, then reads along with the reply. Why: an agent
that says nothing still shows in its traffic who it is, and which tool it runs now.
Where: between `middleware`, which moves the bytes, and `agentkv.watch`, which understands them.
Nothing here raises: after a fault the turn is no longer watched, and its request goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Message, Scope

from agentkv.signals import ScopedEvent
from agentkv.watch.replies import ReplyWatcher, reply_watcher
from agentkv.watch.turn_end import TurnEnd

from .ownership import Name
from .request_facts import SESSION_HEADER, RequestFacts, RequestReader
from .state import Endpoint
from .turn_events import event_of

RANK_HEADER = "x-data-parallel-rank"


class WatchedTurn:
    """Owned by one request. `raw` is its body, None if that was too large to read."""

    def __init__(self, endpoint: Endpoint, path: str, headers: Headers, raw: bytes | None) -> None:
        self._endpoint = endpoint
        self._path = path
        self._headers = headers
        self._has_body = raw is not None
        self._request = RequestReader(headers, raw)
        self._watcher: ReplyWatcher | None = None
        self._is_broken = False
        self._unread: list[Message] = []

    def name_session(self, scope: Scope) -> None:
        """Put the client's own session id where vLLM looks for one, if it finds none there."""
        self._try("naming a session", lambda: self._name_session(scope))

    def before(self, message: Message) -> None:
        """A message of the reply is about to be sent on."""
        if message["type"] == "http.response.start" and message["status"] == 200:
            self._try("watching a reply", lambda: self._begin(message))

    def after(self, message: Message) -> None:
        """A message of the reply has been sent on. It is read when the loop is free.

        A stream begins with a piece without text: the first token comes right behind it.
        """
        if self._watcher is None or message["type"] != "http.response.body":
            return
        if not self._unread:
            asyncio.get_running_loop().call_soon(self._read_on)
        self._unread.append(message)

    def close(self) -> None:
        """The request is over, also where its reply was not complete."""
        self._read_on()
        if self._watcher is not None:
            self._try("watching a reply", self._finish)

    def _try(self, where: str, step: Callable[[], None]) -> None:
        if self._is_broken:
            return
        try:
            step()
        except Exception as error:
            self._is_broken = True
            self._watcher = None
            self._endpoint.counters.problem(where, error)

    def _name_session(self, scope: Scope) -> None:
        name = self._request.name_to_add()
        if name is None:
            return
        key = SESSION_HEADER.encode()
        others = [header for header in scope["headers"] if header[0] != key]
        scope["headers"] = [*others, (key, name.encode())]
        self._endpoint.counters.sessions_named += 1

    def _begin(self, message: Message) -> None:
        headers = Headers(raw=list(message.get("headers", ())))
        if headers.get("content-encoding", "identity") == "identity":
            self._watcher = reply_watcher(self._path, headers.get("content-type", ""))
        self._endpoint.counters.requests_watched += self._watcher is not None
        if self._endpoint.keeps_claims and self._has_body:
            # Before the client has the reply: its next event may follow at once.
            facts = self._request.facts()
            if facts.session_id is not None:
                name = Name(facts.scope, facts.session_id)
                self._endpoint.sessions.claim(name, self._caller(), self._rank())

    def _read_on(self) -> None:
        unread, self._unread = self._unread, []
        for message in unread:
            if self._watcher is not None:
                self._try("watching a reply", partial(self._read, message))

    def _read(self, message: Message) -> None:
        assert self._watcher is not None
        self._watcher.feed(message.get("body", b""))
        self._request.facts()  # Now, for then the body is let go of.
        if not message.get("more_body", False):
            self._finish()

    def _finish(self) -> None:
        assert self._watcher is not None
        end = self._watcher.finish()
        self._watcher = None
        facts = self._request.facts()
        self._count(end, facts)
        if end is None:
            return
        if end.request_id is not None and not self._owns(Name(facts.scope, end.request_id)):
            return
        event = event_of(end, facts)
        if event is not None and self._endpoint.link is not None:
            self._endpoint.link.tell(ScopedEvent(event=event, scope=facts.scope), self._rank())
            self._endpoint.counters.ends_sent += event.event == "end"
            self._endpoint.counters.pauses_sent += event.event == "pause"

    def _count(self, end: TurnEnd | None, facts: RequestFacts) -> None:
        counters = self._endpoint.counters
        stop = "cut" if end is None else end.stop
        counters.turns_tool += stop == "tool"
        counters.turns_human += stop == "human"
        counters.turns_cut += stop == "cut"
        hints = facts.hints
        counters.saw_hints(hints.seen, ignored=hints.ignored, wishes=hints.wishes)

    def _owns(self, reply: Name) -> bool:
        """False if another caller used the id of this reply: which session it names is open."""
        if not self._endpoint.keeps_claims:
            return True
        return self._endpoint.replies.claim_alone(reply, self._caller(), self._rank())

    def _caller(self) -> str:
        return self._endpoint.callers.caller_of(self._headers)

    def _rank(self) -> int | None:
        """The engine that the client chose, None where vLLM chooses one."""
        link = self._endpoint.link
        text = self._headers.get(RANK_HEADER, "")
        if link is None or not (text.isascii() and text.isdigit() and len(text) < 6):
            return None
        return int(text) if int(text) < link.engines.num_ranks else None
