"""The default wait predictor: what such waits took before, given how long this one has lasted.

What: one histogram of waits per tool and command class, per tool, and overall; a level with few
observations leans on its prior or on the level above. Why: the distribution is heavy-tailed and
often has two humps, so quantiles are kept, not moments, and every estimate is conditional on the
age of the wait. Where: behind the `WaitPredictor` seam; one per engine, in the scheduler process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from agentkv.predict import histogram
from agentkv.predict.base import WaitEstimate
from agentkv.predict.commands import MAX_COMMAND_CHARS, SLEEP, classify_command
from agentkv.predict.priors import ANY_TOOL, LEVELS, NAME_TO_TOOL, PRIOR_WAITS, SHELL

_MAX_NAME_CHARS = 64
_PRIOR_WEIGHT = 10.0  # observations that a prior, or the level above, is worth
_TAIL_WEIGHT = 0.3  # of an observation: keeps the far tail possible at every level
_MAX_WEIGHT = 200.0  # older waits are halved beyond this, so that a level follows a change
_STATED_SHARE = 0.95  # how far a stated wait is believed; the rest is a heavy tail beyond it
_STATED_SIGMA = 0.35
_SLEEP_SIGMA = 0.1


@dataclass(slots=True)
class _Level:
    """Waits seen at one key; `weight` is their discounted number."""

    mass: histogram.Mass = field(default_factory=lambda: np.zeros(histogram.NUM_BINS))
    weight: float = 0.0
    num_observed: int = 0

    def add(self, wait_s: float) -> None:
        self.mass[histogram.bin_of(wait_s)] += 1.0
        self.weight += 1.0
        self.num_observed += 1
        if self.weight > _MAX_WEIGHT:
            self.mass *= 0.5
            self.weight *= 0.5


@dataclass(frozen=True, slots=True)
class _Wait:
    """A wait's place in the statistics: keys from the finest level to the overall one."""

    keys: tuple[str, ...]
    sleep_s: float


class QuantileWaitPredictor:
    """Learns quantiles per command class; memory is bounded by `max_names` histograms of 0.7 KB."""

    def __init__(self, max_names: int = 512) -> None:
        self._max_names = max_names
        self._overall = _Level()
        self._levels: OrderedDict[str, _Level] = OrderedDict()

    def observe(
        self,
        tool: str | None,
        command: str | None,
        wait_s: float,
        *,
        session: Hashable | None = None,
        is_censored: bool = False,
    ) -> None:
        """See `WaitPredictor.observe`."""
        wait = _bounded(wait_s)
        if wait is None or is_censored:
            return
        self._overall.add(wait)
        for key in _place(tool, command).keys[:-1]:
            level = self._levels.setdefault(key, _Level())
            self._levels.move_to_end(key)
            level.add(wait)
        while len(self._levels) > self._max_names:
            self._levels.popitem(last=False)

    def estimate(
        self,
        tool: str | None,
        command: str | None,
        *,
        age_s: float = 0.0,
        expected_wait_s: float | None = None,
        timeout_s: float | None = None,
        session: Hashable | None = None,
    ) -> WaitEstimate:
        """See `WaitPredictor.estimate`."""
        place = _place(tool, command)
        stated = _bounded(expected_wait_s)
        if stated is not None:
            mass, source, num_observed = _stated(stated, _STATED_SIGMA), "stated wait", 0
        elif place.sleep_s > 0:
            mass, source = _stated(place.sleep_s, _SLEEP_SIGMA), f"sleep {place.sleep_s:g}"
            num_observed = 0
        else:
            mass = self._posterior(place.keys)
            source, num_observed = self._source(place.keys)
        age = _bounded(age_s) or 0.0
        p10, p50, p90 = histogram.remaining_quantiles(mass, age)
        timeout = _bounded(timeout_s)
        if timeout:
            left = max(0.0, timeout - age)
            p10, p50, p90 = min(p10, left), min(p50, left), min(p90, left)
        return WaitEstimate(p10, p50, p90, source, num_observed)

    def forget(self, session: Hashable) -> None:
        """See `WaitPredictor.forget`."""

    def _posterior(self, keys: tuple[str, ...]) -> histogram.Mass:
        """The distribution at the finest key, tail included; sums to 1."""
        key, coarser = keys[0], keys[1:]
        base = _prior(key)
        if base is None:
            base = self._posterior(coarser)
        level = self._level(key)
        if level is None:
            return base
        scale = 1 / (level.weight + _PRIOR_WEIGHT + _TAIL_WEIGHT)
        return (level.mass + _PRIOR_WEIGHT * base + _TAIL_WEIGHT * _tail()) * scale

    def _source(self, keys: tuple[str, ...]) -> tuple[str, int]:
        """The finest key that anything is known about, and the number of waits seen there."""
        for key in keys:
            level = self._level(key)
            if level is not None or _prior(key) is not None:
                return key or "any tool", level.num_observed if level else 0
        return "any tool", 0

    def _level(self, key: str) -> _Level | None:
        return self._levels.get(key) if key != ANY_TOOL else self._overall


def _bounded(seconds: float | None) -> float | None:
    """The value on the predictor's scale, or None if it is no span of time."""
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        return None
    return float(min(seconds, 10 * histogram.MAX_WAIT_S))


def _place(tool: str | None, command: str | None) -> _Wait:
    if not isinstance(tool, str) or not tool.strip():
        return _Wait((ANY_TOOL,), 0.0)
    name = tool.strip()[:_MAX_NAME_CHARS].lower()
    name = NAME_TO_TOOL.get(name, name)
    if name != SHELL or not isinstance(command, str) or not command.strip():
        return _Wait((name, ANY_TOOL), 0.0)
    found = classify_command(command[:MAX_COMMAND_CHARS])
    sleep_s = found.sleep_s if found.name == SLEEP else 0.0
    return _Wait((f"{name}:{found.name}", name, ANY_TOOL), sleep_s)


def _stated(wait_s: float, sigma: float) -> histogram.Mass:
    """Close around the figure, but once that has passed the tail takes over: it was wrong."""
    near = _STATED_SHARE * histogram.lognormal(wait_s, sigma)
    return near + (1 - _STATED_SHARE) * histogram.pareto_tail(wait_s)


@cache
def _tail() -> histogram.Mass:
    return histogram.pareto_tail()


@cache
def _laid_out_priors() -> dict[str, histogram.Mass]:
    """Every shipped prior with its share of tail, ready to use where nothing was observed."""
    share = _TAIL_WEIGHT / (_PRIOR_WEIGHT + _TAIL_WEIGHT)
    laid_out = {}
    for key, rows in PRIOR_WAITS.items():
        masses = [histogram.from_quantiles(LEVELS, row) for row in rows]
        mean: histogram.Mass = np.mean(masses, axis=0)
        laid_out[key] = (1 - share) * mean + share * _tail()
    return laid_out


def _prior(key: str) -> histogram.Mass | None:
    return _laid_out_priors().get(key)
