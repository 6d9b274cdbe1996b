"""Waits on a logarithmic scale: 81 bins from 1 ms to 100,000 s.

What: the bins, a prior laid out in them, and the quantiles of what is left of a wait.
Why: bounded memory, any shape (two humps, time-out spikes), and conditioning on the age of a wait
is one cut. Where: the arithmetic under `quantile`; arrays are `numpy` float64 of length NUM_BINS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Mass = npt.NDArray[np.float64]
"""(NUM_BINS,) weights, not necessarily summing to 1."""

BINS_PER_DECADE = 10
MIN_WAIT_S, MAX_WAIT_S = 1e-3, 1e5
NUM_BINS = 8 * BINS_PER_DECADE + 1
_UNDERFLOW_S = 1e-4  # bin 0 holds everything below MIN_WAIT_S

EDGES_S: list[float] = [_UNDERFLOW_S] + [
    MIN_WAIT_S * 10 ** (i / BINS_PER_DECADE) for i in range(NUM_BINS)
]
_EDGES = np.array(EDGES_S)

TAIL_EXPONENT = 0.4
"""P(wait > 2t | wait > t) = 2^-0.4 = 0.76, as measured from 0.5 s to 32 s in coding sessions."""
TAIL_FROM_S = 0.1


def bin_of(wait_s: float) -> int:
    """The bin of a wait; those beyond the scale go to its ends."""
    if wait_s < MIN_WAIT_S:
        return 0
    return min(NUM_BINS - 1, 1 + int(math.log10(wait_s / MIN_WAIT_S) * BINS_PER_DECADE + 1e-9))


def from_quantiles(levels: Sequence[float], waits_s: Sequence[float]) -> Mass:
    """Lays a row of quantiles out, straight lines between them on the logarithmic scale; sums to 1.

    Waits must not fall, levels must rise from 0 to 1.
    """
    logs = np.log(np.maximum(np.array(waits_s), _UNDERFLOW_S))
    # np.interp wants rising points; a spike becomes a very steep line.
    logs = np.maximum.accumulate(logs + np.arange(len(logs)) * 1e-9)
    cdf = np.interp(np.log(_EDGES), logs, np.array(levels), left=0.0, right=1.0)
    cdf[0], cdf[-1] = 0.0, 1.0
    return np.diff(cdf)


def lognormal(median_s: float, sigma: float) -> Mass:
    """A lognormal around a stated wait; sums to 1."""
    center = math.log(min(max(median_s, MIN_WAIT_S), MAX_WAIT_S))
    low, high = bin_of(math.exp(center - 4 * sigma)), bin_of(math.exp(center + 4 * sigma))
    mass = np.zeros(NUM_BINS)
    below = 0.0
    for i in range(low, high + 1):
        z = (math.log(EDGES_S[i + 1]) - center) / sigma
        upto = 0.5 * math.erfc(-z / math.sqrt(2)) if i < high else 1.0
        mass[i] = upto - below
        below = upto
    return mass


def pareto_tail(from_s: float = TAIL_FROM_S) -> Mass:
    """P(wait > t) ~ t^-0.4 from a start on: the waits that outlive all others; sums to 1."""
    start_s = min(max(from_s, MIN_WAIT_S), MAX_WAIT_S / 10)
    mass: Mass = -np.diff(np.minimum(1.0, (_EDGES / start_s) ** -TAIL_EXPONENT))
    return mass / float(mass.sum())


def remaining_quantiles(
    mass: Mass, age_s: float, levels: Sequence[float] = (0.1, 0.5, 0.9)
) -> list[float]:
    """Quantiles of (wait - age) given wait > age; never falling, at least 0.

    Beyond the scale or where no mass is left, the Pareto tail answers: the older, the longer.
    """
    first = bin_of(age_s)
    above = mass[first:].cumsum()
    start_s = max(EDGES_S[first], min(age_s, EDGES_S[first + 1]))
    width = math.log(EDGES_S[first + 1] / EDGES_S[first])
    # The part of the first bin that the wait has outlived holds no mass any more.
    gone = float(mass[first]) * math.log(start_s / EDGES_S[first]) / width
    total = float(above[-1]) - gone
    if age_s >= MAX_WAIT_S or not total > 1e-12:
        return [age_s * ((1 - u) ** (-1 / TAIL_EXPONENT) - 1) for u in levels]
    targets = [gone + u * total for u in levels]
    offsets = np.searchsorted(above, targets)
    return [
        max(0.0, _within(mass, above, first, int(k), target) - age_s)
        for k, target in zip(offsets, targets, strict=True)
    ]


def _within(mass: Mass, above: Mass, first: int, offset: int, target: float) -> float:
    """The wait at a cumulated mass, on a straight logarithmic line within its bin."""
    i = min(first + offset, NUM_BINS - 1)
    inside = float(mass[i])
    before = float(above[i - first]) - inside
    share = min(1.0, max(0.0, (target - before) / inside)) if inside > 0 else 1.0
    return EDGES_S[i] * math.pow(EDGES_S[i + 1] / EDGES_S[i], share)
