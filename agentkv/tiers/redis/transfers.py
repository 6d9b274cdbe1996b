"""Moves entries between the caller's memory and the server.

What: `Transfers` asks for, stores, loads and drops entries in batches, within bounds of bytes on
the way and of time. Why it asks before it stores: a question costs little compared to a value that
is there already. Where: the store's calls end up here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from agentkv.tiers.base import MAX_KEY_BYTES, Entry, Failures
from agentkv.tiers.redis.bounds import ByteBudget
from agentkv.tiers.redis.entries import EntryCodec
from agentkv.tiers.redis.guard import GuardedCalls
from agentkv.tiers.redis.options import RedisOptions

_Chunk = Mapping[int, Entry]  # by their place in the call


class Transfers:
    """Thread-safe. Its calls block, up to `call_timeout_s`.

    `had` holds an answer per entry, set as soon as it is known.
    """

    def __init__(
        self, codec: EntryCodec, guard: GuardedCalls, options: RedisOptions, failures: Failures
    ) -> None:
        self._codec = codec
        self._guard = guard
        self._failures = failures
        self._call_timeout_s = options.call_timeout_s
        self._budget = ByteBudget(options.max_in_flight_bytes)
        self._lock = threading.Lock()
        self._num_entries = 0

    @property
    def num_entries(self) -> int:
        """Found at first and stored from here, less those dropped from here. Never blocks."""
        return self._num_entries

    def note_found(self, num_entries: int) -> None:
        """So many are there now."""
        with self._lock:
            self._num_entries = num_entries

    def contains(self, keys: Sequence[bytes], had: list[bool]) -> list[bool]:
        asked = {i: self._codec.exist([key]) for i, key in enumerate(keys) if is_key(key)}
        self._guard.run(list(asked.values()), self._deadline_s())
        for i, command in asked.items():
            had[i] = command.reply == self._codec.num_parts
        return had

    def store(self, entries: Sequence[Entry], had: list[bool]) -> list[bool]:
        self._each_chunk(entries, lambda chunk, end_s: self._store_chunk(chunk, had, end_s))
        return had

    def load(self, entries: Sequence[Entry], had: list[bool]) -> list[bool]:
        self._each_chunk(entries, lambda chunk, end_s: self._load_chunk(chunk, had, end_s))
        return had

    def delete(self, keys: Collection[bytes]) -> int:
        drops = [self._codec.drop(key) for key in set(keys) if is_key(key)]
        self._guard.run(drops, self._deadline_s())
        num_dropped = sum(isinstance(c.reply, int) and c.reply > 0 for c in drops)
        self._add(-num_dropped)
        return num_dropped

    def renew(self, keys: Collection[bytes]) -> None:
        renewals = [command for key in keys for command in self._codec.renew(key)]
        self._guard.run(renewals, self._deadline_s())

    def _store_chunk(self, entries: _Chunk, had: list[bool], deadline_s: float) -> None:
        if not self._has_none(entries, deadline_s):
            renewals = {i: self._codec.renew(entry.key) for i, entry in entries.items()}
            self._guard.run([c for commands in renewals.values() for c in commands], deadline_s)
            for i, commands in renewals.items():
                had[i] = all(command.reply == 1 for command in commands)
        missing = {i: entry for i, entry in entries.items() if not had[i]}
        if not missing or not self._guard.may_store:
            return
        stores = self._codec.stores(missing)
        self._guard.run([c for parts in stores.values() for c in parts], deadline_s)
        for i, parts in stores.items():
            had[i] = all(part.reply == b"OK" for part in parts)
        num_stored = sum(had[i] for i in stores)
        self._failures.count("not_stored", len(stores) - num_stored)
        self._add(num_stored)
        if num_stored == len(stores):
            self._guard.note_stored()

    def _has_none(self, entries: _Chunk, deadline_s: float) -> bool:
        """Whether none of them is there: mostly so, and one question where it can be asked."""
        if self._guard.is_sharded:
            return False
        question = self._codec.exist([entry.key for entry in entries.values()])
        self._guard.run([question], deadline_s)
        return question.reply == 0

    def _load_chunk(self, entries: _Chunk, had: list[bool], deadline_s: float) -> None:
        loads = {i: self._codec.loads(entry) for i, entry in entries.items()}
        self._guard.run([c for parts in loads.values() for c in parts], deadline_s)
        damaged: list[bytes] = []
        for i, parts in loads.items():
            fault = self._codec.fault(parts)
            had[i] = fault is None
            if fault is not None:
                self._failures.count(fault.name, 1 if fault.name else 0)
                if fault.is_damage:
                    damaged.append(entries[i].key)
        self._guard.run([self._codec.drop(key) for key in damaged], deadline_s)

    def _each_chunk(self, entries: Sequence[Entry], call: Callable[[_Chunk, float], None]) -> None:
        """Calls for as many entries at a time as may be on the way."""
        deadline_s = self._deadline_s()
        for chunk in self._chunks(entries):
            num_bytes = len(chunk) * self._codec.block_bytes
            if not self._guard.may_ask:
                return
            if not self._budget.take(num_bytes, deadline_s):
                self._failures.count("in_flight_full", len(chunk))
                return
            try:
                call(chunk, deadline_s)
            finally:
                self._budget.give_back(num_bytes)

    def _chunks(self, entries: Sequence[Entry]) -> Iterator[_Chunk]:
        sound = [(i, e) for i, e in enumerate(entries) if is_key(e.key) and self._codec.fits(e)]
        self._failures.count("bad_entry", len(entries) - len(sound))
        step = max(1, self._budget.num_bytes // self._codec.block_bytes)
        for start in range(0, len(sound), step):
            yield dict(sound[start : start + step])

    def _add(self, num_entries: int) -> None:
        with self._lock:
            self._num_entries = max(0, self._num_entries + num_entries)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._call_timeout_s


def is_key(key: bytes) -> bool:
    """Whether this can be a key of an entry."""
    return isinstance(key, bytes) and 0 < len(key) <= MAX_KEY_BYTES
