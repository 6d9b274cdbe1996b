"""The tier on a Redis or Valkey server, shared by all engines of a namespace.

What: `RedisStore` is a `TierStore`. An entry lies there as one or a few values, each with a header
that names its key and checks its bytes (`values`); all parts must be of one write.
Why no index here: others write and the server evicts, so `contains` asks the server.
How it fails: as a miss, counted. A server that does not answer is left alone until it does
(`breaker`); one that is full or read-only gets no values for a while and still serves loads.
Where: made from the settings; the connector calls it from threads of its own.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from agentkv.clock import Clock, SystemClock
from agentkv.tiers.base import Entry, Failures, TierUsage
from agentkv.tiers.namespace import Namespace
from agentkv.tiers.redis.breaker import BreakerState
from agentkv.tiers.redis.calls import Calls
from agentkv.tiers.redis.entries import EntryCodec
from agentkv.tiers.redis.guard import GuardedCalls
from agentkv.tiers.redis.manifest import announcement, namespaces_listed
from agentkv.tiers.redis.options import RedisOptions
from agentkv.tiers.redis.replies import LinkLost, Trouble
from agentkv.tiers.redis.sweep import NOT_CLEARED, Clearing, count_keys
from agentkv.tiers.redis.touch import TouchQueue
from agentkv.tiers.redis.transfers import Transfers, is_key
from agentkv.tiers.redis.url import RedisAccess, parse_address
from agentkv.tiers.redis.values import DEFAULT_VALUE_BYTES

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_ANNOUNCE_EVERY_S = 300.0
_RETRIED_CLEAR_TIMEOUT_S = 60.0


class RedisStore:
    """See `TierStore`, which this is. Blocks at most about `call_timeout_s` per call.

    Raises `ConfigError` for what the user must mend; a server that is not there is not that.
    """

    def __init__(
        self,
        url: str,
        *,
        block_bytes: int,
        namespace: Namespace,
        username: str | None = None,
        password: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        sentinel_username: str | None = None,
        sentinel_password: str | None = None,
        ttl_s: float = 86400.0,
        value_bytes: int = DEFAULT_VALUE_BYTES,
        connect_timeout_s: float = 1.0,
        timeout_s: float = 2.0,
        call_timeout_s: float = 5.0,
        num_connections: int = 4,
        max_in_flight_bytes: int = 256 << 20,
        first_retry_s: float = 0.5,
        max_retry_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        address = parse_address(url)
        access = RedisAccess(
            username, password, ca_file, cert_file, key_file, sentinel_username, sentinel_password
        )
        self._options = RedisOptions(
            ttl_s=ttl_s,
            value_bytes=value_bytes,
            connect_timeout_s=connect_timeout_s,
            timeout_s=timeout_s,
            call_timeout_s=call_timeout_s,
            num_connections=num_connections,
            max_in_flight_bytes=max_in_flight_bytes,
            first_retry_s=first_retry_s,
            max_retry_s=max_retry_s,
        )
        self._address = address
        self._namespace = namespace
        self._clock = clock or SystemClock()
        self._failures = Failures()
        self._ttl_ms = int(self._options.ttl_s * 1000)
        self._codec = EntryCodec(
            namespace.digest, block_bytes, self._options.value_bytes, self._ttl_ms
        )
        self._calls = Calls(address, access, self._options)
        self._guard = GuardedCalls(
            str(address), self._calls, self._options, self._failures, self._clock, self._check
        )
        self._transfers = Transfers(self._codec, self._guard, self._options, self._failures)
        self._clearing = Clearing(self._calls, self._codec.pattern)
        self._touches = TouchQueue(self._send_touches)
        self._lock = threading.Lock()
        self._is_closed = False
        self._has_told_fault = False
        self._announced_s: float | None = None
        if (trouble := self._check()) is not None:
            self._guard.give_up(trouble)
        else:
            self._safely(None, self._count)

    def __repr__(self) -> str:
        return f"RedisStore({self._address}, namespace {self._namespace.digest})"

    @property
    def name(self) -> str:
        return "redis"

    @property
    def block_bytes(self) -> int:
        return self._codec.block_bytes

    @property
    def is_index_local(self) -> bool:
        return False

    @property
    def is_available(self) -> bool:
        """Also False until a `clear` that could not be done has been made up for."""
        return not self._is_closed and not self._clearing.is_owed and self._guard.may_ask

    @property
    def state(self) -> BreakerState:
        """Whether and why the server is left alone."""
        return self._guard.state

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """All parts are there; whether they are sound, a load will see."""
        had = [False] * len(keys)
        if not self.is_available or not self._guard.may_load:
            return had
        return self._safely(had, lambda: self._transfers.contains(keys, had))

    def store(self, entries: Sequence[Entry]) -> list[bool]:
        """An entry that is there already is not sent again, but lives longer."""
        had = [False] * len(entries)
        if not self.is_available or not self._guard.may_store or not self._clearing.gate.enter():
            return had
        try:
            if not self._clearing.is_owed:  # It may have come to be since that was asked.
                self._announce_again()
                self._safely(had, lambda: self._transfers.store(entries, had))
        finally:
            self._clearing.gate.leave()
        return had

    def load(self, entries: Sequence[Entry]) -> list[bool]:
        had = [False] * len(entries)
        if not self.is_available or not self._guard.may_load:
            return had
        return self._safely(had, lambda: self._transfers.load(entries, had))

    def touch(self, keys: Collection[bytes]) -> None:
        if self.is_available:
            known = [key for key in keys if is_key(key)]
            self._failures.count("touch_dropped", self._touches.add(known))

    def delete(self, keys: Collection[bytes]) -> int:
        if not self.is_available:
            return 0
        return self._safely(0, lambda: self._transfers.delete(keys))

    def clear(self) -> None:
        """What cannot be dropped now is dropped as soon as the server can be reached.

        Until then this store has and takes nothing.
        """
        self._clearing.demand()
        self._transfers.note_found(0)
        self._touches.forget()
        if self._is_closed:
            return
        trouble: Trouble | None = NOT_CLEARED
        if self._guard.may_ask:
            trouble = self._make_up_for_clear(self._options.call_timeout_s)
        if trouble is not None:
            self._guard.give_up(trouble)

    def usage(self) -> TierUsage:
        """What it found at its start and has put there since, less what it has dropped.

        What others put or dropped later is not in it: asking would block.
        """
        num_entries = self._transfers.num_entries
        return TierUsage(num_entries, num_entries * self.block_bytes, None)

    def take_failures(self) -> Mapping[str, int]:
        return self._failures.take()

    def other_namespaces(self) -> list[Namespace]:
        """Other namespaces with entries on this server, up to 64. Blocks."""
        none: list[Namespace] = []
        if not self.is_available:
            return none
        deadline_s = self._deadline_s()
        return self._safely(
            none,
            lambda: namespaces_listed(self._namespace, lambda c: self._guard.run(c, deadline_s)),
        )

    def close(self) -> None:
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        if self._clearing.is_owed:
            logger.warning("agentkv: %r could not be cleared before it was closed", self)
        self._calls.close()
        self._guard.close(self._options.call_timeout_s)
        self._touches.close(self._options.call_timeout_s)

    # --- now and then ---

    def _check(self) -> Trouble | None:
        """What keeps the tier from being used; makes up for a `clear` that is owed."""
        failed: Trouble | None = _CHECK_FAILED
        trouble = self._safely(failed, lambda: self._calls.check(self._deadline_s()))
        if trouble is None and self._clearing.is_owed:
            trouble = self._make_up_for_clear(_RETRIED_CLEAR_TIMEOUT_S)
        self._announced_s = None
        return trouble

    def _count(self) -> None:
        deadline_s = self._deadline_s()
        with contextlib.suppress(LinkLost):  # Not every user may look around.
            num_entries = count_keys(self._calls, self._codec.entry_pattern, deadline_s)
            self._transfers.note_found(num_entries)

    def _make_up_for_clear(self, timeout_s: float) -> Trouble | None:
        failed: Trouble | None = NOT_CLEARED
        deadline_s = time.monotonic() + timeout_s
        return self._safely(failed, lambda: self._clearing.run(deadline_s))

    def _announce_again(self) -> None:
        """Puts the namespace on the server's list, if that was not done lately."""
        now_s = self._clock.monotonic_s()
        every_s = min(_ANNOUNCE_EVERY_S, self._options.ttl_s / 4)
        if self._announced_s is None or now_s - self._announced_s >= every_s:
            self._announced_s = now_s
            self._guard.run(announcement(self._namespace, self._ttl_ms), self._deadline_s())

    def _send_touches(self, keys: list[bytes]) -> None:
        if self.is_available:
            self._safely(None, lambda: self._transfers.renew(keys))

    def _deadline_s(self) -> float:
        return time.monotonic() + self._options.call_timeout_s

    def _safely(self, otherwise: _T, call: Callable[[], _T]) -> _T:
        """The one net under every call; what is known to go wrong is handled below, by its kind."""
        try:
            return call()
        except Exception:
            # The contract: no call of a tier raises. They run in threads of the connector's; let
            # through, a fault of ours would cost a job its other blocks, and of `touch` the thread.
            # Counted as "internal" (`agentkv:tier_failures`) and logged with its place, once.
            self._failures.count("internal")
            level = logging.DEBUG if self._has_told_fault else logging.WARNING
            self._has_told_fault = True
            logger.log(level, "agentkv: a fault in the Redis tier", exc_info=True)
            return otherwise


_CHECK_FAILED = Trouble("internal", "it could not be tried")
