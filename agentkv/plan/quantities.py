"""A quantity that is one number, or spread: contexts in tokens and tool waits in seconds.

Written as `32768`, or as quantiles `0.5:16384,0.9:65536,0.99:120000`: in between the logarithm is
interpolated, below the first and above the last the quantity stays what they say. So nothing is
made up beyond what was given; a tail longer than the last quantile has to be given too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentkv.config_values import parse_size
from agentkv.errors import ConfigError

_POINTS = 1000


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values and how often they occur; `shares` add up to 1."""

    values: NDArray[np.float64]
    shares: NDArray[np.float64]

    @property
    def is_constant(self) -> bool:
        return len(self.values) == 1

    @property
    def mean(self) -> float:
        return float(self.values @ self.shares)

    @property
    def most(self) -> float:
        return float(self.values.max())

    def map(self, function: Callable[[float], float]) -> Distribution:
        """The same shares of other values."""
        return Distribution(np.array([function(float(v)) for v in self.values]), self.shares)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        away = self.values - self.mean
        return math.sqrt(float((away * away) @ self.shares))

    def quantile(self, share: float) -> float:
        """The smallest value that so large a share does not exceed."""
        order = np.argsort(self.values)
        reached = np.cumsum(self.shares[order])
        position = int(np.searchsorted(reached, share - 1e-12))
        return float(self.values[order][min(position, len(order) - 1)])

    def share_above(self, value: float) -> float:
        """How often it is more than that."""
        return float(self.shares[self.values > value].sum())

    def sum_share_above(self, value: float) -> float:
        """The part of its sum in what is more than that: of all waited time, say."""
        above = self.values > value
        return float(self.values[above] @ self.shares[above]) / self.mean if self.mean else 0.0

    def mean_above(self, value: float) -> float:
        """The mean of what is more than that; 0 where nothing is."""
        share = self.share_above(value)
        return self.sum_share_above(value) * self.mean / share if share else 0.0


def constant(value: float) -> Distribution:
    """Always the same."""
    return Distribution(np.array([value]), np.array([1.0]))


def weighted(values: Sequence[float], weights: Sequence[float]) -> Distribution:
    """Recorded values, each counted with its weight."""
    shares = np.array(weights, dtype=float)
    return Distribution(np.array(values, dtype=float), shares / shares.sum())


def parse_quantity(option: str, text: str, *, least: float) -> Distribution:
    """One number or quantiles. Raises ConfigError that names the option and the form."""
    if ":" not in text:
        return constant(_number(option, text, text, least))
    pairs = []
    for part in text.split(","):
        share, _, value = part.partition(":")
        try:
            pairs.append((float(share), _number(option, text, value, least)))
        except ValueError:
            raise _wrong(option, text) from None
    return _interpolated(option, text, pairs)


def parse_bytes(option: str, text: str) -> float:
    """A size such as "80GB" or "2TiB". Raises ConfigError."""
    try:
        size = parse_size(text)
    except ValueError as error:
        problem = str(error).replace('write "auto", a size', "give a size")
        raise ConfigError(f"{option}: {problem}") from None
    if not isinstance(size, int):
        raise ConfigError(f"{option} {text}: give a size, as 80GB")
    return float(size)


def _number(option: str, text: str, part: str, least: float) -> float:
    try:
        value = float(part)
    except ValueError:
        raise _wrong(option, text) from None
    if not least <= value <= 1e12:
        raise ConfigError(
            f"{option} {text}: {part.strip()} is out of range; give at least {least:g}"
        )
    return value


def _wrong(option: str, text: str) -> ConfigError:
    return ConfigError(
        f"{option} {text}: give one number, or quantiles with commas between, as 0.5:3,0.9:60"
    )


def _interpolated(option: str, text: str, pairs: Sequence[tuple[float, float]]) -> Distribution:
    shares, values = (np.array(column) for column in zip(*pairs, strict=True))
    if not (np.all((shares >= 0) & (shares <= 1)) and np.all(np.diff(shares) > 0)):
        raise ConfigError(f"{option} {text}: quantiles go up from 0 to 1, as 0.5:3,0.9:60")
    if np.any(np.diff(values) < 0):
        raise ConfigError(f"{option} {text}: a higher quantile cannot be less; give rising values")
    places = (np.arange(_POINTS) + 0.5) / _POINTS
    logs = np.log(np.maximum(values, 1e-9))
    points = np.exp(np.interp(places, shares, logs))
    return Distribution(points, np.full(_POINTS, 1 / _POINTS))
