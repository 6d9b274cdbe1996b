"""How scarce memory is: pool and DRAM sizes, from the live KV of the agents that play.

What: `live_tokens`, the context of all agents together as it is on average over time (as
`agentkv.sim.workload` weighs it: by the wait after each turn), and `regimes`, a size of the pool
and of DRAM for each pair of ratios. Why the number of agents is fixed: the load on the engine is
then the same everywhere, and only memory differs. x = live KV / (pool + DRAM) says how much fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.bench.replay_settings import ReplaySettings
from agentkv.demo.workload import TURN_S, Workload
from agentkv.errors import ConfigError

MIN_DRAM_BYTES = 1 << 20
"""What agentkv is given where DRAM is 0 times the pool: the least that its settings take."""


@dataclass(frozen=True, slots=True)
class Regime:
    """`dram_bytes` 0: no DRAM tier."""

    oversubscription: float
    dram_ratio: float
    pool_tokens: int
    dram_bytes: int
    kv_bytes_per_token: int

    @property
    def label(self) -> str:
        return f"{self.oversubscription:g}/{self.dram_ratio:g}"

    @property
    def pool_bytes(self) -> int:
        return self.pool_tokens * self.kv_bytes_per_token

    def pressure_x(self, live_tokens: float) -> float:
        """x = live KV / (pool + DRAM)."""
        return live_tokens * self.kv_bytes_per_token / (self.pool_bytes + self.dram_bytes)


def live_tokens(workload: Workload, *, num_agents: int, answer_tokens: int) -> float:
    """The tokens of `num_agents` contexts, averaged over the time that the sessions take."""
    weight = weighted = 0.0
    for session in workload.sessions:
        for number, turn in enumerate(session.turns):
            is_last = number == len(session.turns) - 1
            held_s = TURN_S + (0.0 if is_last else turn.wait_s)
            weight += held_s
            weighted += held_s * (turn.prompt_tokens + answer_tokens)
    return min(num_agents, len(workload.sessions)) * weighted / weight


def longest_request_tokens(workloads: Sequence[Workload], answer_tokens: int) -> int:
    """The longest prompt of all, with its answer."""
    prompts = (t.prompt_tokens for w in workloads for s in w.sessions for t in s.turns)
    return max(prompts) + answer_tokens


def regimes(
    settings: ReplaySettings, workloads: Sequence[Workload], kv_bytes_per_token: int
) -> list[Regime]:
    """One for each pair of ratios, sized for the mean of the seeds, smallest pressure first.

    Raises ConfigError if a pool would not hold the longest request.
    """
    live = sum(
        live_tokens(w, num_agents=settings.num_agents, answer_tokens=settings.answer_tokens)
        for w in workloads
    ) / len(workloads)
    longest = longest_request_tokens(workloads, settings.answer_tokens)
    found = [
        _regime(settings.block_size, live, ratio, dram, kv_bytes_per_token)
        for ratio in settings.oversubscription
        for dram in settings.dram
    ]
    for each in found:
        if each.pool_tokens < longest + settings.block_size:
            agents = math.ceil(settings.num_agents * (longest + 64) / each.pool_tokens)
            raise ConfigError(
                f"--oversubscription {each.oversubscription:g}: a pool of {each.pool_tokens:,} "
                f"tokens does not hold the longest request, {longest:,}; give --agents {agents} "
                "or more, or a smaller --max-context"
            )
    return sorted(found, key=lambda each: each.pressure_x(live))


def _regime(block_size: int, live: float, ratio: float, dram: float, token_bytes: int) -> Regime:
    pool_tokens = round(live / ratio / block_size) * block_size
    return Regime(
        oversubscription=ratio,
        dram_ratio=dram,
        pool_tokens=pool_tokens,
        dram_bytes=round(dram * pool_tokens * token_bytes),
        kv_bytes_per_token=token_bytes,
    )
