"""From a distribution of the whole wait to the estimate of what is left of it.

What: quantiles and curve of the remaining wait at an age, cut at a time-out, with the chance that
the session never comes back. Where: the last step of `hierarchical.estimate`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentkv.predict.base import WaitEstimate
from agentkv.predict.curve import SOON_S, WaitCurve
from agentkv.predict.distribution import Distribution, tail_quantiles_s

_LEVELS = np.array(
    [0.01, 0.02, 0.05, *(i / 20 for i in range(2, 19)), 0.95, 0.98, 0.99, 0.995, 0.999]
)
_P10, _P50, _P90 = (int(np.argmin(abs(_LEVELS - level))) for level in (0.1, 0.5, 0.9))
_RISING = 1 + 1e-9 * np.arange(len(_LEVELS))


def estimate_left(
    whole: Distribution,
    *,
    age_s: float,
    bound_s: float | None,
    chance_ended: float,
    confidence: float,
    source: str,
    num_observed: int,
) -> WaitEstimate:
    """The estimate at an age; the whole wait takes no longer than `bound_s`."""
    left_s = whole.outlived_quantiles_s(_LEVELS, age_s)
    if left_s is None:
        left_s = tail_quantiles_s(_LEVELS, age_s)
        confidence, source, num_observed = 0.0, "age alone", 0
    left_bound_s = None
    if bound_s is not None:
        left_bound_s = max(0.0, bound_s - age_s)
        left_s = np.minimum(left_s, left_bound_s)
    return WaitEstimate(
        float(left_s[_P10]),
        float(left_s[_P50]),
        float(left_s[_P90]),
        source,
        num_observed,
        chance_ended=chance_ended,
        confidence=confidence,
        points=_curve(left_s, left_bound_s, 1 - chance_ended),
    )


def _curve(left_s: npt.NDArray[np.float64], bound_s: float | None, chance_back: float) -> WaitCurve:
    times_s = (np.maximum(left_s, SOON_S) * _RISING).tolist()
    chances = (_LEVELS * chance_back).tolist()
    if bound_s is not None:
        num_within = int(np.searchsorted(left_s, bound_s))
        bound_s = max(bound_s, SOON_S, times_s[num_within - 1] * (1 + 1e-9) if num_within else 0.0)
        times_s = [*times_s[:num_within], bound_s]
        chances = [*chances[:num_within], chance_back]
    return WaitCurve(times_s, chances)
