"""When time alone changes what there is to do: asked often, answered by a walk now and then."""

from __future__ import annotations

import math
from collections.abc import Callable

from agentkv.clock import Clock

_AGE_S_PER_PAUSE = 2e-4


class LookAhead:
    """Remembers the next moment for a while: the longer, the more pauses must be looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_at_s = -math.inf
        self._next_at_s: float | None = None

    def next_s(self, find_s: Callable[[], float | None], *, num_pauses: int) -> float | None:
        """Seconds until then, 0 at the least; `find_s` walks over all pauses. None: never."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_at_s >= num_pauses * _AGE_S_PER_PAUSE:
            self._looked_at_s = now_s
            found_s = find_s()
            self._next_at_s = None if found_s is None else now_s + found_s
        return None if self._next_at_s is None else max(0.0, self._next_at_s - now_s)
