"""From seconds to rates, and from two series of one run to a ratio.

Why medians: one round in which another process took the disk must not decide. The spread tells how
much a round differs from the next; a ratio's spread is that of the rounds' own ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Rate:
    """GB/s (10^9 bytes) over the rounds."""

    median: float
    p10: float
    p90: float
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, num_bytes: int, seconds: Sequence[float]) -> Rate:
        """Of `num_bytes` moved in each round."""
        rates = [num_bytes / each / 1e9 for each in seconds]
        return cls(*_spread(rates), tuple(round(rate, 4) for rate in rates))


@dataclass(frozen=True, slots=True)
class RateRatio:
    """How many times as fast as a peer: the ratio of the medians; the spread of the rounds."""

    ratio: float
    p10: float
    p90: float

    @classmethod
    def of(cls, ours: Rate, peer: Rate) -> RateRatio:
        """Of two series of the same rounds."""
        pairs = zip(ours.rounds, peer.rounds, strict=True)
        _, p10, p90 = _spread([one / other for one, other in pairs])
        return cls(round(ours.median / peer.median, 4), p10, p90)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    p10, p50, p90 = (round(float(value), 4) for value in np.percentile(values, (10, 50, 90)))
    return p50, p10, p90
