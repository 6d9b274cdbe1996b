"""The levels that a fresh predictor begins with: the shipped waits, as if a few had been seen.

What: `prior_levels`, the rows of `priors` laid out as levels worth ten observations each. Why: the
first pauses of a fresh server must not be guesses. Where: given to `Levels` by `hierarchical`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from agentkv.predict import histogram
from agentkv.predict.contexts import ALL, ALL_HUMAN
from agentkv.predict.levels import Key, Level
from agentkv.predict.place import HUMAN
from agentkv.predict.priors import ANY_TOOL, LEVELS, PRIOR_WAITS

PRIOR_WEIGHT = 10.0


@cache
def prior_levels() -> Mapping[Key, Level]:
    """Shared by all predictors: not to be changed."""
    found = {}
    for name, rows in PRIOR_WAITS.items():
        mass = np.mean([histogram.from_quantiles(LEVELS, row) for row in rows], axis=0)
        for key in _keys(name):
            found[key] = Level(mass * PRIOR_WEIGHT, PRIOR_WEIGHT)
    return found


def _keys(name: str) -> list[Key]:
    if name == ANY_TOOL:
        return [ALL]
    if name == HUMAN:
        return [ALL_HUMAN]
    tool, _, cls = name.partition(":")
    if not cls:
        return [Key("tool", (tool,))]
    return [Key("class", (tool, cls, seen)) for seen in ("", "first_time", "repeated")]
