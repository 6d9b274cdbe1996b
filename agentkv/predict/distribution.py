"""A distribution of the whole wait, and what it says once the wait has lasted some time.

What: `Distribution`, a histogram that sums to 1 with its cumulative sums. Why: one is made per
pause and asked many times as the pause ages; each question is then a cut and an interpolation.
Where: made by `hierarchical`, turned into a `WaitEstimate` by `remaining`. Within a bin the mass
lies evenly on the logarithmic scale; beyond the scale a Pareto tail answers.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentkv.predict.histogram import (
    LOG_EDGES,
    LOG_MIDDLES,
    MAX_WAIT_S,
    TAIL_EXPONENT,
    UNDERFLOW_S,
    Mass,
    bin_of,
)

_EDGES: list[float] = LOG_EDGES.tolist()
_NOTHING_LEFT = 1e-9
_LEAST_MASS = 1e-12


class Distribution:
    """`mass` sums to 1; `reference` is what would be believed if only the age were known."""

    __slots__ = ("_cdf", "_gain_above", "_reference_above", "mass")

    def __init__(self, mass: Mass, reference: Mass) -> None:
        self.mass = mass
        self._cdf = np.empty(len(mass) + 1)
        self._cdf[0] = 0.0
        np.cumsum(mass, out=self._cdf[1:])
        gains = mass * np.log((mass + _LEAST_MASS) / (reference + _LEAST_MASS))
        self._gain_above = gains[::-1].cumsum()[::-1]
        self._reference_above = reference[::-1].cumsum()[::-1]

    def chance_within(self, wait_s: float) -> float:
        """P(wait <= wait_s)."""
        if wait_s <= 0:
            return 0.0
        # Not np.interp: it lets go of the GIL, and the scheduler would wait to get it back.
        place = math.log(wait_s)
        after = bisect.bisect_right(_EDGES, place)
        if after in (0, len(_EDGES)):
            return float(self._cdf[min(after, len(_EDGES) - 1)])
        low, high = float(self._cdf[after - 1]), float(self._cdf[after])
        passed = (place - _EDGES[after - 1]) / (_EDGES[after] - _EDGES[after - 1])
        return low + (high - low) * passed

    def cdf(self) -> npt.NDArray[np.float64]:
        """P(wait <= edge) at every edge of the bins, from 0 to 1; not to be changed."""
        return self._cdf

    def mean_log_wait(self) -> float:
        """E[log of the wait in seconds], the natural logarithm; below 1 ms counts as 1 ms."""
        return float(self.mass @ LOG_MIDDLES)

    def outlived_quantiles_s(
        self, levels: npt.NDArray[np.float64] | Sequence[float], age_s: float
    ) -> npt.NDArray[np.float64] | None:
        """Quantiles of what is left of a wait that has lasted `age_s`; never falling, in seconds.

        None where no mass is left: then nothing but the age is known, see `tail_quantiles_s`.
        """
        gone = self.chance_within(age_s)
        left = float(self._cdf[-1]) - gone
        if age_s >= MAX_WAIT_S or left <= _NOTHING_LEFT:
            return None
        targets = np.asarray(levels) * left + gone
        found: npt.NDArray[np.float64] = np.exp(np.interp(targets, self._cdf, LOG_EDGES)) - age_s
        return np.maximum(found, 0.0, out=found)

    def outlived_mass(self, age_s: float) -> Mass:
        """The distribution given that the wait takes longer than `age_s`; sums to 1.

        What a wait that nobody saw the end of adds to a histogram: its mass spread over all that is
        longer, in proportion (redistribution to the right, Efron 1967).
        """
        first = bin_of(age_s)
        mass = np.zeros_like(self.mass)
        mass[first:] = self.mass[first:]
        low, high = float(LOG_EDGES[first]), float(LOG_EDGES[first + 1])
        passed = (math.log(max(age_s, UNDERFLOW_S)) - low) / (high - low)
        mass[first] *= 1 - min(max(passed, 0.0), 1.0)
        total = float(mass.sum())
        if total <= _LEAST_MASS:
            mass[-1], total = 1.0, 1.0
        return mass / total

    def gain(self, age_s: float) -> float:
        """How much is known beyond the age, in nats: what the logarithm of the density gains.

        The Kullback-Leibler divergence of this wait from the reference, given both outlived the
        age (bins wholly above it).
        """
        first = min(bin_of(age_s) + 1, len(self.mass) - 1) if age_s > 0 else 0
        left = float(self._cdf[-1] - self._cdf[first])
        reference_left = float(self._reference_above[first])
        if left <= _NOTHING_LEFT or reference_left <= _LEAST_MASS:
            return 0.0
        inner = float(self._gain_above[first]) / left
        return max(0.0, inner - math.log(left / reference_left))


def tail_quantiles_s(
    levels: npt.NDArray[np.float64] | Sequence[float], age_s: float
) -> npt.NDArray[np.float64]:
    """What is left of a wait of which only the age is known: P(rest > t) = (1 + t/age)^-0.4."""
    outlived = (1 - np.asarray(levels)) ** (-1 / TAIL_EXPONENT) - 1
    found: npt.NDArray[np.float64] = age_s * outlived
    return found
