"""Who forecasts a wait: our predictor, and the rules that others use.

What: `Forecaster`, the contract of all, ours behind it, and four rivals by the tool's name. Why:
one loop asks and teaches them all alike, and all are judged on the same bins. Where: `predict_run`.

A forecast is a cumulative distribution of the whole wait at the edges of the predictor's bins.

    exponential   Exp(mean), per tool; the cold start of Continuum and the memoryless case
    log-normal    per tool, mean and deviation of the logarithm, as in agentinfer's Progress-TTL
    empirical     Continuum: per-tool CDF after 100 samples, else of all tools, else 2 s
    ewma          a log-normal around the moving mean of the logarithm, with its moving deviation

Those that fit by tool use what all tools took until the tool was seen three times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from agentkv.bench.predict_pauses import Call, Pause
from agentkv.predict import HierarchicalWaitPredictor
from agentkv.predict.histogram import LOG_EDGES, MIN_WAIT_S, NUM_BINS, bin_of

Cdf = npt.NDArray[np.float64]
"""(NUM_BINS + 1,) P(wait <= edge), from 0 to 1."""

_EDGES_S = np.exp(LOG_EDGES)
_LEAST_SEEN = 3
_LEAST_DEVIATION = 0.1
_ALL = ""


class Forecaster(Protocol):
    """Asked for each pause before it is taught it."""

    def forecast(self, pause: Pause) -> Cdf: ...

    def learn(self, pause: Pause) -> None: ...


class OurForecaster:
    """The predictor as a server uses it; `has_history` False: sessions are not told apart.

    It starts empty: the shipped priors were computed from traces that it may be judged on.
    """

    def __init__(self, *, has_history: bool = True) -> None:
        self._predictor = HierarchicalWaitPredictor(is_seeded=False)
        self._has_history = has_history

    def forecast(self, pause: Pause) -> Cdf:
        call, session = self._slowest(pause), self._session(pause)
        whole = self._predictor.distribution_at(
            call.place, timeout_s=call.timeout_s, session=session
        )
        return whole.cdf()

    def learn(self, pause: Pause) -> None:
        session = self._session(pause)
        self._predictor.observe_at(self._slowest(pause).place, pause.wait_s, session=session)

    def _session(self, pause: Pause) -> str | None:
        return pause.session if self._has_history else None

    def _slowest(self, pause: Pause) -> Call:
        if len(pause.calls) == 1:
            return pause.calls[0]
        session = self._session(pause)

        def expected(call: Call) -> float:
            return self._predictor.distribution_at(call.place, session=session).mean_log_wait()

        return max(pause.calls, key=expected)


class _Moments:
    """Of waits: mean, and mean and square of the logarithm; plain or moving."""

    __slots__ = ("log_mean", "log_square", "mean_s", "num")

    def __init__(self) -> None:
        self.num = 0
        self.mean_s = self.log_mean = self.log_square = 0.0

    def add(self, wait_s: float, least_rate: float) -> None:
        self.num += 1
        rate = max(1 / self.num, least_rate)
        log_s = math.log(max(wait_s, MIN_WAIT_S))
        self.mean_s += rate * (wait_s - self.mean_s)
        self.log_mean += rate * (log_s - self.log_mean)
        self.log_square += rate * (log_s * log_s - self.log_square)

    def log_deviation(self) -> float:
        variance = self.log_square - self.log_mean * self.log_mean
        return max(math.sqrt(max(variance, 0.0)), _LEAST_DEVIATION)


class MomentsForecaster:
    """A shape fitted to moments per tool; `least_rate` above 0 makes the moments moving ones."""

    def __init__(self, shape: Callable[[_Moments], Cdf], least_rate: float = 0.0) -> None:
        self._shape = shape
        self._least_rate = least_rate
        self._by_tool: defaultdict[str, _Moments] = defaultdict(_Moments)

    def forecast(self, pause: Pause) -> Cdf:
        found = self._by_tool[_tool(pause)]
        return self._shape(found if found.num >= _LEAST_SEEN else self._by_tool[_ALL])

    def learn(self, pause: Pause) -> None:
        for tool in {_tool(pause), _ALL}:
            self._by_tool[tool].add(pause.wait_s, self._least_rate)


class EmpiricalForecaster:
    """Continuum's estimator: what the tool took, once it took it 100 times."""

    _ENOUGH = 100
    _COLD_WAIT_S = 2.0

    def __init__(self, key: Callable[[Pause], str]) -> None:
        self._key = key
        self._counts: defaultdict[str, npt.NDArray[np.float64]] = defaultdict(
            lambda: np.zeros(NUM_BINS)
        )

    def forecast(self, pause: Pause) -> Cdf:
        for key in (self._key(pause), _ALL):
            counts = self._counts[key]
            if (total := float(counts.sum())) >= self._ENOUGH:
                return np.concatenate(([0.0], np.cumsum(counts / total)))
        return np.where(np.arange(NUM_BINS + 1) > bin_of(self._COLD_WAIT_S), 1.0, 0.0)

    def learn(self, pause: Pause) -> None:
        for key in {self._key(pause), _ALL}:
            self._counts[key][bin_of(pause.wait_s)] += 1


def exponential(moments: _Moments) -> Cdf:
    """P(wait <= t) = 1 - exp(-t / mean); of 1 s before anything was seen, as in Continuum."""
    mean_s = max(moments.mean_s, MIN_WAIT_S) if moments.num else 1.0
    return _closed(1 - np.exp(-_EDGES_S / mean_s))


def lognormal(moments: _Moments) -> Cdf:
    """A normal distribution of the logarithm."""
    if not moments.num:
        return exponential(moments)
    scale = moments.log_deviation() * math.sqrt(2)
    z = (LOG_EDGES - moments.log_mean) / scale
    return _closed(np.array([0.5 * math.erfc(-x) for x in z]))


def _closed(cdf: Cdf) -> Cdf:
    cdf[0], cdf[-1] = 0.0, 1.0
    return cdf


def _tool(pause: Pause) -> str:
    """The tool of the last call: the one that recorded turns end with."""
    return f"tool {pause.calls[-1].place.tool}"


def _class(pause: Pause) -> str:
    return f"{_tool(pause)}:{pause.calls[-1].place.cls}"


EWMA_RATE = 0.2

RIVALS: Mapping[str, Callable[[], Forecaster]] = {
    "exponential": lambda: MomentsForecaster(exponential),
    "lognormal": lambda: MomentsForecaster(lognormal),
    "tool_cdf": lambda: EmpiricalForecaster(_tool),
    "ewma": lambda: MomentsForecaster(lognormal, EWMA_RATE),
    "class_cdf": lambda: EmpiricalForecaster(_class),
}


def teach(forecaster: Forecaster, pauses: Sequence[Pause]) -> None:
    """In order, as a server would have seen them."""
    for pause in pauses:
        forecaster.learn(pause)
