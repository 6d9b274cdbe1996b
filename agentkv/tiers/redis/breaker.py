"""Stops asking a server that has failed, and finds out when it is back.

What: `Breaker` opens after failures; while it is open every call of the store answers "no" at once,
and a thread, which runs only then, tries the server at growing intervals. `Pause` does the same for
one kind of command, without a thread. Why: without it each request pays the timeout again.
Where: one breaker and two pauses per store.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from agentkv.clock import Clock
from agentkv.tiers.redis.replies import Trouble

logger = logging.getLogger(__name__)

_FAILURES_TO_OPEN = 3


@dataclass(frozen=True, slots=True)
class BreakerState:
    """What a breaker knows."""

    is_open: bool
    reason: str | None  # why it is open
    num_openings: int


class Breaker:
    """Thread-safe. `check` is called by its thread and says what still is wrong; it may block."""

    def __init__(
        self,
        server: str,
        check: Callable[[], Trouble | None],
        *,
        first_retry_s: float,
        max_retry_s: float,
    ) -> None:
        self._server = server
        self._check = check
        self._first_retry_s = first_retry_s
        self._max_retry_s = max_retry_s
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._retry_s = first_retry_s
        self._num_failures = {False: 0, True: 0}  # in a row; of questions, of data
        self._num_openings = 0
        self._trouble: Trouble | None = None
        self._must_check_again = False
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        """Never blocks."""
        return self._trouble is not None

    @property
    def state(self) -> BreakerState:
        """Never blocks for long."""
        with self._lock:
            reason = None if self._trouble is None else self._trouble.reason
            return BreakerState(self._trouble is not None, reason, self._num_openings)

    def note_success(self, *, is_data: bool) -> None:
        """A call got its answers. Questions say nothing of how data fares."""
        with self._lock:
            if self._trouble is None:
                self._num_failures[False] = 0
                if is_data:
                    self._num_failures[True] = 0
                    self._retry_s = self._first_retry_s

    def note_failure(self, trouble: Trouble, *, at_once: bool, is_data: bool = False) -> None:
        """A call got none; opens at the third in a row, or at once."""
        with self._lock:
            self._num_failures[is_data] += 1
            self._must_check_again = True
            is_due = at_once or self._num_failures[is_data] >= _FAILURES_TO_OPEN
            if not is_due or self._trouble is not None or self._has_ended.is_set():
                return
            self._trouble = trouble
            self._num_openings += 1
            self._thread = threading.Thread(
                target=self._run, name="agentkv-redis-retry", daemon=True
            )
            self._thread.start()
        self._tell(trouble)

    def close(self, timeout_s: float) -> None:
        """Ends the thread; waits for it not longer than told."""
        self._has_ended.set()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        told = {self._trouble}
        while not self._has_ended.wait(self._next_wait_s()):
            self._must_check_again = False
            trouble = self._check()
            if trouble is None:
                with self._lock:
                    if self._must_check_again:  # Something went wrong that it did not look for.
                        continue
                    self._trouble = None
                    self._num_failures = {False: 0, True: 0}
                    self._thread = None
                logger.info("agentkv: Redis at %s is in use again", self._server)
                return
            if trouble not in told and not self._has_ended.is_set():
                told.add(trouble)
                self._trouble = trouble
                self._tell(trouble)

    def _next_wait_s(self) -> float:
        """Half to all of the interval, so that many engines do not return at the same moment.

        The interval grows until data moves: a server that only answers pings is not to be trusted.
        """
        with self._lock:
            retry_s = self._retry_s
            self._retry_s = min(2 * retry_s, self._max_retry_s)
        return retry_s * random.uniform(0.5, 1.0)

    def _tell(self, trouble: Trouble) -> None:
        logger.warning(
            "agentkv: Redis at %s is not used: %s. It is tried again in the background",
            self._server,
            trouble.text,
        )


class Pause:
    """For how long a kind of command is left alone. Thread-safe, never blocks."""

    def __init__(self, clock: Clock, first_s: float, max_s: float) -> None:
        self._clock = clock
        self._first_s = first_s
        self._max_s = max_s
        self._lock = threading.Lock()
        self._next_s = first_s
        self._until_s: float | None = None

    @property
    def is_on(self) -> bool:
        until_s = self._until_s
        return until_s is not None and self._clock.monotonic_s() < until_s

    def begin(self) -> None:
        """Twice as long as the last, if nothing succeeded since."""
        with self._lock:
            if not self.is_on:
                self._until_s = self._clock.monotonic_s() + self._next_s
                self._next_s = min(2 * self._next_s, self._max_s)

    def end(self) -> None:
        """A command of this kind succeeded."""
        if self._until_s is not None:
            with self._lock:
                self._until_s = None
                self._next_s = self._first_s
