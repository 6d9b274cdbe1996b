"""Plays recorded sessions on several replicas under one placement, and counts what it cost.

    arrival ─► placement ─► load from DRAM ─► prefill, one at a time ─► answer ─► wait ─► next

A closed loop: so many agents at a time, each takes the next session when its own is over, and a
turn arrives its recorded wait after the answer before. Simple on purpose, so that only placements
differ: each replica keeps KV by `replica_kv` (plain LRU), computes prompts first come first served
at the profile's speed, and decodes beside that without slowing it down. The router knows at once
where KV lies.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agentkv.plan.placement import Candidate, Placement, Sticky
from agentkv.plan.replica_kv import Lineage, Match, ReplicaKv, shared_tokens
from agentkv.sim.profiles import Profile
from agentkv.sim.trace import TraceSession


@dataclass(frozen=True, slots=True)
class Cluster:
    """`num_replicas` engines like `profile`, each with `dram_tokens` beside its pool."""

    profile: Profile
    num_replicas: int
    dram_tokens: int


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """All turns of the trace once.

    `reusable_tokens`: prompt tokens that the cluster had computed before; `recomputed_tokens`: of
    these, what the chosen replica had to compute again. `imbalance`: prefill time of the busiest
    replica over the mean, 1 if even. `wait`: from arrival to the first token. `moved_turns`: placed
    elsewhere than the turn before.
    """

    placement: str
    num_turns: int
    moved_turns: int
    prompt_tokens: int
    reusable_tokens: int
    recomputed_tokens: int
    dram_tokens: int
    imbalance: float
    wait_p50_s: float
    wait_p95_s: float
    makespan_s: float

    @property
    def recomputed_share(self) -> float:
        return self.recomputed_tokens / max(1, self.reusable_tokens)

    @property
    def turns_per_hour(self) -> float:
        return 3600 * self.num_turns / self.makespan_s if self.makespan_s else math.nan


@dataclass(slots=True)
class _Replica:
    kv: ReplicaKv
    load: int = 0
    free_at_s: float = 0.0
    busy_s: float = 0.0


@dataclass(slots=True)
class _Agent:
    """A session being played; `home`: where its last turn was."""

    name: str
    lineage: Lineage
    turn: int = 0
    home: int | None = None


@dataclass(slots=True)
class _Tally:
    waits_s: list[float] = field(default_factory=list)
    moved_turns: int = 0
    prompt_tokens: int = 0
    reusable_tokens: int = 0
    recomputed_tokens: int = 0
    dram_tokens: int = 0
    last_s: float = 0.0


def play(
    sessions: Sequence[TraceSession],
    cluster: Cluster,
    placement: Placement,
    *,
    num_agents: int,
    seed: int | None = None,
) -> PlacementResult:
    """Plays each session once, `num_agents` at a time, in their order or shuffled by `seed`.

    Sessions need waits and shared tokens (`fill_waits`, `guess_shared`).
    """
    return _Run(sessions, cluster, placement, num_agents, seed).result()


class _Run:
    def __init__(
        self,
        sessions: Sequence[TraceSession],
        cluster: Cluster,
        placement: Placement,
        num_agents: int,
        seed: int | None,
    ) -> None:
        order = list(sessions)
        if seed is not None:
            random.Random(seed).shuffle(order)
        self._left = iter([_Agent(f"{n} {s.name}", Lineage(s)) for n, s in enumerate(order)])
        self._profile = cluster.profile
        self._replicas = [
            _Replica(ReplicaKv(cluster.profile.pool_tokens, cluster.dram_tokens))
            for _ in range(cluster.num_replicas)
        ]
        self._placement = placement
        self._tally = _Tally()
        self._seen: set[str] = set()
        self._order = itertools.count()
        self._events: list[tuple[float, int, _Agent, bool]] = []
        for agent in itertools.islice(self._left, num_agents):
            self._push(0.0, agent, is_end=False)

    def result(self) -> PlacementResult:
        while self._events:
            now_s, _, agent, is_end = heapq.heappop(self._events)
            if is_end:
                self._end(now_s, agent)
            else:
                self._arrive(now_s, agent)
        tally = self._tally
        busy = [replica.busy_s for replica in self._replicas]
        p50, p95 = (float(x) for x in np.quantile(tally.waits_s, (0.5, 0.95)))
        return PlacementResult(
            placement=self._placement.name,
            num_turns=len(tally.waits_s),
            moved_turns=tally.moved_turns,
            prompt_tokens=tally.prompt_tokens,
            reusable_tokens=tally.reusable_tokens,
            recomputed_tokens=tally.recomputed_tokens,
            dram_tokens=tally.dram_tokens,
            imbalance=max(busy) / (sum(busy) / len(busy)) if any(busy) else 1.0,
            wait_p50_s=p50,
            wait_p95_s=p95,
            makespan_s=tally.last_s,
        )

    def _push(self, at_s: float, agent: _Agent, *, is_end: bool) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), agent, is_end))

    def _arrive(self, now_s: float, agent: _Agent) -> None:
        row = agent.lineage.session.turns[agent.turn]
        matches = [r.kv.match(agent.name, agent.lineage, agent.turn) for r in self._replicas]
        seen = [
            Candidate(match.tokens, replica.load)
            for match, replica in zip(matches, self._replicas, strict=True)
        ]
        chosen = self._placement.choose(agent.name, row.prompt_tokens, seen)
        replica, match = self._replicas[chosen], matches[chosen]
        replica.load += 1
        replica.kv.touch(agent.name, agent.lineage)
        first_s = self._prefill(now_s, replica, row.prompt_tokens, match)
        self._count(agent, match, first_s - now_s)
        self._tally.moved_turns += agent.home not in (None, chosen)
        agent.home = chosen
        context = row.prompt_tokens + row.output_tokens
        step_s = self._profile.decode_step_s + self._profile.read_s_per_token * context
        self._push(first_s + row.output_tokens * step_s, agent, is_end=True)

    def _prefill(self, now_s: float, replica: _Replica, prompt: int, match: Match) -> float:
        """When the first token comes."""
        profile, new = self._profile, prompt - match.tokens
        load_s = 0.0
        if match.dram_tokens:
            num_bytes = match.dram_tokens * profile.bytes_per_token
            load_s = profile.load_latency_s + num_bytes / profile.load_bytes_per_s
        compute_s = profile.prefill_s(new, match.tokens + new / 2)
        replica.busy_s += compute_s
        replica.free_at_s = max(replica.free_at_s, now_s + load_s) + compute_s
        return replica.free_at_s

    def _count(self, agent: _Agent, match: Match, wait_s: float) -> None:
        session, tally = agent.lineage.session, self._tally
        row = session.turns[agent.turn]
        shared = shared_tokens(session) if session.shared_key in self._seen else 0
        self._seen.add(session.shared_key)
        reusable = min(row.prompt_tokens, max(shared, row.prefix_tokens))
        tally.waits_s.append(wait_s)
        tally.prompt_tokens += row.prompt_tokens
        tally.reusable_tokens += reusable
        tally.recomputed_tokens += max(0, reusable - match.tokens)
        tally.dram_tokens += match.dram_tokens

    def _end(self, now_s: float, agent: _Agent) -> None:
        assert agent.home is not None
        replica, session = self._replicas[agent.home], agent.lineage.session
        replica.load -= 1
        replica.kv.put(agent.name, agent.lineage, agent.turn)
        self._tally.last_s = max(self._tally.last_s, now_s)
        wait_s = session.turns[agent.turn].wait_s or 0.0
        agent.turn += 1
        if agent.turn < len(session.turns):
            self._push(now_s + wait_s, agent, is_end=False)
            return
        if isinstance(self._placement, Sticky):
            self._placement.end(agent.name)
        following = next(self._left, None)
        if following is not None:
            self._push(now_s, following, is_end=False)
