"""What KV a replica still has of which session: prefixes in a pool and in DRAM, oldest use first.

A session's KV is a prefix of its context, so it is a number of tokens; what many sessions share is
a prefix of its own, under theirs. Room is made at the tails of what was used longest ago, as vLLM
does. DRAM is exclusive, as agentkv's is: it holds what was used before that which fills the pool.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from dataclasses import dataclass

from agentkv.sim.trace import TraceSession


class Lineage:
    """How much of a session's requests is common to two of them, from the first token on."""

    def __init__(self, session: TraceSession) -> None:
        self.session = session
        self.common = functools.cache(self._common)

    def _common(self, turn: int, other: int) -> int:
        """Tokens of prompt `turn` that request `other` had, prompt or answer."""
        if turn < other:
            turn, other = other, turn
        if turn == other:
            return self.context(turn)
        row = self.session.turns[turn]
        if row.prefix_turn < 0:
            return 0
        return min(row.prefix_tokens, self._common(row.prefix_turn, other))

    def context(self, turn: int) -> int:
        """Tokens after the turn's answer."""
        row = self.session.turns[turn]
        return row.prompt_tokens + row.output_tokens


class PrefixCache:
    """At most `capacity_tokens` of prefixes, by name."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._used_tokens = 0
        self._prefixes: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def get(self, name: str) -> tuple[int, int]:
        """The turn it is of and its tokens; (-1, 0) if there is none."""
        return self._prefixes.get(name, (-1, 0))

    def touch(self, name: str) -> None:
        if name in self._prefixes:
            self._prefixes.move_to_end(name)

    def put(self, name: str, turn: int, num_tokens: int) -> None:
        """This is now used last, and takes the place of what was known under the name."""
        self._used_tokens -= self._prefixes.pop(name, (-1, 0))[1]
        kept = min(num_tokens, self._capacity_tokens)
        self._used_tokens += kept
        self._prefixes[name] = (turn, kept)
        while self._used_tokens > self._capacity_tokens:
            oldest, (of_turn, tokens) = next(iter(self._prefixes.items()))
            cut = min(tokens, self._used_tokens - self._capacity_tokens)
            self._used_tokens -= cut
            if cut == tokens:
                del self._prefixes[oldest]
            else:
                self._prefixes[oldest] = (of_turn, tokens - cut)


@dataclass(frozen=True, slots=True)
class Match:
    """Tokens of a prompt found in the pool, and behind them in DRAM."""

    pool_tokens: int
    dram_tokens: int

    @property
    def tokens(self) -> int:
        return self.pool_tokens + self.dram_tokens


class ReplicaKv:
    """One replica's pool and DRAM: the caches are the pool, and both together."""

    def __init__(self, pool_tokens: int, dram_tokens: int) -> None:
        self._tiers = (PrefixCache(pool_tokens), PrefixCache(pool_tokens + dram_tokens))

    def match(self, name: str, lineage: Lineage, turn: int) -> Match:
        """What a prompt would find here. `name`: of the run of the session."""
        in_pool, in_both = (_found(tier, name, lineage, turn) for tier in self._tiers)
        return Match(in_pool, max(0, in_both - in_pool))

    def touch(self, name: str, lineage: Lineage) -> None:
        """A turn arrived: what it will use goes last."""
        for tier in self._tiers:
            tier.touch(name)
            tier.touch(_shared_name(lineage.session))

    def put(self, name: str, lineage: Lineage, turn: int) -> None:
        """A turn is over: all of its context is here, as far as there is room."""
        shared = shared_tokens(lineage.session)
        for tier in self._tiers:
            tier.put(name, turn, lineage.context(turn) - shared)
            if shared:
                tier.put(_shared_name(lineage.session), 0, shared)


def shared_tokens(session: TraceSession) -> int:
    """Of each of its prompts, shared with other sessions."""
    return min(session.shared_tokens or 0, min(turn.prompt_tokens for turn in session.turns))


def _found(tier: PrefixCache, name: str, lineage: Lineage, turn: int) -> int:
    shared = shared_tokens(lineage.session)
    there = tier.get(_shared_name(lineage.session))[1] if shared else 0
    if there < shared:
        return min(there, shared)
    of_turn, tokens = tier.get(name)
    own = max(0, lineage.common(turn, of_turn) - shared) if of_turn >= 0 else 0
    return min(shared + min(own, tokens), lineage.session.turns[turn].prompt_tokens)


def _shared_name(session: TraceSession) -> str:
    return f"shared {session.shared_key}"
