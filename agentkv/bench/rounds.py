"""Runs the ways to move the same bytes by turns, and keeps how long each took.

What: a `Mover` is a tier or a peer; a round lets each of them store, then each load, in an order
drawn anew. Why a round that does not count: the first one opens files and connections, and gives
files their space. Where: `run` calls it for each tier and block size.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentkv.errors import AgentKVError

STORE, LOAD = "store", "load"
WAYS = (STORE, LOAD)


class BenchError(AgentKVError):
    """A tier did not do what is to be measured; there is no result then."""


class PeerError(Exception):
    """A peer cannot be measured; the text says why, for the table."""


class Mover(Protocol):
    """One way to move the blocks. Calls block; not thread-safe."""

    @property
    def name(self) -> str:
        """As in table and JSON."""

    def store(self) -> float:
        """Moves all blocks down, in place of what was there; returns seconds.

        Raises BenchError or PeerError if that failed.
        """

    def load(self) -> float:
        """Brings all blocks back that were stored last; returns seconds. Raises as `store`."""

    def facts(self) -> Mapping[str, Any]:
        """How it was done: threads, direct I/O, command line."""

    def close(self) -> None:
        """Gives back what it holds; idempotent."""


@dataclass(slots=True)
class Contest:
    """A tier, its peers, and why other peers are missing."""

    ours: Mover
    peers: list[Mover] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Closes all movers."""
        for mover in (self.ours, *self.peers):
            mover.close()


Times = Mapping[tuple[str, str], Sequence[float]]
"""Seconds of each round, by the mover's name and the way."""


def run_rounds(
    contest: Contest, *, num_rounds: int, seed: str, on_step: Callable[[str], None]
) -> Times:
    """Blocks until all rounds are done; a peer that fails moves to `missing`.

    Raises BenchError if the tier itself fails. `on_step` is told of each mover before its turn.
    """
    rng = random.Random(seed)
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(-1, num_rounds):
        for way in WAYS:
            for mover in _shuffled([contest.ours, *contest.peers], rng):
                on_step(f"{mover.name}, {way}")
                seconds = _move(contest, mover, way)
                if number >= 0 and seconds is not None:
                    times[mover.name, way].append(seconds)
    return times


def _shuffled(movers: list[Mover], rng: random.Random) -> list[Mover]:
    rng.shuffle(movers)
    return movers


def _move(contest: Contest, mover: Mover, way: str) -> float | None:
    """None if the peer has failed, now or in this round before."""
    if mover.name in contest.missing:
        return None
    try:
        return mover.store() if way == STORE else mover.load()
    except PeerError as error:
        contest.missing[mover.name] = str(error)
        contest.peers.remove(mover)
        mover.close()
        return None
