"""What an agent tells of its pauses: `AgentSession`, and `AsyncAgentSession` for asyncio.

    with AgentSession("http://localhost:8000/v1") as session:
        client = session.wrap(openai.OpenAI(...))
        ...                                     # a turn ends in a tool call
        with session.tool("bash", command="pytest -q", timeout_s=120):
            ...                                 # the tool runs: the session's KV is not needed
        ...                                     # KV is on its way back before the next request

Why nothing here raises or waits: an agent must run the same without agentkv. Only closing a session
waits, a second at most, for its last events. Where: on top of `channel`, which sends.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast

from agentkv.client.channel import Address, channel_to
from agentkv.client.delivery import Delivery, Limits
from agentkv.signals import MAX_SECONDS, MAX_TEXT_CHARS, Event, ToolCall

logger = logging.getLogger(__name__)

SESSION_HEADER = "X-Session-ID"
_MAX_ID_CHARS = 256
_MAX_CALLS = 64
_FLUSH_POLL_S = 0.005

P = ParamSpec("P")


class HasOptions(Protocol):
    """An API client such as `openai.OpenAI`, `openai.AsyncOpenAI` or `anthropic.Anthropic`."""

    def with_options(self, *, default_headers: Mapping[str, str] | None = None) -> Any:
        """A copy of the client that sends these headers too."""


ClientT = TypeVar("ClientT", bound=HasOptions)


_told: set[str] = set()


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """The edge to the agent: a fault of ours becomes a log line, once."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            if (fault := f"{method.__qualname__}: {type(error).__name__}") not in _told:
                _told.add(fault)
                logger.warning("agentkv: an event is lost; the agent goes on", exc_info=True)

    return call


@dataclass(frozen=True, slots=True)
class _Running:
    call: ToolCall
    since_s: float


class _Session:
    """What both kinds of session share. Any thread may call it; the channel's lock guards it."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        session_id: str | None = None,
        cache_salt: str | None = None,
        *,
        limits: Limits | None = None,
    ) -> None:
        """`base_url` as for an OpenAI client, with or without `/v1`. Without `session_id` a new
        one is made. `cache_salt` is that of the session's requests: whoever does not know it can
        neither see nor steer the session."""
        url = str(base_url).rstrip("/").removesuffix("/v1")
        self.session_id = _usable_id(session_id)
        self.cache_salt = cache_salt or None
        self._channel = channel_to(Address(url, api_key), limits or Limits())
        self._running: dict[object, _Running] = {}
        self._waits_for_human = False
        self._next_beat_s = 0.0

    @property
    def headers(self) -> dict[str, str]:
        """For every request of this session, with any HTTP client."""
        return {SESSION_HEADER: self.session_id}

    @property
    def extra_body(self) -> dict[str, str]:
        """The same in the body, with the cache salt if there is one: `create(extra_body=…)`."""
        salt = {} if self.cache_salt is None else {"cache_salt": self.cache_salt}
        return {"session_id": self.session_id, **salt}

    @property
    def delivery(self) -> Delivery:
        """What became of the events to this server so far, those of other sessions included."""
        return self._channel.delivery

    def wrap(self, client: ClientT) -> ClientT:
        """A client with the same options whose requests carry this session's header.

        The header does not carry a cache salt: pass `extra_body` where there is one.
        """
        try:
            return cast(ClientT, client.with_options(default_headers=self.headers))
        except Exception:  # The client's code, not ours: an agent must run on with what it has.
            logger.warning("agentkv: %s takes no header", type(client).__name__, exc_info=True)
            return client

    def tool(
        self,
        tool: str,
        *,
        command: str | None = None,
        timeout_s: float | None = None,
        expected_wait_s: float | None = None,
    ) -> ToolPause:
        """Says that a tool runs, in a `with` or an `async with`; parallel ones make one pause.

        `command` is what it runs, `timeout_s` when it is cut off, `expected_wait_s` how long it
        will take, if you know better than what the server has learnt.
        """
        details = {"command": command, "timeout_s": timeout_s, "expected_wait_s": expected_wait_s}
        return ToolPause(self, tool, details)

    # --- the same in single steps, for frameworks with callbacks ---

    @harmless
    def tool_started(self, key: object, tool: str, **details: Any) -> None:
        """A tool runs from now on; `key` names it to `tool_ended`. Details as of `tool`."""
        call = ToolCall(tool=_text(tool) or "unknown", **_details(details))
        with self._channel.lock:
            now_s = time.monotonic()
            if not self._running:
                self._next_beat_s = now_s + self._channel.limits.heartbeat_s
            self._running[key] = _Running(call, now_s)
            self._pause()
            self._channel.watch(self)

    @harmless
    def tool_ended(self, key: object) -> None:
        """The tool is done, however it ended. The pause ends with the last one."""
        with self._channel.lock:
            if self._running.pop(key, None) is not None and not self._running:
                self._post("resume")

    @harmless
    def pause(
        self,
        tool: str | None = None,
        *,
        waits_for: Literal["tool", "human"] | None = None,
        **details: Any,
    ) -> None:
        """The turn has ended and something else goes on. Details as of `tool`."""
        with self._channel.lock:
            self._waits_for_human = waits_for == "human"
            self._post("pause", tool=_text(tool), waits_for=waits_for, **_details(details))

    def wait_for_human(self) -> None:
        """The agent has answered; the next turn comes when a person writes, if ever."""
        self.pause(waits_for="human")

    @harmless
    def resume(self) -> None:
        """The next turn is being prepared: the KV is wanted back. Ends all running tools."""
        with self._channel.lock:
            self._running.clear()
            self._waits_for_human = False
            self._post("resume")

    @harmless
    def run_started(self) -> None:
        """A run of the agent begins: ends what an earlier run left open, if anything."""
        with self._channel.lock:
            if self._running or self._waits_for_human:
                self.resume()

    @harmless
    def heartbeat(self) -> None:
        """What was paused for still goes on. `tool` sends these by itself."""
        with self._channel.lock:
            self._post("heartbeat")

    @harmless
    def end(self) -> None:
        """No turn will follow: the KV may go at once. Closing the session does this too."""
        with self._channel.lock:
            self._running.clear()
            self._waits_for_human = False
            self._post("end")

    def beat(self, now_s: float) -> float | None:
        """See `channel.Beating`."""
        max_tool_s = self._channel.limits.max_tool_s
        if not any(now_s - running.since_s < max_tool_s for running in self._running.values()):
            return None
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._channel.limits.heartbeat_s
            self._post("heartbeat")
        return self._next_beat_s

    def _pause(self) -> None:
        calls = [running.call for running in itertools.islice(self._running.values(), _MAX_CALLS)]
        if len(calls) == 1:
            self._post("pause", waits_for="tool", **calls[0].model_dump())
        else:
            self._post("pause", waits_for="tool", calls=tuple(calls))

    def _post(self, kind: str, **fields: Any) -> None:
        names = {"session_id": self.session_id, "cache_salt": self.cache_salt}
        seq = self._channel.next_seq()
        self._channel.post(Event.model_validate({"event": kind, "seq": seq, **names, **fields}))


class ToolPause:
    """A tool of a session while it runs. Use it once, in a `with` or an `async with`."""

    def __init__(self, session: _Session, tool: str, details: Mapping[str, Any]) -> None:
        self._session = session
        self._tool = tool
        self._details = details

    def __enter__(self) -> None:
        self._session.tool_started(self, self._tool, **self._details)

    def __exit__(self, *_: object) -> None:
        self._session.tool_ended(self)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


class AgentSession(_Session):
    """A session of an agent that uses threads. Leaving its `with` ends it."""

    def __enter__(self) -> AgentSession:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @harmless
    def close(self) -> None:
        """Ends the session and waits a moment until the server knows."""
        self.end()
        self._channel.flush(self._channel.limits.flush_s)


class AsyncAgentSession(_Session):
    """A session of an agent on asyncio. Leaving its `async with` ends it."""

    async def __aenter__(self) -> AsyncAgentSession:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the session and waits a moment until the server knows."""
        self.end()
        deadline_s = time.monotonic() + self._channel.limits.flush_s
        while not self._channel.is_settled() and time.monotonic() < deadline_s:
            await asyncio.sleep(_FLUSH_POLL_S)


def _usable_id(session_id: str | None) -> str:
    """An id that can be sent as a header: the one given, or one made from it."""
    if session_id is None:
        return f"agent-{uuid.uuid4().hex}"
    name = str(session_id)
    is_header = name.isascii() and name.isprintable() and name == name.strip()
    if is_header and 0 < len(name) <= _MAX_ID_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    logger.info("agentkv: session id %.40r cannot be a header, agent-%s is used", name, digest)
    return f"agent-{digest}"


def _details(details: Mapping[str, Any]) -> dict[str, Any]:
    """What a pause or a call may carry, made to fit; anything else is left out."""
    return {
        "command": _text(details.get("command")),
        "timeout_s": _seconds(details.get("timeout_s")),
        "expected_wait_s": _seconds(details.get("expected_wait_s")),
    }


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = str(value)[:MAX_TEXT_CHARS]
    return text.encode("utf-8", "replace").decode() or None  # Lone surrogates are not JSON.


def _seconds(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return None
    return float(min(value, MAX_SECONDS))
