"""The chance that a pause is over by a moment: what a policy weighs.

What: `WaitCurve`, a cumulative distribution as points on a logarithmic scale of time.
Why: tool waits are heavy-tailed, often with two humps; what matters is the chance to be back within
some seconds and how long blocks are held on average until then. Where: part of a `WaitEstimate`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

SOON_S = 1e-4
"""No wait is told apart from one this short."""


@dataclass(frozen=True, slots=True)
class WaitCurve:
    """P(remaining wait <= times_s[i]) = chances[i].

    Times rise from above 0 and are finite, chances do not fall and are in 0..1; the last one is
    below 1 where the wait may outlive the curve, or where the session may never come back. Between
    two points the chance grows in proportion to the logarithm of time, and before the first one in
    proportion to time.
    """

    times_s: Sequence[float]
    chances: Sequence[float]

    def chance_within(self, seconds: float) -> float:
        """P(remaining wait <= seconds); beyond the last point nothing more is hoped for."""
        i = bisect_left(self.times_s, seconds)
        if i == len(self.times_s):
            return self.chances[-1]
        if i == 0:
            return self.chances[0] * max(0.0, seconds) / self.times_s[0]
        low_s, high_s = self.times_s[i - 1], self.times_s[i]
        share = math.log(seconds / low_s) / math.log(high_s / low_s)
        return self.chances[i - 1] + share * (self.chances[i] - self.chances[i - 1])

    def held_s(self) -> list[float]:
        """E[min(remaining wait, times_s[i])] for every point, in seconds."""
        held, total = [], 0.0
        before_s = before = 0.0
        for time_s, chance in zip(self.times_s, self.chances, strict=True):
            total += (time_s - before_s) * (1 - (before + chance) / 2)
            held.append(total)
            before_s, before = time_s, chance
        return held


def from_quantiles(p10_s: float, p50_s: float, p90_s: float) -> WaitCurve:
    """A curve through three quantiles; beyond the last nothing is known, nothing hoped for."""
    times_s: list[float] = []
    for seconds in (p10_s, p50_s, p90_s):
        floor_s = times_s[-1] * (1 + 1e-9) if times_s else SOON_S
        times_s.append(max(seconds, floor_s))
    return WaitCurve(tuple(times_s), (0.1, 0.5, 0.9))
