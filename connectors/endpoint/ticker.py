"""Tells an idle engine what time it is, while it has pauses open and only then.

What: `TickPlan` says when which engine is due, from what the engines' replies ask for; `Ticker`
sends. Why: an idle engine blocks without a time-out, so a held pause would never be decided anew
and nothing be fetched before a tool returns. The engine names the interval (it grows as pauses
age); the plan keeps to 10 ticks a second over all engines and one on its way at a time, and any
other message tells the time as well.
Where: hears every reply through the mailbox. An engine that asks for nothing gets nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentkv.clock import Clock
from agentkv.signals import ControlReply

from .mailbox import new_message_id

MIN_INTERVAL_S = 0.1
REPLY_TIMEOUT_S = 2.0
MAX_LOST = 5
"""Ticks in a row without a reply, each twice as long after the other, until an engine is given up.
It is taken up again with its next reply."""


class TickPlan:
    """When the next tick is due. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._due_s: dict[int, float] = {}
        self._num_lost: dict[int, int] = {}
        self._on_its_way: tuple[int, float] | None = None
        self._last_sent_s = float("-inf")

    def told(self, engine_index: int, tick_in_s: float | None, now_s: float) -> None:
        """An engine has replied, to whatever it was: what it wants now replaces what it wanted."""
        self._num_lost.pop(engine_index, None)
        if tick_in_s is None:
            self._due_s.pop(engine_index, None)
        else:
            self._due_s[engine_index] = now_s + max(0.0, tick_in_s)

    def arrived(self) -> None:
        """The reply to the tick on its way has come."""
        self._on_its_way = None

    def next_s(self) -> float | None:
        """When to call `take_due` next, None: not before an engine has replied."""
        if self._on_its_way is not None:
            return self._on_its_way[1] + REPLY_TIMEOUT_S
        if not self._due_s:
            return None
        return max(min(self._due_s.values()), self._last_sent_s + MIN_INTERVAL_S)

    def take_due(self, now_s: float) -> int | None:
        """The engine to tick now, if any: it is then on its way."""
        self._give_up_late(now_s)
        next_s = self.next_s()
        if self._on_its_way is not None or next_s is None or now_s < next_s:
            return None
        engine_index = min(self._due_s, key=self._due_s.__getitem__)
        del self._due_s[engine_index]
        self._on_its_way = (engine_index, now_s)
        self._last_sent_s = now_s
        return engine_index

    def _give_up_late(self, now_s: float) -> None:
        if self._on_its_way is None:
            return
        engine_index, sent_s = self._on_its_way
        if now_s < sent_s + REPLY_TIMEOUT_S:
            return
        self._on_its_way = None
        num_lost = self._num_lost.get(engine_index, 0) + 1
        self._num_lost[engine_index] = num_lost
        if num_lost < MAX_LOST:
            self._due_s.setdefault(engine_index, now_s + REPLY_TIMEOUT_S * 2**num_lost)


class Ticker:
    """Sends what the plan says, by timers of the event loop: no task lives between ticks.

    `send` sends an empty message with this id to an engine; it does not raise.
    """

    def __init__(self, send: Callable[[int, str], Awaitable[None]], clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._plan = TickPlan()
        self._timer: asyncio.TimerHandle | None = None
        self._tick_id = ""
        self._task: asyncio.Future[None] | None = None

    def hear(self, reply: ControlReply, engine_index: int) -> None:
        """A listener of the mailbox."""
        self._plan.told(engine_index, reply.tick_in_s, self._clock.monotonic_s())
        if self._tick_id and reply.id == self._tick_id:
            self._plan.arrived()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (next_s := self._plan.next_s()) is not None:
            delay_s = max(0.0, next_s - self._clock.monotonic_s())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        engine_index = self._plan.take_due(self._clock.monotonic_s())
        if engine_index is not None:
            self._tick_id = new_message_id()
            # Kept: the event loop itself does not keep a task alive.
            self._task = asyncio.ensure_future(self._send(engine_index, self._tick_id))
        self._arm()
