"""The connections to an LMCache server, and when to leave it alone.

What: `Links` lends connections and keeps a few for the next call; after a failure it answers
"no connection" at once for a while, which grows until a call succeeds.
Why: without the pause each call pays the timeout again. Where: one per `LMCacheStore`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from agentkv.clock import Clock
from agentkv.tiers.lmcache.wire import Link, LinkLost

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 30.0


class Links:
    """At most so many connections, opened at need. Thread-safe."""

    def __init__(
        self,
        server: str,
        connect: Callable[[float], Link],
        *,
        max_links: int,
        clock: Clock,
    ) -> None:
        self._server = server
        self._connect = connect
        self._max_links = max_links
        self._clock = clock
        self._freed = threading.Condition()
        self._idle: list[Link] = []
        self._num_links = 0
        self._is_closed = False
        self._pause_s = _FIRST_PAUSE_S
        self._paused_until_s: float | None = None
        self._is_told = False

    @property
    def is_available(self) -> bool:
        """False after `close`, and for a while after a failure. Never blocks."""
        until_s = self._paused_until_s
        return not self._is_closed and (until_s is None or self._clock.monotonic_s() >= until_s)

    def run(self, work: Callable[[Link], None], deadline_s: float) -> None:
        """Has `work` use a link. Blocks; raises `LinkLost`.

        Once more with a new link if an idle one turns out dead: `work` may run twice.
        """
        while True:
            link = self._take(deadline_s)
            link.deadline_s = deadline_s
            try:
                work(link)
            except LinkLost as error:
                self._drop(link)
                if link.was_used and error.reason == "connection_lost":
                    self._drop_idle()
                    continue
                self._begin_pause(error)
                raise
            except BaseException:  # In the middle of an exchange: the next would read its rest.
                self._drop(link)
                raise
            self._give_back(link)
            return

    def close(self) -> None:
        """Links in use are closed when their call ends, by its deadline."""
        with self._freed:
            self._is_closed = True
            self._freed.notify_all()
        self._drop_idle()

    def _take(self, deadline_s: float) -> Link:
        with self._freed:
            while not self._is_closed and not self._idle and self._num_links >= self._max_links:
                if not self._freed.wait(max(0.0, deadline_s - time.monotonic())):
                    raise LinkLost("links_busy", "all connections are busy")
            if self._is_closed:
                raise LinkLost("closed", "the store is closed")
            if self._idle:
                return self._idle.pop()
            self._num_links += 1
        try:
            return self._connect(deadline_s)
        except LinkLost as error:
            self._forget()
            self._begin_pause(error)
            raise
        except BaseException:
            self._forget()
            raise

    def _give_back(self, link: Link) -> None:
        link.was_used = True
        with self._freed:
            self._pause_s, self._paused_until_s = _FIRST_PAUSE_S, None
            is_back, self._is_told = self._is_told, False
            is_kept = not self._is_closed
            if is_kept:
                self._idle.append(link)
                self._freed.notify()
        if not is_kept:
            self._drop(link)
        if is_back:
            logger.info("agentkv: LMCache at %s is in use again", self._server)

    def _begin_pause(self, error: LinkLost) -> None:
        with self._freed:
            if self._is_closed or not self.is_available:
                return  # Another call's failure has begun it.
            self._paused_until_s = self._clock.monotonic_s() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
            is_news, self._is_told = not self._is_told, True
        if is_news:
            logger.warning("agentkv: LMCache at %s is not used for now: %s", self._server, error)

    def _drop(self, link: Link) -> None:
        link.close()
        self._forget()

    def _drop_idle(self) -> None:
        with self._freed:
            idle, self._idle = self._idle, []
        for link in idle:
            self._drop(link)

    def _forget(self) -> None:
        with self._freed:
            self._num_links -= 1
            self._freed.notify()
