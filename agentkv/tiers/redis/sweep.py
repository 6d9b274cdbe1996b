"""Drops all entries of a namespace from all servers.

What: `Clearing` remembers that it was asked for until it is done, and keeps writers out meanwhile.
Why: KV of weights that have changed must not be found later, even if the server is away just now.
Why until a pass finds nothing: a value that was on its way when its call gave up may land late.
Where: the store's `clear`, and its retries.
"""

from __future__ import annotations

import threading

from agentkv.tiers.redis.bounds import WriteGate
from agentkv.tiers.redis.calls import Calls
from agentkv.tiers.redis.commands import Command
from agentkv.tiers.redis.replies import ErrorReply, LinkLost, Reply, Trouble

_KEYS_PER_SCAN = 1000
_MAX_PASSES = 4
_MAX_SCANS_TO_COUNT = 100

NOT_CLEARED = Trouble("clear_failed", "the old entries could not be dropped yet")


class Clearing:
    """Thread-safe. Writers pass through `gate`."""

    def __init__(self, calls: Calls, pattern: bytes) -> None:
        self.gate = WriteGate()
        self._calls = calls
        self._pattern = pattern
        self._lock = threading.Lock()
        self._num_wanted = self._num_done = 0

    @property
    def is_owed(self) -> bool:
        """Whether what lies on the server is not to be used. Never blocks."""
        return self._num_done < self._num_wanted

    def demand(self) -> None:
        """From now on it is owed."""
        with self._lock:
            self._num_wanted += 1

    def run(self, deadline_s: float) -> Trouble | None:
        """Blocks until the deadline; returns what kept it from being done.

        Stores that run must end first, or they would land after.
        """
        wanted = self._num_wanted
        try:
            if not self.gate.shut(deadline_s):
                return NOT_CLEARED
            sweep(self._calls, self._pattern, deadline_s)
        except LinkLost as error:
            return error.trouble
        finally:
            self.gate.open()
        with self._lock:
            self._num_done = max(self._num_done, wanted)
        return None


def sweep(calls: Calls, pattern: bytes, deadline_s: float) -> None:
    """Blocks until the deadline; raises `LinkLost` if it could not be done."""
    for _ in range(_MAX_PASSES):  # An engine that goes on storing must not hold this up for ever.
        if not sum(_sweep_once(calls, server, pattern, deadline_s) for server in calls.servers()):
            return


def count_keys(calls: Calls, pattern: bytes, deadline_s: float) -> int:
    """How many keys there are, as far as a look that is not too long shows. Raises `LinkLost`."""
    num_keys = 0
    for server in calls.servers():
        cursor = b"0"
        for _ in range(_MAX_SCANS_TO_COUNT):
            scan = _scan(cursor, pattern)
            calls.run_on(server, [scan], deadline_s)
            cursor, keys = _scanned(scan.reply)
            num_keys += len(keys)
            if cursor == b"0":
                break
    return num_keys


def _scan(cursor: bytes, pattern: bytes) -> Command:
    return Command("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_PER_SCAN)


def _sweep_once(calls: Calls, server: str, pattern: bytes, deadline_s: float) -> int:
    """Returns how many keys there were."""
    num_keys = 0
    cursor = b"0"
    while True:
        scan = _scan(cursor, pattern)
        calls.run_on(server, [scan], deadline_s)
        cursor, keys = _scanned(scan.reply)
        unlinks = [Command("UNLINK", key) for key in keys]
        calls.run_on(server, unlinks, deadline_s)
        for unlink in unlinks:
            _check(unlink.reply)
        num_keys += len(keys)
        if cursor == b"0":
            return num_keys


def _scanned(reply: Reply) -> tuple[bytes, list[bytes]]:
    _check(reply)
    if isinstance(reply, list) and len(reply) == 2:
        cursor, keys = reply
        if isinstance(cursor, bytes) and isinstance(keys, list):
            return cursor, [key for key in keys if isinstance(key, bytes)]
    return b"0", []


def _check(reply: Reply) -> None:
    if isinstance(reply, ErrorReply):
        raise LinkLost(reply.trouble)
