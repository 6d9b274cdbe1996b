"""The contract of a slow tier.

What: `TierStore` keeps the bytes of KV blocks under their keys, in the namespace of one model and
layout. Why so narrow: a tier must be free to fail. It may lose any entry at any time; it may never
return wrong bytes, raise, or hang for longer than its deadline. Where: `connectors` calls it from
threads of its own, never from the scheduler's.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

MAX_KEY_BYTES = 36
"""A block hash of 32 bytes and a group number of 4, the longest key vLLM makes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A KV block's key and the memory its bytes are read from or written to.

    `data` is flat, of format "B", and of the store's `block_bytes`; writable for a load.
    """

    key: bytes
    data: memoryview


@dataclass(frozen=True, slots=True)
class TierUsage:
    """What a tier holds of this namespace, and of what it may."""

    num_entries: int
    used_bytes: int
    capacity_bytes: int | None  # None: the server decides


class TierStore(Protocol):
    """A slow tier. Thread-safe. No call raises; after `close` all calls answer "no".

    Calls may block up to the tier's own deadline, except those that say they do not.
    """

    @property
    def name(self) -> str:
        """ "ssd" or "redis", as in metrics and settings."""

    @property
    def block_bytes(self) -> int:
        """The size of every entry."""

    @property
    def is_index_local(self) -> bool:
        """Whether `contains` answers from memory, without blocking."""

    @property
    def is_available(self) -> bool:
        """False while the tier is known to be broken: then it takes and has nothing.

        Never blocks.
        """

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Which of these the tier has, as far as it knows: a load may still fail."""

    def store(self, entries: Sequence[Entry]) -> list[bool]:
        """Writes entries; True for each that the tier now has, also if it had it before.

        May evict others. An entry becomes visible at once and whole, or not at all.
        """

    def load(self, entries: Sequence[Entry]) -> list[bool]:
        """Fills the entries' memory; False for each that is missing, damaged or late.

        The memory of a False one holds anything. A damaged entry is dropped.
        """

    def touch(self, keys: Collection[bytes]) -> None:
        """These were of use: evict them after others. Never blocks."""

    def delete(self, keys: Collection[bytes]) -> int:
        """Drops entries; returns how many there were."""

    def clear(self) -> None:
        """Drops all entries of this namespace."""

    def usage(self) -> TierUsage:
        """Never blocks."""

    def take_failures(self) -> Mapping[str, int]:
        """How often what went wrong since the last call, by reason. Never blocks."""

    def close(self) -> None:
        """Ends what runs and releases files and connections. Idempotent."""


@runtime_checkable
class WatchedStore(Protocol):
    """A store whose index is local, and which can tell what becomes of it. Never blocks."""

    def watch(self) -> list[bytes]:
        """The keys it has, reachable or not; from now on `take_lost` tells which have gone."""

    def take_lost(self) -> set[bytes]:
        """Keys of entries that have gone since the last call; they may be there again by now."""


class Failures:
    """Counts what went wrong, by reason. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, reason: str, by: int = 1) -> None:
        """Adds `by` to a reason of the tier's own, fixed vocabulary."""
        if by > 0:
            with self._lock:
                self._counts[reason] += by

    def take(self) -> Mapping[str, int]:
        """The counts since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts
