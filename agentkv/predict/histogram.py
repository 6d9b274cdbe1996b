"""Waits on a logarithmic scale: 97 bins from 1 ms to 100,000 s.

What: the bins, and masses laid out in them: an observation, a row of quantiles, a stated wait, the
heavy tail. Why: bounded memory, any shape (two humps, time-out spikes), and conditioning on the age
of a wait is one cut. Where: the arithmetic under `levels` and `distribution`; arrays are `numpy`
float64 of length NUM_BINS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

Mass = npt.NDArray[np.float64]
"""(NUM_BINS,) weights, not necessarily summing to 1."""

Hazards = npt.NDArray[np.float64]
"""(NUM_BINS,) the chance that a wait which got to a bin ends there; 1 in the last bin."""

BINS_PER_DECADE = 12
MIN_WAIT_S, MAX_WAIT_S = 1e-3, 1e5
NUM_BINS = 8 * BINS_PER_DECADE + 1
UNDERFLOW_S = 1e-4  # bin 0 holds everything below MIN_WAIT_S

EDGES_S: list[float] = [UNDERFLOW_S] + [
    MIN_WAIT_S * 10 ** (i / BINS_PER_DECADE) for i in range(NUM_BINS)
]
LOG_EDGES = np.log(np.array(EDGES_S))
LOG_MIDDLES = (LOG_EDGES[1:] + LOG_EDGES[:-1]) / 2
LOG_MIDDLES[0] = math.log(MIN_WAIT_S)
LOG_WIDTHS = np.diff(LOG_EDGES)

TAIL_EXPONENT = 0.4
"""P(wait > 2t | wait > t) = 2^-0.4 = 0.76, as measured from 0.5 s to 32 s in coding sessions."""
TAIL_FROM_S = 0.1

_KERNEL = (0.03, 0.1, 0.74, 0.1, 0.03)
_UNIFORM_SHARE = 0.5


def bin_of(wait_s: float) -> int:
    """The bin of a wait; those beyond the scale go to its ends."""
    if wait_s < MIN_WAIT_S:
        return 0
    return min(NUM_BINS - 1, 1 + int(math.log10(wait_s / MIN_WAIT_S) * BINS_PER_DECADE + 1e-9))


def observed(wait_s: float) -> Mass:
    """One observation, spread over its bin and the two on either side; sums to 1. Not to change.

    The underflow bin keeps its own: waits of nothing are of a kind of their own.
    """
    row: Mass = _spread()[bin_of(wait_s)]
    return row


@cache
def _spread() -> npt.NDArray[np.float64]:
    rows = np.zeros((NUM_BINS, NUM_BINS))
    rows[0, 0] = 1.0
    reach = len(_KERNEL) // 2
    for i in range(1, NUM_BINS):
        for offset, share in enumerate(_KERNEL, start=-reach):
            rows[i, min(max(i + offset, 1), NUM_BINS - 1)] += share
    return rows


@cache
def any_tail() -> Mass:
    """The tail that any wait may have. Not to be changed."""
    return pareto_tail()


@cache
def ignorance() -> Mass:
    """What is believed before anything is known: any order of magnitude, and a heavy tail.

    Not to be changed.
    """
    uniform = np.full(NUM_BINS, 1 / NUM_BINS)
    mass: Mass = _UNIFORM_SHARE * uniform + (1 - _UNIFORM_SHARE) * any_tail()
    return mass


def hazards_of(mass: Mass) -> Hazards:
    """Of a mass that sums to 1 and is nowhere empty."""
    hazards: Hazards = mass / mass[::-1].cumsum()[::-1]
    hazards[-1] = 1.0
    return hazards


def masses_of(hazards: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A row of mass, summing to 1, for each row of hazards."""
    masses = np.empty_like(hazards)
    masses[:, 0] = 1.0
    np.cumprod(1 - hazards[:, :-1], axis=1, out=masses[:, 1:])
    masses *= hazards
    return masses


@cache
def ignorant_hazards() -> Hazards:
    """Those of `ignorance`. Not to be changed."""
    return hazards_of(ignorance())


def from_quantiles(levels: Sequence[float], waits_s: Sequence[float]) -> Mass:
    """Lays a row of quantiles out, straight lines between them on the logarithmic scale; sums to 1.

    Waits must not fall, levels must rise from 0 to 1.
    """
    logs = np.log(np.maximum(np.array(waits_s), UNDERFLOW_S))
    # np.interp wants rising points; a spike becomes a very steep line.
    logs = np.maximum.accumulate(logs + np.arange(len(logs)) * 1e-9)
    cdf = np.interp(LOG_EDGES, logs, np.array(levels), left=0.0, right=1.0)
    cdf[0], cdf[-1] = 0.0, 1.0
    return np.diff(cdf)


def lognormal(median_s: float, sigma: float) -> Mass:
    """A lognormal around a stated wait; sums to 1."""
    center = math.log(min(max(median_s, MIN_WAIT_S), MAX_WAIT_S))
    low, high = bin_of(math.exp(center - 4 * sigma)), bin_of(math.exp(center + 4 * sigma))
    mass = np.zeros(NUM_BINS)
    below = 0.0
    for i in range(low, high + 1):
        z = (float(LOG_EDGES[i + 1]) - center) / sigma
        upto = 0.5 * math.erfc(-z / math.sqrt(2)) if i < high else 1.0
        mass[i] = upto - below
        below = upto
    return mass


def pareto_tail(from_s: float = TAIL_FROM_S) -> Mass:
    """P(wait > t) ~ t^-0.4 from a start on: the waits that outlive all others; sums to 1."""
    start_s = min(max(from_s, MIN_WAIT_S), MAX_WAIT_S / 10)
    outlived = np.minimum(1.0, np.exp(-TAIL_EXPONENT * (LOG_EDGES - math.log(start_s))))
    mass: Mass = -np.diff(outlived)
    return mass / float(mass.sum())
