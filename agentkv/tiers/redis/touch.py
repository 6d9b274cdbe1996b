"""Renews the lifetime of entries that were of use, some time later and many at once.

What: `TouchQueue` collects keys; a thread, which runs only while there are some, sends them.
Why: a touch must not wait for a server, and one entry is touched by many requests in a row.
Where: one per store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

_MAX_KEYS = 65536
_MAX_BATCH = 2048


class TouchQueue:
    """Thread-safe. `send` is called by the thread, may block and must not raise."""

    def __init__(self, send: Callable[[list[bytes]], None], delay_s: float = 0.25) -> None:
        self._send = send
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._keys: dict[bytes, None] = {}
        self._thread: threading.Thread | None = None

    def add(self, keys: Collection[bytes]) -> int:
        """Queues keys; returns how many there was no room for. Does not block."""
        with self._lock:
            if self._has_ended.is_set():
                return 0
            num_refused = 0
            for key in keys:
                if len(self._keys) < _MAX_KEYS:
                    self._keys[key] = None
                elif key not in self._keys:
                    num_refused += 1
            if self._keys and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="agentkv-redis-touch", daemon=True
                )
                self._thread.start()
            return num_refused

    def forget(self) -> None:
        """Drops what is queued."""
        with self._lock:
            self._keys.clear()

    def close(self, timeout_s: float) -> None:
        """Ends the thread; waits for it not longer than told."""
        with self._lock:
            self._has_ended.set()
            self._keys.clear()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            self._has_ended.wait(self._delay_s)
            with self._lock:
                batch = list(self._keys)[:_MAX_BATCH]
                for key in batch:
                    del self._keys[key]
                if not batch:
                    self._thread = None
                    return
            self._send(batch)
