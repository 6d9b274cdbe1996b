"""What this process knows of an LMCache server's content.

What: the entries that it wrote, by their last use, and those that it knows to be empty.
Why: the server has no limit of its own and no command to delete; it ends when its memory does. An
entry overwritten with nothing gives its memory back, but the server goes on to say that it has it.
Where: one per `LMCacheStore`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

_MAX_EMPTY = 100_000


class Known:
    """Thread-safe, never blocks for long. `max_entries`: None for no limit."""

    def __init__(self, max_entries: int | None) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._written: OrderedDict[bytes, None] = OrderedDict()
        self._empty: OrderedDict[bytes, None] = OrderedDict()

    @property
    def num_written(self) -> int:
        return len(self._written)

    def touch(self, keys: Iterable[bytes]) -> None:
        """These were of use."""
        with self._lock:
            for key in keys:
                if key in self._written:
                    self._written.move_to_end(key)

    def is_empty(self, key: bytes) -> bool:
        return key in self._empty

    def note_written(self, keys: Iterable[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._empty.pop(key, None)
                self._written[key] = None
                self._written.move_to_end(key)

    def note_missing(self, keys: Iterable[bytes]) -> None:
        """The server does not have these."""
        with self._lock:
            for key in keys:
                self._written.pop(key, None)
                self._empty.pop(key, None)

    def note_empty(self, keys: Iterable[bytes]) -> None:
        """These were overwritten with nothing, by whomever."""
        with self._lock:
            for key in keys:
                self._written.pop(key, None)
                self._empty[key] = None
                self._empty.move_to_end(key)
            while len(self._empty) > _MAX_EMPTY:  # Asked for again, it is found empty again.
                self._empty.popitem(last=False)

    def room_for(self, num_entries: int) -> int:
        """How many of these may be written."""
        return num_entries if self._max_entries is None else min(num_entries, self._max_entries)

    def excess(self, num_new: int) -> list[bytes]:
        """The entries to give up for so many new ones: those unused for longest."""
        if self._max_entries is None:
            return []
        with self._lock:
            count = len(self._written) + num_new - self._max_entries
            return [key for key, _ in zip(self._written, range(count), strict=False)]

    def take_all(self) -> list[bytes]:
        """All that was written, forgotten from now on."""
        with self._lock:
            keys = list(self._written)
            self._written.clear()
            self._empty.clear()
        return keys
