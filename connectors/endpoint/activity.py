"""Whether requests pass through this API process. Pure.

Why: while none does and no engine says anything, nothing changes in the engines, and those who
watch need not wake them. Where: counted by `middleware`, asked by `last_answers`.
"""

from __future__ import annotations


class Activity:
    """Owned by the event loop. Times are monotonic seconds.

    Requests that only look (GET, HEAD, OPTIONS) do not count.
    """

    def __init__(self) -> None:
        self._num_running = 0
        self._last_s = float("-inf")

    def begin(self) -> None:
        """A request has come."""
        self._num_running += 1

    def end(self, now_s: float) -> None:
        """Its reply is complete, or it was given up."""
        self._num_running -= 1
        self._last_s = now_s

    def last_s(self, now_s: float) -> float:
        """When the last request passed: now, if one is being answered."""
        return now_s if self._num_running else self._last_s
