"""A wait distribution laid out for weighing: moments, chances to be back, seconds held until then.

What: `Outlook`, the points of a `WaitCurve` with the present in front, finer where the curve is
coarse. Why: when to let go is an optimum over these points. Where: made once per decision by the
policies that weigh; plain lists, as numpy costs more for thirty points than it saves.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple

from agentkv.predict.base import WaitEstimate
from agentkv.predict.curve import WaitCurve

_COARSE = 8  # a curve with fewer points is subdivided
_SHARES_WITHIN = (0.25, 0.5, 0.75, 1.0)
_LONGEST_S = 1e9


class Outlook(NamedTuple):
    """Lists of equal length, in seconds from now; the first point is now.

    `held_s`: E[min(remaining wait, moment)]. `beyond`: the chance to return after the last moment.
    """

    times_s: list[float]
    chances: list[float]
    held_s: list[float]
    beyond: float


def outlook_of(wait: WaitEstimate) -> Outlook:
    """All that an estimate says, as points."""
    curve = wait.curve
    is_coarse = len(curve.times_s) < _COARSE
    times_s, chances = _subdivide(curve) if is_coarse else _points(curve)
    held_s = WaitCurve(times_s, chances).held_s()
    beyond = max(0.0, 1 - chances[-1] - min(1.0, max(0.0, wait.chance_ended)))
    return Outlook(times_s, chances, held_s, beyond)


def rate_within(outlook: Outlook, shortest_s: float) -> float:
    """The best P(back within H) / E[min(remaining wait, H)] over H >= shortest_s, per second.

    The index of Gittins (1979) for a wait: returns per second held, for whoever may stop holding
    at any time. Moments before `shortest_s` do not count, as a curve is not that exact.
    """
    best = 0.0
    before_s, before, held_before_s = 0.0, 0.0, 0.0
    for time_s, chance, held_s in zip(*outlook[:3], strict=True):
        if time_s >= shortest_s:
            if before_s < shortest_s:
                share = (shortest_s - before_s) / (time_s - before_s)
                if before_s > 0:
                    share = math.log(shortest_s / before_s) / math.log(time_s / before_s)
                within = before + share * (chance - before)
                at_s = held_before_s + (shortest_s - before_s) * (1 - (before + within) / 2)
                best = within / at_s if at_s > 0 else best
            if chance > best * held_s and held_s > 0:
                best = chance / held_s
        before_s, before, held_before_s = time_s, chance, held_s
    if before_s < shortest_s:  # the curve ends before: its last word stands
        best = before / (held_before_s + (shortest_s - before_s) * (1 - before))
    return best


def rate_after(outlook: Outlook, later_s: float) -> float:
    """The same at the first moment from `later_s` on, should the wait last until then; 0 if the
    outlook says nothing of what follows.
    """
    times_s, chances, held_s, _ = outlook
    start = min(bisect_left(times_s, later_s), len(times_s) - 1)
    chance, held = chances[start], held_s[start]
    best = 0.0
    for i in range(start + 1, len(times_s)):
        span = held_s[i] - held
        if chances[i] - chance > best * span and span > 0:
            best = (chances[i] - chance) / span
    return best


def _points(curve: WaitCurve) -> tuple[list[float], list[float]]:
    return [0.0, *curve.times_s], [0.0, *curve.chances]


def _subdivide(curve: WaitCurve) -> tuple[list[float], list[float]]:
    """Points between the points, along the lines that `WaitCurve` draws."""
    times_s, chances = [0.0], [0.0]
    for knot_s, level in zip(curve.times_s, curve.chances, strict=True):
        from_s, base = times_s[-1], chances[-1]
        to_s = min(knot_s, _LONGEST_S)
        for share in _SHARES_WITHIN:
            chances.append(base + share * (level - base))
            times_s.append(from_s * (to_s / from_s) ** share if from_s > 0 else share * to_s)
    return times_s, chances
