"""Where time comes from.

Everything in the core takes `now_s` or a `Clock`, so tests and the simulator run the production
code with their own time. Monotonic seconds rule decisions; wall time is for log records only.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time. Both methods are cheap, never block and may be called from any thread."""

    def monotonic_s(self) -> float:
        """Seconds that never go back."""

    def wall_s(self) -> float:
        """Unix time in seconds, for records that leave the process."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()


class ManualClock:
    """A clock that moves when told to; wall and monotonic time agree."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def monotonic_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        self._now_s += seconds
