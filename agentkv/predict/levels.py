"""Histograms of waits by key, each leaning on a coarser one while it has seen little.

What: `Level`, the waits seen at one key, and `Levels`, a bounded number of them. Why: a command's
own waits say most, but few were seen; the level above fills in with the weight of a few
observations, and so on up to all waits. Where: `hierarchical` keeps the levels shared by all
sessions in one, `session_memory` each session's own in another.

Levels lean bin by bin, on the chance that a wait which got so far ends there (its hazard):

    hazard = (ended there + k · hazard of the level above) / (got so far + k)

so that the tail, of which a level has seen next to nothing, is the tail of the level above: the
posterior mean of a beta-Stacy process (Walker and Muliere 1997).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from agentkv.predict.histogram import NUM_BINS, Hazards, Mass

_MAX_WEIGHT = 200.0  # older waits are halved beyond this, so that a level follows a change


class Key(NamedTuple):
    """`kind` says what tells these waits from others, `names` which ones they are."""

    kind: str
    names: tuple[str, ...]


class Level:
    """`mass` sums to `weight`, the discounted number of waits; `num_observed` counts them all."""

    __slots__ = ("_got_so_far", "mass", "num_observed", "weight")

    def __init__(self, mass: Mass | None = None, weight: float = 0.0, num_observed: int = 0):
        self.mass = np.zeros(NUM_BINS) if mass is None else mass.copy()
        self.weight = weight
        self.num_observed = num_observed
        self._got_so_far: Mass | None = None

    def add(self, wait: Mass, *, num: float = 1.0, keep: float = 1.0) -> None:
        """One more wait, as a mass that sums to 1; older ones are multiplied by `keep` first.

        `num` < 1: only with this chance was there one.
        """
        if self.weight > _MAX_WEIGHT:
            keep *= 0.5
        if keep != 1.0:
            self.mass *= keep
            self.weight *= keep
        self.mass += wait if num == 1.0 else num * wait
        self.weight += num
        self.num_observed += 1
        self._got_so_far = None

    def lean_on(self, above: Hazards, num: float) -> Hazards:
        """What this level believes, with the level above worth `num` observations."""
        if self._got_so_far is None:
            self._got_so_far = self.mass[::-1].cumsum()[::-1]
        leaning = above * num
        leaning += self.mass
        leaning /= self._got_so_far + num
        return leaning


class Levels:
    """At most `max_levels`; those used longest ago go first. `priors` are levels known at first."""

    def __init__(self, max_levels: int, priors: Mapping[Key, Level] | None = None) -> None:
        self._max_levels = max_levels
        self._priors = priors or {}
        self._levels: OrderedDict[Key, Level] = OrderedDict()

    def get(self, key: Key) -> Level | None:
        """Not to be changed by the caller."""
        return self._levels.get(key) or self._priors.get(key)

    def add(self, key: Key, wait: Mass, *, num: float = 1.0, keep: float = 1.0) -> None:
        """One more wait at a key; see `Level.add`."""
        level = self._levels.get(key)
        if level is None:
            prior = self._priors.get(key)
            level = Level(prior.mass, prior.weight) if prior is not None else Level()
            self.put(key, level)
        self._levels.move_to_end(key)
        level.add(wait, num=num, keep=keep)

    def put(self, key: Key, level: Level) -> None:
        """Takes a level, in place of the one used longest ago if there are too many."""
        self._levels[key] = level
        while len(self._levels) > self._max_levels:
            self._levels.popitem(last=False)

    def clear(self) -> None:
        self._levels.clear()

    def __len__(self) -> int:
        return len(self._levels)

    def items(self) -> Iterator[tuple[Key, Level]]:
        """From the one used longest ago to the one used last."""
        return iter(self._levels.items())
