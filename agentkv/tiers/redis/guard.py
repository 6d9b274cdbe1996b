"""Runs commands so that nothing is raised, and learns from what comes back.

What: `GuardedCalls` counts what went wrong, opens the breaker for servers that fail, and pauses
stores or loads that the server refuses. Where: between the store and `calls`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from agentkv.clock import Clock
from agentkv.tiers.base import Failures
from agentkv.tiers.redis.breaker import Breaker, BreakerState, Pause
from agentkv.tiers.redis.calls import Calls
from agentkv.tiers.redis.commands import Command, LoadPart, PartCommand
from agentkv.tiers.redis.options import RedisOptions
from agentkv.tiers.redis.replies import STOPS_ALL, STOPS_WRITES, ErrorReply, LinkLost, Trouble

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 30.0
_LOCAL_REASONS = frozenset({"closed", "links_busy"})  # These tell nothing of the server.


class GuardedCalls:
    """Thread-safe. `check` says what keeps the tier from being used; it may block."""

    def __init__(
        self,
        server: str,
        calls: Calls,
        options: RedisOptions,
        failures: Failures,
        clock: Clock,
        check: Callable[[], Trouble | None],
    ) -> None:
        self._server = server
        self._calls = calls
        self._failures = failures
        self._breaker = Breaker(
            server, check, first_retry_s=options.first_retry_s, max_retry_s=options.max_retry_s
        )
        self._store_pause = Pause(clock, _FIRST_PAUSE_S, _MAX_PAUSE_S)
        self._load_pause = Pause(clock, _FIRST_PAUSE_S, _MAX_PAUSE_S)
        self._told: set[str] = set()

    @property
    def state(self) -> BreakerState:
        return self._breaker.state

    @property
    def may_ask(self) -> bool:
        """Whether the server is worth asking at all. Never blocks."""
        return not self._breaker.is_open

    @property
    def is_sharded(self) -> bool:
        """Whether one command cannot speak of several entries."""
        return self._calls.is_sharded

    @property
    def may_load(self) -> bool:
        return self.may_ask and not self._load_pause.is_on

    @property
    def may_store(self) -> bool:
        return self.may_ask and not self._store_pause.is_on

    def run(self, commands: Sequence[Command], deadline_s: float) -> None:
        """Blocks until the deadline. Commands that got no reply stay `UNANSWERED`."""
        if not commands or not self.may_ask:
            return
        is_data = isinstance(commands[0], PartCommand)
        try:
            self._calls.run(commands, deadline_s)
        except LinkLost as error:
            self._note_lost(error, is_data)
        else:
            self._breaker.note_success(is_data=is_data)
        self._note_refusals(commands)

    def note_stored(self) -> None:
        """The server took all values of a call."""
        self._store_pause.end()

    def give_up(self, trouble: Trouble) -> None:
        """Opens the breaker."""
        self._failures.count(trouble.reason)
        self._breaker.note_failure(trouble, at_once=True)
        self._calls.drop_idle()

    def close(self, timeout_s: float) -> None:
        self._breaker.close(timeout_s)

    def _note_lost(self, error: LinkLost, is_data: bool) -> None:
        trouble = error.trouble
        if trouble.reason != "closed":
            self._failures.count(trouble.reason)
        if trouble.reason not in _LOCAL_REASONS:
            self._breaker.note_failure(trouble, at_once=error.is_connect, is_data=is_data)
            if self._breaker.is_open:
                self._calls.drop_idle()

    def _note_refusals(self, commands: Sequence[Command]) -> None:
        refused = [(c, c.reply) for c in commands if isinstance(c.reply, ErrorReply)]
        for reply, num_times in Counter(reply for _, reply in refused).items():
            self._failures.count(reply.reason, num_times)
            if reply.code in STOPS_ALL:
                self._breaker.note_failure(reply.trouble, at_once=True)
                self._calls.drop_idle()
            elif reply.code in STOPS_WRITES and reply.code not in self._told:
                self._told.add(reply.code)
                logger.warning("agentkv: Redis at %s: %s", self._server, reply.trouble.text)
        for command, reply in refused:
            if reply.code in STOPS_WRITES:
                is_load = isinstance(command, LoadPart)
                (self._load_pause if is_load else self._store_pause).begin()
