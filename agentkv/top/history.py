"""The last minutes of looks: what sparklines draw, and what "+n" counts from.

A server that was started anew begins a new history: its counters begin at 0, and a difference over
that would be a number of nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agentkv.top.figures import Counted, Figures

WINDOW_S: Final = 300.0
Value = Callable[[Figures], float | None]


@dataclass(frozen=True, slots=True)
class _Moment:
    at_s: float
    figures: Figures


class History:
    """Looks of the last WINDOW_S seconds, the oldest first."""

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque()

    def add(self, at_s: float, figures: Figures) -> None:
        """`at_s` on the monotonic clock, later than all before."""
        if self._moments and _is_new_server(self._moments[-1].figures, figures):
            self._moments.clear()
        self._moments.append(_Moment(at_s, figures))
        while self._moments[0].at_s < at_s - WINDOW_S:
            self._moments.popleft()

    @property
    def span_s(self) -> float:
        """From the oldest look to the newest."""
        return self._moments[-1].at_s - self._moments[0].at_s if self._moments else 0.0

    def recent(self) -> Counted | None:
        """What was counted in that time; None with fewer than two looks."""
        if len(self._moments) < 2:
            return None
        newest = self._moments[-1].figures.counted
        return newest.since(self._moments[0].figures.counted)

    def series(self, value: Value, num_bins: int) -> list[float | None]:
        """The mean in each of so many equal parts of the window, the newest last; None: no look."""
        sums, counts = [0.0] * num_bins, [0] * num_bins
        now_s = self._moments[-1].at_s if self._moments else 0.0
        for moment in self._moments:
            found = value(moment.figures)
            if found is None:
                continue
            age = min(num_bins - 1, int((now_s - moment.at_s) / WINDOW_S * num_bins))
            sums[num_bins - 1 - age] += found
            counts[num_bins - 1 - age] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


def _is_new_server(old: Figures, new: Figures) -> bool:
    return old.started_s != new.started_s or new.counted.has_gone_back(old.counted)
