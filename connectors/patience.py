"""How long a turn waits for what somebody else is loading or storing.

vLLM lets a turn wait whose blocks are on their way already, and asks again at every step. Without
a bound a copy that never ends would keep it waiting for ever; after it the turn computes instead.
"""

from __future__ import annotations

from agentkv.clock import Clock


class LoadPatience:
    """Owned by the scheduler thread."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._since_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._since_s)

    def is_over(self, request_id: str, *, is_told_to_wait: bool) -> bool:
        """Whether the turn has waited long enough; every look-up of its prefix must be told."""
        if not is_told_to_wait:
            self.forget(request_id)
            return False
        now_s = self._clock.monotonic_s()
        return now_s - self._since_s.setdefault(request_id, now_s) > self._timeout_s

    def forget(self, request_id: str) -> None:
        self._since_s.pop(request_id, None)
