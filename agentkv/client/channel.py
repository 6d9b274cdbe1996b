"""The way of events to one server: a bounded queue and a thread that empties it.

What: `post` puts an event into the queue and returns; the thread sends batches in that order, and
heartbeats of long tools, and ends when there is nothing to do.
Why a thread for asyncio agents too: a tool that blocks the event loop would block a task that has
to tell of it, and the pause would be told when it is over.
Where: sessions with the same address share a channel (`channel_to`). A process made by fork starts
with an empty queue and a thread of its own: the parent sends what the parent posted.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

import httpx

from agentkv.client.delivery import Delivery, Limits, Outlook, Verdict, judge
from agentkv.signals import Event

logger = logging.getLogger(__name__)

EVENTS_PATH = "/v1/agentkv/events"
_LATE_AFTER_S = 0.25


@dataclass(frozen=True, slots=True)
class Address:
    """A server and the key to it. The URL has no `/v1` at its end."""

    url: str
    api_key: str | None = field(default=None, repr=False)


class Beating(Protocol):
    """Something that may have a tool running."""

    def beat(self, now_s: float) -> float | None:
        """Posts a heartbeat if one is due; returns when the next one is, None if no tool runs.

        Called by the channel's thread with the channel's lock held; never blocks.
        """


@dataclass(frozen=True, slots=True)
class _Queued:
    event: Event
    since_s: float


class Channel:
    """Guarded by `lock`, which its sessions use too: so events queue in the order they occur."""

    def __init__(self, address: Address, limits: Limits) -> None:
        self.address = address
        self.limits = limits
        self._seq = 0
        self._delivery = Delivery()
        self._told: set[str] = set()
        self._start_empty()

    def _start_empty(self) -> None:
        """Also after a fork: a lock may have been held and a thread been running in the parent."""
        self.lock = threading.Condition()
        self._outlook = Outlook(self.limits)
        self._queue: deque[_Queued] = deque()
        self._num_in_flight = 0
        self._beating: WeakSet[Beating] = WeakSet()
        self._thread: threading.Thread | None = None

    after_fork = _start_empty

    # --- for the agent's threads; none of these waits for the server, except `flush` ---

    def next_seq(self) -> int:
        """A number above all before, in this process and, by the clock, in those before it."""
        self._seq = max(self._seq + 1, time.time_ns() // 1000)
        return self._seq

    def post(self, event: Event) -> None:
        """Queues an event. To be called with the lock held."""
        now_s = time.monotonic()
        if not self._outlook.wants_events(now_s):
            self._drop(1)
            return
        if len(self._queue) >= self.limits.max_queued:
            self._queue.popleft()
            self._drop(1)
        self._queue.append(_Queued(event, now_s))
        self._wake()

    def watch(self, session: Beating) -> None:
        """Asks `session` for heartbeats until it has no tool running. With the lock held."""
        self._beating.add(session)
        if self._outlook.wants_events(time.monotonic()):
            self._wake()

    def flush(self, timeout_s: float) -> bool:
        """Waits until all is sent, not longer than told; False if it is not.

        Does not wait for a server that has failed.
        """
        deadline_s = time.monotonic() + timeout_s
        with self.lock:
            while self._is_worth_waiting():
                if not self.lock.wait(max(0.0, deadline_s - time.monotonic())):
                    break
            return not self._is_busy()

    def is_settled(self) -> bool:
        """Whether there is nothing that a flush would wait for."""
        with self.lock:
            return not self._is_worth_waiting()

    @property
    def delivery(self) -> Delivery:
        """What became of the events so far."""
        return self._delivery

    def _is_busy(self) -> bool:
        return bool(self._queue or self._num_in_flight)

    def _is_worth_waiting(self) -> bool:
        return self._is_busy() and self._outlook.wait_s(time.monotonic()) == 0

    def _drop(self, num_events: int) -> None:
        self._delivery = replace(self._delivery, dropped=self._delivery.dropped + num_events)

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="agentkv-events", daemon=True)
            thread.start()
            self._thread = thread
        self.lock.notify_all()

    # --- the thread ---

    def _run(self) -> None:
        try:
            with _http_client(self.address, self.limits) as client:
                while batch := self._next_batch():
                    self._settle(batch, *_send(client, batch))
        except Exception as error:  # The one net under the thread: the agent must not notice.
            with self.lock:
                self._thread = None
                self._drop(self._num_in_flight)
                self._num_in_flight = 0
                self._give_up(Verdict.REFUSED, f"events cannot be sent: {error!r}")
                self.lock.notify_all()

    def _next_batch(self) -> tuple[_Queued, ...]:
        """Waits for events; () when none came for a while and the thread is to end."""
        with self.lock:
            idle_since_s = time.monotonic()
            while True:
                now_s = time.monotonic()
                next_beat_s = self._beat(now_s)
                wait_s = self._outlook.wait_s(now_s)
                if self._queue and wait_s == 0:
                    if batch := self._take(now_s):
                        return batch
                    self.lock.notify_all()
                    continue
                if self._queue:
                    idle_since_s = now_s
                elif next_beat_s is None and now_s - idle_since_s >= self.limits.idle_s:
                    self._thread = None
                    return ()
                until_s = idle_since_s + self.limits.idle_s if next_beat_s is None else next_beat_s
                self.lock.wait(wait_s if self._queue else max(0.001, until_s - now_s))

    def _beat(self, now_s: float) -> float | None:
        """Lets sessions post their heartbeats; returns when the next one is due."""
        next_beat_s: float | None = None
        for session in list(self._beating):
            due_s = session.beat(now_s)
            if due_s is None:
                self._beating.discard(session)
            else:
                next_beat_s = due_s if next_beat_s is None else min(next_beat_s, due_s)
        return next_beat_s

    def _take(self, now_s: float) -> tuple[_Queued, ...]:
        """The next batch, without what is too old and without pauses that are over.

        Told late, a pause would be taken for the one after the turn that runs by now.
        """
        num_events = min(len(self._queue), self.limits.max_batch)
        batch: deque[_Queued] = deque()
        are_over: set[str | None] = set()
        for queued in reversed([self._queue.popleft() for _ in range(num_events)]):
            kind, age_s = queued.event.event, now_s - queued.since_s
            is_over = age_s > _LATE_AFTER_S and queued.event.session_id in are_over
            if kind in ("resume", "end"):
                are_over.add(queued.event.session_id)
                is_over = False
            if kind != "end" and (is_over or age_s > self.limits.max_age_s):
                self._drop(1)
            else:
                batch.appendleft(queued)
        self._num_in_flight = len(batch)
        return tuple(batch)

    def _settle(self, batch: tuple[_Queued, ...], verdict: Verdict, problem: str) -> None:
        """Accounts for a request that is over."""
        with self.lock:
            self._num_in_flight = 0
            if verdict is Verdict.TAKEN:
                self._outlook.note(verdict, time.monotonic())
                sent = self._delivery.sent + len(batch)
                self._delivery = replace(self._delivery, sent=sent, problem=None)
            else:
                room = self.limits.max_queued - len(self._queue)
                kept = batch[-room:] if verdict is Verdict.LATER and room > 0 else ()
                self._queue.extendleft(reversed(kept))
                self._drop(len(batch) - len(kept))
                self._give_up(verdict, problem)
            self.lock.notify_all()

    def _give_up(self, verdict: Verdict, problem: str) -> None:
        """Notes that the server did not take events, for now or for long."""
        self._outlook.note(verdict, time.monotonic())
        self._delivery = replace(self._delivery, problem=problem)
        if verdict in (Verdict.ABSENT, Verdict.REFUSED):
            self._drop(len(self._queue))
            self._queue.clear()
        if problem not in self._told and len(self._told) < 20:
            self._told.add(problem)
            level = logging.INFO if verdict is Verdict.ABSENT else logging.WARNING
            logger.log(level, "agentkv: %s: %s; the agent goes on", self.address.url, problem)


def _http_client(address: Address, limits: Limits) -> httpx.Client:
    headers = {} if address.api_key is None else {"Authorization": f"Bearer {address.api_key}"}
    # Reading the certificates takes longer than many a tool runs: only where there is TLS.
    is_tls = address.url.lower().startswith("https")
    timeout = httpx.Timeout(limits.request_timeout_s)
    return httpx.Client(base_url=address.url, headers=headers, timeout=timeout, verify=is_tls)


def _send(client: httpx.Client, batch: tuple[_Queued, ...]) -> tuple[Verdict, str]:
    events = [queued.event.model_dump(mode="json", exclude_defaults=True) for queued in batch]
    try:
        response = client.post(EVENTS_PATH, json={"events": events})
    except httpx.HTTPError as error:
        return Verdict.LATER, f"no answer ({type(error).__name__})"
    verdict = judge(response.status_code, response.content)
    if verdict is Verdict.TAKEN:
        return verdict, ""
    what = {
        Verdict.ABSENT: "no agentkv there",
        Verdict.REFUSED: "events are refused, is the API key right?",
        Verdict.FAULTY: f"an event was malformed: {response.text[:200]}",
    }.get(verdict, "events are not taken now")
    return verdict, f"{what} (HTTP {response.status_code})"


_channels: WeakValueDictionary[tuple[Address, Limits], Channel] = WeakValueDictionary()
_channels_lock = threading.Lock()


def channel_to(address: Address, limits: Limits) -> Channel:
    """The channel to a server, shared by all who name the same address and limits."""
    with _channels_lock:
        channel = _channels.get((address, limits))
        if channel is None:
            channel = _channels[address, limits] = Channel(address, limits)
        return channel


def _after_fork() -> None:
    global _channels_lock
    _channels_lock = threading.Lock()
    for channel in list(_channels.values()):
        channel.after_fork()


def _at_exit() -> None:
    """A program may end right after its last event."""
    for channel in list(_channels.values()):
        channel.flush(channel.limits.flush_s)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):  # Not on Windows, where clients may run.
    os.register_at_fork(after_in_child=_after_fork)
