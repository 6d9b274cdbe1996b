"""The way to the engines: control messages out, replies back.

What: `ask` sends to one or all engines and waits a little for the replies; `tell` sends without
waiting, what is told meanwhile goes together in the next message. Why: a message is a request that
was aborted before it began (`notify_kv_transfer_request_rejected` of the engine client, an official
path), so it costs an engine step without tokens, and its reply is not certain to come here: vLLM's
statistics may be off, or go to another API process. That is what None means in a reply's place.
Where: between routes, middleware and ticker on one side and `engine_client` on the other.

Engines are known by their rank: the value of X-data-parallel-rank, 0 for the only one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentkv.clock import Clock
from agentkv.signals import CONTROL_KEY, MAX_EVENTS, ControlMessage, ControlReply, ScopedEvent

from .counters import Counters
from .mailbox import Mailbox, new_message_id
from .ticker import Ticker

MAX_QUEUED = 4096
MAX_UNHEARD = 3
"""Messages in a row without a reply after which nobody is kept waiting for one, until one comes."""


class EngineClient(Protocol):
    """The part of vLLM's engine client that is used. May raise, when the engine is dead."""

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        *,
        data_parallel_rank: int | None = None,
    ) -> None:
        """Submit a request that is aborted before it begins."""


class EngineUnreachableError(Exception):
    """The engine client refused a message: the engine is dead or the server is shutting down."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines behind this process. `first_index` is what vLLM's statistics call the first."""

    num_ranks: int = 1
    first_index: int = 0

    def has(self, engine_index: int) -> bool:
        """Whether the engine is behind this process: statistics may tell of others."""
        return 0 <= engine_index - self.first_index < self.num_ranks


class EngineLink:
    """Owned by the event loop of the API process."""

    def __init__(
        self,
        client: EngineClient,
        engines: Engines,
        mailbox: Mailbox,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self.engines = engines
        self._client = client
        self._mailbox = mailbox
        self._counters = counters
        self._num_unheard = 0
        self._queues: dict[int, deque[ScopedEvent]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker = Ticker(self._send_tick, clock)
        mailbox.listen(self._hear)

    @property
    def num_unasked(self) -> int:
        """See `Mailbox`."""
        return self._mailbox.num_unasked

    async def ask(
        self, messages: Mapping[int, ControlMessage], timeout_s: float
    ) -> dict[int, ControlReply | None]:
        """Send each engine its message; the replies that came in time.

        Raises EngineUnreachableError. The ids of the messages are replaced.
        """
        replies = await asyncio.gather(
            *(self._ask(rank, message, timeout_s) for rank, message in messages.items())
        )
        return dict(zip(messages, replies, strict=True))

    def ranks(self, rank: int | None) -> Sequence[int]:
        """The engines that a session may live on, given the rank its requests named, if any."""
        return range(self.engines.num_ranks) if rank is None else (rank,)

    def tell(self, event: ScopedEvent, rank: int | None) -> None:
        """Send an event and forget it: its reply tells nobody anything. Never raises."""
        for each in self.ranks(rank):
            queue = self._queues.get(each)
            if queue is not None:
                if len(queue) < MAX_QUEUED:
                    queue.append(event)
                else:
                    self._counters.problem("telling the engine", "it takes no more events")
                continue
            self._queues[each] = deque((event,))
            task = asyncio.get_running_loop().create_task(self._empty_queue(each))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _empty_queue(self, rank: int) -> None:
        queue = self._queues[rank]
        try:
            while queue:
                num_events = min(len(queue), MAX_EVENTS)
                events = tuple(queue.popleft() for _ in range(num_events))
                await self._send(rank, ControlMessage(id=new_message_id(), events=events))
        except EngineUnreachableError as error:
            self._counters.problem("telling the engine", error)
        finally:
            del self._queues[rank]

    async def _ask(
        self, rank: int, message: ControlMessage, timeout_s: float
    ) -> ControlReply | None:
        message = message.model_copy(update={"id": new_message_id()})
        if self._num_unheard >= MAX_UNHEARD:
            await self._send(rank, message)
            return None
        self._mailbox.expect(message.id)
        try:
            await self._send(rank, message)
        except EngineUnreachableError:
            self._mailbox.forget(message.id)
            raise
        reply = await self._mailbox.wait(message.id, timeout_s)
        if reply is None:
            self._num_unheard += 1
            self._counters.unanswered += 1
        return reply

    async def _send_tick(self, engine_index: int, message_id: str) -> None:
        rank = engine_index - self.engines.first_index
        try:
            await self._send(rank, ControlMessage(id=message_id))
            self._counters.ticks_sent += 1
        except EngineUnreachableError as error:
            self._counters.problem("ticking", error)

    async def _send(self, rank: int, message: ControlMessage) -> None:
        content = message.model_dump(mode="json", exclude_defaults=True)
        try:
            await self._client.notify_kv_transfer_request_rejected(
                message.id,
                {"agentkv": {CONTROL_KEY: content}},
                data_parallel_rank=rank if self.engines.num_ranks > 1 else None,
            )
        except Exception as error:
            raise EngineUnreachableError(f"{type(error).__name__}: {error}") from error

    def _hear(self, reply: ControlReply, engine_index: int) -> None:
        self._num_unheard = 0
        if self.engines.has(engine_index):
            self._ticker.hear(reply, engine_index)
