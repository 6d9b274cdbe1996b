"""What keeping a pause's KV at hand is worth, per byte and second: what pauses are ranked by.

    worth = (delay if it is lost / its bytes) · returns per second held

What: the returns per second, from the predicted distribution where it is known well, from the age
of the wait alone where it is not. Why the mix: with nothing but the age, waits have a Pareto tail
and the oldest goes first, which is LRU; a wrong prediction ranks far worse than that. The two rates
are mixed on a logarithmic scale by how far the estimate is trusted, so that a hardly confident one
moves a pause only a little, and one below `_LEAST_CONFIDENCE` not at all. That is low: on recorded
waits, a later start cost most of what prediction brings; `benefit` guards against the rest.
Where: `expected_cost` puts it into its decisions; `ranking` sorts by it.
"""

from __future__ import annotations

import math

from agentkv.policy.outlook import Outlook, rate_after, rate_within
from agentkv.predict.base import WaitEstimate
from agentkv.predict.curve import WaitCurve

AGE_EXPONENT = 0.4
"""P(wait > 2t | wait > t) = 2^-0.4 = 0.76, as measured from 0.5 s to 32 s in coding sessions."""

AGE_FLOOR_S = 1.0
"""Waits younger than this are hardly told apart."""

# The shortest hold worth a thought: a curve's steps are not finer than a share of the age, and the
# slim chance that a long wait is over at once must not decide.
_SHORTEST_S, _SHORTEST_SHARE = 1.0, 0.1
_LEAST_CONFIDENCE, _FULL_CONFIDENCE = 0.02, 0.12  # a distribution is as wide as its doubts are
_RATE_RANGE = (1e-9, 1e4)
_LEVELS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

_REACH: float = (1 + _SHORTEST_SHARE) ** (1 - AGE_EXPONENT) - 1
_RATE_AT_1_S: float = (1 - (1 + _SHORTEST_SHARE) ** -AGE_EXPONENT) * (1 - AGE_EXPONENT) / _REACH


def rate_by_age(age_s: float) -> float:
    """Returns per second held if only the age is known; falls with the age.

    The index of the tail P(rest > t) = (1 + t/age)^-0.4, whose best H is the shortest there is.
    """
    return _RATE_AT_1_S / (max(0.0, age_s) + AGE_FLOOR_S)


def age_estimate(age_s: float) -> WaitEstimate:
    """The wait if only its age is known."""
    scale_s = max(0.0, age_s) + AGE_FLOOR_S
    times_s = [scale_s * ((1 - level) ** (-1 / AGE_EXPONENT) - 1) for level in _LEVELS]
    return WaitEstimate(
        times_s[2], times_s[7], times_s[11], "age alone", 0,
        confidence=0.0, points=WaitCurve(tuple(times_s), _LEVELS),
    )  # fmt: skip


def trust(confidence: float) -> float:
    """How far a prediction of this confidence moves the ranking: 0 not at all, 1 wholly."""
    above = (confidence - _LEAST_CONFIDENCE) / (_FULL_CONFIDENCE - _LEAST_CONFIDENCE)
    return min(1.0, above) if above > 0 else 0.0


def mixed_rate(outlook: Outlook, age_s: float, weight: float) -> tuple[float, float]:
    """Returns per second held, as predicted with `weight` and by age with the rest; and the power
    of the age by which that falls until the age has doubled.
    """
    by_age = rate_by_age(age_s)
    if weight <= 0:
        return by_age, 1.0
    scale_s = max(0.0, age_s) + AGE_FLOOR_S
    now = rate_within(outlook, max(_SHORTEST_S, _SHORTEST_SHARE * scale_s))
    later = rate_after(outlook, scale_s)
    now = min(max(now, _RATE_RANGE[0]), _RATE_RANGE[1])
    fall = math.log2(now / later) if later > 0 else 1.0
    rate: float = by_age * math.pow(now / by_age, weight)
    return rate, 1 - weight + weight * min(max(fall, 0.0), 1.0)
