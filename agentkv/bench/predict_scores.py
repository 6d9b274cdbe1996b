"""How good forecasts of waits are: explained variance, ranking, calibration, log score.

What: the scores of a row of forecasts against what happened. Where: `predict_run` collects the
forecasts, `predict_report` shows the scores. Waits under 1 ms count as 1 ms, all alike; logarithms
are natural.

    r2_log_wait   1 - sum of squares(log wait - expected log wait) / sum of squares about the mean
    auc_gt_10s    the chance that of two pauses, one over 10 s and one not, the former is ranked
                  higher by P(wait > 10 s) (Mann-Whitney, ties count half)
    coverage_80   how often the wait lies in the central 80 % of what was believed once it had
                  lasted the age, by its place in the distribution (PIT). A spike at one value has
                  no place within, so that one is drawn
    log_score     mean log density of the log wait. Base measure: d ln(wait), constant within a bin
                  (12 to the decade; one bin from 0.1 to 1 ms). A bin never counts as less likely
                  than 1e-6, for all forecasters
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentkv.bench.predict_forecasts import Cdf
from agentkv.predict.histogram import LOG_EDGES, LOG_MIDDLES, LOG_WIDTHS, MIN_WAIT_S, bin_of

LONG_WAIT_S = 10.0
AGES_S = (0.0, 1.0, 5.0, 30.0)
_LEAST_MASS = 1e-6
_CONFIDENCE_Z = 1.96

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of the waits that lasted longer than an age, and how many those are."""

    num: int
    within_80: float
    within_95: float

    def margin_80(self) -> float:
        """Half of a 95 % confidence interval for a forecaster that is exactly right."""
        return _CONFIDENCE_Z * math.sqrt(0.8 * 0.2 / self.num) if self.num else math.nan


@dataclass(frozen=True, slots=True)
class Scores:
    """NaN where a score has no value: no wait over 10 s, or all alike."""

    num: int
    num_long: int
    r2_log_wait: float
    auc_gt_10s: float
    log_score: float
    coverage: dict[float, Coverage]


def score(forecasts: Sequence[Cdf], waits_s: Sequence[float], seed: int) -> Scores:
    """All scores of one forecaster; the seed is of the draws within spikes."""
    cdfs = np.array(forecasts)
    log_waits = np.log(np.maximum(np.array(waits_s), MIN_WAIT_S))
    masses = np.diff(cdfs, axis=1)
    above = 1 - np.array([_at(cdf, LONG_WAIT_S) for cdf in forecasts])
    return Scores(
        num=len(waits_s),
        num_long=sum(wait_s > LONG_WAIT_S for wait_s in waits_s),
        r2_log_wait=r2(log_waits, masses @ LOG_MIDDLES),
        auc_gt_10s=auc(log_waits > math.log(LONG_WAIT_S), above),
        log_score=float(np.mean(log_densities(masses, waits_s))),
        coverage={age_s: coverage(forecasts, waits_s, age_s, seed) for age_s in AGES_S},
    )


def r2(truth: Floats, expected: Floats) -> float:
    about_mean = float(((truth - truth.mean()) ** 2).sum())
    return 1 - float(((truth - expected) ** 2).sum()) / about_mean if about_mean else math.nan


def auc(is_long: npt.NDArray[np.bool_], ranks_by: Floats) -> float:
    """See the module; NaN if all are long, or none."""
    num_long = int(is_long.sum())
    num_other = len(is_long) - num_long
    if not num_long or not num_other:
        return math.nan
    _, inverse, counts = np.unique(ranks_by, return_inverse=True, return_counts=True)
    mean_ranks = counts.cumsum() - (counts - 1) / 2
    total = float(mean_ranks[inverse][is_long].sum())
    return (total - num_long * (num_long + 1) / 2) / (num_long * num_other)


def log_densities(masses: Floats, waits_s: Sequence[float]) -> Floats:
    """Of each wait, in nats per unit of ln(wait)."""
    bins = np.array([bin_of(wait_s) for wait_s in waits_s])
    found = masses[np.arange(len(bins)), bins]
    densities: Floats = np.log(np.maximum(found, _LEAST_MASS) / LOG_WIDTHS[bins])
    return densities


def coverage(
    forecasts: Sequence[Cdf], waits_s: Sequence[float], age_s: float, seed: int
) -> Coverage:
    """Over the waits longer than the age; see the module."""
    draws = random.Random(seed)
    places = np.array(
        [
            place(cdf, wait_s, age_s, draws)
            for cdf, wait_s in zip(forecasts, waits_s, strict=True)
            if wait_s > age_s or age_s == 0
        ]
    )
    if not len(places):
        return Coverage(0, math.nan, math.nan)
    aside = abs(places - 0.5)
    return Coverage(len(places), float((aside <= 0.4).mean()), float((aside <= 0.475).mean()))


def place(cdf: Cdf, wait_s: float, age_s: float, draws: random.Random) -> float:
    """P(a wait is at most this one, given that it outlives the age), in 0..1."""
    gone = _at(cdf, age_s)
    left = 1 - gone
    if left <= 0:
        return 1.0
    # All waits under 1 ms are one spike.
    within = _at(cdf, wait_s) if wait_s >= MIN_WAIT_S else draws.uniform(gone, float(cdf[1]))
    return min(max((within - gone) / left, 0.0), 1.0)


def _at(cdf: Cdf, wait_s: float) -> float:
    if wait_s <= 0:
        return 0.0
    return float(np.interp(math.log(wait_s), LOG_EDGES, cdf))
