"""Where a returning turn goes when there are several replicas: the choices a router has.

What: round robin, sticky sessions, least loaded, and the documents' affinity-load objective. Why:
the KV of a session lies on one replica; sending its turn elsewhere computes all of it again, and
sending everything there lets others idle. Where: played on a trace by `placement_run`; a router of
a cluster does the same with vLLM's KV events. Formula: documents' "Cluster-scale prefix routing".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentkv.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as a router sees it when a turn arrives.

    `match_tokens`: of the prompt, from its first token on, whose KV is there. `load`: turns that
    wait or run there.
    """

    match_tokens: int
    load: int


class Placement(Protocol):
    """Chooses a replica for each turn, in the order in which they arrive."""

    @property
    def name(self) -> str:
        """As in tables and options."""

    def choose(self, session: str, prompt_tokens: int, replicas: Sequence[Candidate]) -> int:
        """The number of the replica, from 0."""


class RoundRobin:
    """One after the other, whatever lies where."""

    name = "round_robin"

    def __init__(self) -> None:
        self._next = -1

    def choose(self, session: str, prompt_tokens: int, replicas: Sequence[Candidate]) -> int:
        self._next = (self._next + 1) % len(replicas)
        return self._next


class LeastLoaded:
    """The replica with the fewest turns; of equal ones the first."""

    name = "least_loaded"

    def choose(self, session: str, prompt_tokens: int, replicas: Sequence[Candidate]) -> int:
        return min(range(len(replicas)), key=lambda j: replicas[j].load)


class Sticky:
    """A session stays where it began: where the fewest sessions were, then the fewest turns."""

    name = "sticky"

    def __init__(self) -> None:
        self._home: dict[str, int] = {}
        self._sessions: Counter[int] = Counter()

    def choose(self, session: str, prompt_tokens: int, replicas: Sequence[Candidate]) -> int:
        if session not in self._home:
            home = min(range(len(replicas)), key=lambda j: (self._sessions[j], replicas[j].load))
            self._home[session] = home
            self._sessions[home] += 1
        return self._home[session]

    def end(self, session: str) -> None:
        """No turn of it will follow."""
        self._sessions[self._home.pop(session)] -= 1


def affinity_load(
    match_share: float, load_share: float, *, weight: float, gamma: float = 1.0
) -> float:
    """w·Match/S - (1 - w)·(L/L_max)^gamma; both shares from 0 up. Higher is better."""
    return weight * match_share - (1 - weight) * math.pow(load_share, gamma)


class AffinityLoad:
    """The replica with the highest `affinity_load`; of equal ones the least loaded.

    `max_load` is L_max: the turns that a replica has when it counts as full. The documents leave it
    open; the load of the most loaded replica would make one turn on an idle cluster a full load.
    """

    def __init__(self, *, weight: float, max_load: float, gamma: float = 1.0) -> None:
        if not 0 <= weight <= 1:
            raise ConfigError(f"--affinity {weight:g}: give a weight from 0 to 1, as 0.7")
        if max_load <= 0:
            raise ConfigError(f"--max-load {max_load:g}: give a number of turns above 0")
        if gamma <= 0:
            raise ConfigError(f"--gamma {gamma:g}: give an exponent above 0, as 1")
        self.name = f"affinity {weight:g}"
        self._weight, self._max_load, self._gamma = weight, max_load, gamma

    def choose(self, session: str, prompt_tokens: int, replicas: Sequence[Candidate]) -> int:
        def worth(j: int) -> tuple[float, int]:
            share, load = replicas[j].match_tokens / prompt_tokens, replicas[j].load
            score = affinity_load(
                share, load / self._max_load, weight=self._weight, gamma=self._gamma
            )
            return score, -load

        return max(range(len(replicas)), key=worth)


def placements(
    weights: Sequence[float], *, max_load: float, gamma: float
) -> list[Callable[[], Placement]]:
    """A maker of each kind, for one run each; one affinity-load for each weight.

    Raises ConfigError for what makes no sense.
    """

    def weighted(weight: float) -> Callable[[], Placement]:
        AffinityLoad(weight=weight, max_load=max_load, gamma=gamma)  # Complains at once.
        return lambda: AffinityLoad(weight=weight, max_load=max_load, gamma=gamma)

    return [RoundRobin, LeastLoaded, Sticky, *(weighted(weight) for weight in weights)]
