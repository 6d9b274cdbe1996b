"""What keeps calls apart and within bounds: bytes on the way, stores while the tier is cleared.

Where: the store passes each call through both.
"""

from __future__ import annotations

import threading
import time


class ByteBudget:
    """At most so many bytes at once over all threads; one call may have all. Thread-safe."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._num_free = num_bytes
        self._freed = threading.Condition()

    def take(self, num_bytes: int, deadline_s: float) -> bool:
        """Waits for room, not beyond the deadline; False if there was none."""
        num_bytes = min(num_bytes, self.num_bytes)
        with self._freed:
            while self._num_free < num_bytes:
                if not self._freed.wait(max(0.0, deadline_s - time.monotonic())):
                    return False
            self._num_free -= num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        """What was taken."""
        with self._freed:
            self._num_free += min(num_bytes, self.num_bytes)
            self._freed.notify_all()


class WriteGate:
    """Lets writers pass until it is shut; shutting waits for those inside. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_inside = 0
        self._num_shut = 0

    def enter(self) -> bool:
        """Whether a writer may go on; it must `leave` then. Does not block."""
        with self._changed:
            if self._num_shut:
                return False
            self._num_inside += 1
            return True

    def leave(self) -> None:
        with self._changed:
            self._num_inside -= 1
            self._changed.notify_all()

    def shut(self, deadline_s: float) -> bool:
        """Keeps new writers out; whether all are out by the deadline. Must be opened after."""
        with self._changed:
            self._num_shut += 1
            while self._num_inside:
                if not self._changed.wait(max(0.0, deadline_s - time.monotonic())):
                    return False
            return True

    def open(self) -> None:
        with self._changed:
            self._num_shut -= 1
