"""What keeps a disk tier from wearing out its device, from trying in vain, and from closing early.

What: a cap on writes, a breaker for failing I/O, a watch for I/O that does not come back, and a
gate that knows what still runs. Why: a broken or slow disk must cost its callers next to nothing.
Where: `disk` asks them before it does I/O and tells them how it went. All are thread-safe and none
blocks, except `Gate.close`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentkv.clock import Clock

_BURST_S = 4.0
_FAILURES_TO_OPEN = 3
_FIRST_PAUSE_S = 1.0
_LAST_PAUSE_S = 60.0
_STALLED_AFTER_S = 10.0


class WriteRate:
    """A token bucket: at most `max_bytes_per_s` on average, a few seconds' worth at once."""

    def __init__(self, max_bytes_per_s: int | None, block_bytes: int, clock: Clock) -> None:
        self._max_bytes_per_s = max_bytes_per_s
        self._block_bytes = block_bytes
        self._clock = clock
        # A rate below one block per burst must still let a block through now and then.
        self._burst_bytes = max(float(block_bytes), (max_bytes_per_s or 0) * _BURST_S)
        self._left_bytes = self._burst_bytes
        self._since_s = clock.monotonic_s()
        self._lock = threading.Lock()

    def take(self, num_blocks: int) -> int:
        """How many of these blocks may be written now."""
        if self._max_bytes_per_s is None:
            return num_blocks
        with self._lock:
            now_s = self._clock.monotonic_s()
            earned_bytes = (now_s - self._since_s) * self._max_bytes_per_s
            self._since_s = now_s
            self._left_bytes = min(self._burst_bytes, self._left_bytes + earned_bytes)
            taken = min(num_blocks, int(self._left_bytes // self._block_bytes))
            self._left_bytes -= taken * self._block_bytes
            return taken

    def give_back(self, num_blocks: int) -> None:
        """These were not written after all."""
        with self._lock:
            left_bytes = self._left_bytes + num_blocks * self._block_bytes
            self._left_bytes = min(self._burst_bytes, left_bytes)


class Breaker:
    """Opens after failures in a row, for a second, then for twice as long, up to a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._num_failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._until_s = float("-inf")

    @property
    def is_open(self) -> bool:
        """Whether nothing is to be tried now."""
        return self._clock.monotonic_s() < self._until_s

    def note_success(self) -> None:
        with self._lock:
            self._num_failures = 0
            self._pause_s = _FIRST_PAUSE_S

    def note_failure(self) -> None:
        """The first failure after a pause opens it again."""
        with self._lock:
            self._num_failures += 1
            now_s = self._clock.monotonic_s()
            if self._num_failures >= _FAILURES_TO_OPEN and now_s >= self._until_s:
                self._until_s = now_s + self._pause_s
                self._pause_s = min(2 * self._pause_s, _LAST_PAUSE_S)


class StallWatch:
    """Knows whether some I/O has been running for far too long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._began_s: dict[int, float] = {}

    @contextmanager
    def io(self) -> Iterator[None]:
        """To be held around each system call that may wait for the device."""
        with self._lock:
            number = next(self._numbers)
            self._began_s[number] = self._clock.monotonic_s()
        try:
            yield
        finally:
            with self._lock:
                del self._began_s[number]

    @property
    def is_stalled(self) -> bool:
        with self._lock:
            # Entries are in the order in which they began.
            began_s = next(iter(self._began_s.values()), None)
        return began_s is not None and self._clock.monotonic_s() - began_s > _STALLED_AFTER_S


class Gate:
    """Lets calls in until it is closed; the last of them to leave does what is to follow."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_inside = 0
        self._is_closed = False
        self._then: Callable[[], None] | None = None

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @contextmanager
    def passing(self) -> Iterator[bool]:
        """Yields whether the caller may go on."""
        with self._changed:
            is_let_in = not self._is_closed
            self._num_inside += is_let_in
        try:
            yield is_let_in
        finally:
            if is_let_in:
                with self._changed:
                    self._num_inside -= 1
                    self._finish()

    def close(self, then: Callable[[], None], timeout_s: float) -> None:
        """Lets nobody in any more; waits, but not longer than told, until `then` has run."""
        with self._changed:
            if not self._is_closed:
                self._is_closed, self._then = True, then
                self._finish()
            self._changed.wait_for(lambda: self._then is None, timeout_s)

    def _finish(self) -> None:
        if self._num_inside == 0 and self._then is not None:
            then, self._then = self._then, None
            then()
            self._changed.notify_all()
