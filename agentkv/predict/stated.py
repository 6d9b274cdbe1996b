"""Figures that somebody states: a wait or a time-out by a client, or a command that sleeps.

What: what a figure makes of a distribution, and `StatedTrust`, how far stated waits came true. Why:
a right figure is worth more than all history, a wrong one costs more than none, and clients differ.
Where: a session's trust is in its memory, that of all sessions in `hierarchical`.
"""

from __future__ import annotations

import math

from agentkv.predict.histogram import MIN_WAIT_S, Mass, bin_of, lognormal, observed

_SIGMA = 0.35
_SLEEP_SIGMA = 0.1
_SLEEP_SHARE = 0.95
_RIGHT_WITHIN = 2.5 * _SIGMA  # of the logarithm: from 0.42 to 2.4 times the figure
_ASSUMED_SHARE, _ASSUMED_NUM = 0.95, 10.0
_NUM_OF_OTHERS = 5.0  # what all sessions' statements count for, for one session
_KEEP = 0.95
_GRACE_SHARE, _LEAST_GRACE_S = 0.05, 2.0


class StatedTrust:
    """Discounted counts of figures that came true and of all; `open_s` waits to be checked."""

    __slots__ = ("num", "num_right", "open_s")

    def __init__(self) -> None:
        self.num_right = 0.0
        self.num = 0.0
        self.open_s: float | None = None

    def add(self, *, is_right: bool) -> None:
        self.num = _KEEP * self.num + 1
        self.num_right = _KEEP * self.num_right + is_right

    def share(self, others: StatedTrust | None = None) -> float:
        """The chance that the next figure is right, in 0..1."""
        if others is None:
            assumed, worth = _ASSUMED_SHARE, _ASSUMED_NUM
        else:
            assumed, worth = others.share(), _NUM_OF_OTHERS
        return (self.num_right + worth * assumed) / (self.num + worth)


def is_right(stated_s: float, wait_s: float) -> bool:
    """Whether a wait was as stated, give or take; waits under 1 ms count as 1 ms."""
    ratio = max(wait_s, MIN_WAIT_S) / max(stated_s, MIN_WAIT_S)
    return abs(math.log(ratio)) <= _RIGHT_WITHIN


def with_statement(believed: Mass, stated_s: float, share: float) -> Mass:
    """Close around the figure by a share, and what is believed without it; sums to 1."""
    stated: Mass = share * lognormal(stated_s, _SIGMA) + (1 - share) * believed
    return stated


def with_sleep(believed: Mass, sleep_s: float) -> Mass:
    """A command that sleeps takes that long, but for the times that it does not."""
    slept: Mass = _SLEEP_SHARE * lognormal(sleep_s, _SLEEP_SIGMA) + (1 - _SLEEP_SHARE) * believed
    return slept


def with_timeout(believed: Mass, timeout_s: float) -> Mass:
    """What would take longer is stopped at the time-out: a spike there; sums to 1."""
    first = bin_of(timeout_s) + 1
    bounded = float(believed[first:].sum()) * observed(timeout_s)
    bounded[:first] += believed[:first]
    return bounded


def bound_in_force(timeout_s: float | None, age_s: float) -> float | None:
    """The time-out, or None where there is none or it was wrong: the wait has long outlived it.

    A tool is stopped at its time-out, but its client takes a moment to say so.
    """
    if not timeout_s:
        return None
    grace_s = max(_GRACE_SHARE * timeout_s, _LEAST_GRACE_S)
    return timeout_s if age_s < timeout_s + grace_s else None
