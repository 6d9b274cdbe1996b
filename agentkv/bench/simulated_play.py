"""One row of a replay once more in the simulator: the same sessions, pool, DRAM and system.

Where: `simulated` calls it for each row and compares what both say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentkv.bench.replay_settings import ReplaySettings
from agentkv.bench.replay_systems import merged
from agentkv.clock import ManualClock
from agentkv.config import AgentKVConfig
from agentkv.demo.agents import ClientKind
from agentkv.demo.ratios import REST_S
from agentkv.demo.rows import recomputed_tokens
from agentkv.sim.contenders import NATIVE, make_keeper
from agentkv.sim.dram import Dram
from agentkv.sim.engine import Engine
from agentkv.sim.machine import Link, Machine
from agentkv.sim.pool import Pool
from agentkv.sim.profiles import Profile
from agentkv.sim.scripted import Script, ScriptedAgents, ServedTurn
from agentkv.sim.tally import Tally
from agentkv.sim.workload import Options

EVERYTHING = 1_000_000
"""Blocks of a pool that never runs out."""

WARM_UP_S = REST_S + 1.0
"""The warm-up begins so long before the agents: about a second, and the rest after it."""

_END_S = float("inf")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What is simulated: one system at one regime and seed. `config`: agentkv's settings."""

    kind: str
    policy: str | None
    client: ClientKind
    pool_blocks: int
    dram_blocks: int
    config: Mapping[str, Any]


def replayed(
    row: Mapping[str, Any], system: Mapping[str, Any], value: Mapping[str, Any]
) -> Replayed:
    """Of a row of the replay's file and the system in its settings."""
    settings = value["provenance"]["settings"]
    block_size = settings["block_size"]
    token_bytes = value["provenance"]["model"]["kv_bytes_per_token"]
    kind = system["kind"]
    has_dram = kind in ("native", "agentkv")
    return Replayed(
        kind=kind,
        policy=system["policy"],
        client=ClientKind(system["client"]),
        pool_blocks=EVERYTHING if kind == "infinite" else -(-row["pool_tokens"] // block_size),
        dram_blocks=row["dram_bytes"] // (block_size * token_bytes) if has_dram else 0,
        config=merged(settings.get("extra", {}), system.get("config", {})),
    )


def play(
    what: Replayed,
    scripts: Sequence[Script],
    profile: Profile,
    settings: ReplaySettings,
    warm_up: Sequence[Script] = (),
    extra_s: Callable[[], float] = lambda: 0.0,
) -> list[ServedTurn]:
    """All turns in the order in which they ended; for `extra_s` see `ScriptedAgents`."""
    options = Options(
        block_tokens=settings.block_size,
        has_tags=what.client in (ClientKind.TAGS, ClientKind.SDK),
        has_ends=what.client in (ClientKind.TAGS, ClientKind.SDK),
    )
    machine = Machine(
        profile=profile,
        block_tokens=settings.block_size,
        pool=Pool(what.pool_blocks),
        dram=Dram(what.dram_blocks),
        load_link=Link(profile.load_bytes_per_s, profile.load_latency_s),
        clock=ManualClock(-WARM_UP_S),
    )
    tally = Tally(machine, 0.0)
    keeper = make_keeper(
        contender(what), machine, tally, options, stretch=1.0, config=_config(what)
    )
    agents = ScriptedAgents(
        machine,
        keeper,
        scripts,
        warm_up=warm_up,
        num_agents=settings.num_agents,
        begin_within_s=settings.begin_within_s,
        has_signals=what.client is ClientKind.SDK,
        extra_s=extra_s,
    )
    agents.engine = engine = Engine(machine, keeper, tally, agents.finished)
    agents.begin()
    engine.run(_END_S)
    machine.pool.check()
    return agents.served


def contender(what: Replayed) -> str:
    """The simulator's name for the system."""
    if what.policy is None:
        return NATIVE
    return "managed_lru" if what.policy == "lru" else what.policy


def _config(what: Replayed) -> AgentKVConfig | None:
    if what.policy is None:
        return None
    return AgentKVConfig.model_validate(dict(what.config))


def measured(
    served: Sequence[ServedTurn],
    scripts: Sequence[Script],
    *,
    block_size: int,
    at_once_share: float = 0.0,
) -> dict[str, float]:
    """The numbers that are compared, as `replay_measures.measure` takes them from servers.

    `at_once_share`: so many answers reach the client as a whole; their first token is their last.
    """
    known = {
        (script.plan.name, number): planned.num_known * block_size
        for script in scripts
        for number, planned in enumerate(script.plan.turns)
    }
    resumes = [turn for turn in served if turn.number]
    return {
        "hit_tokens": float(sum(turn.cached_tokens for turn in served)),
        "recomputed_tokens": float(
            sum(
                recomputed_tokens(known[t.session, t.number], t.cached_tokens, block_size)
                for t in resumes
            )
        ),
        "resume_ttft_mean_s": float(
            np.mean([t.ttft_s + at_once_share * (t.end_s - t.first_token_s) for t in resumes])
        ),
        "local_hit_tokens": float(sum(turn.gpu_hit_tokens for turn in served)),
        "external_hit_tokens": float(sum(turn.dram_hit_tokens for turn in served)),
        "duration_s": max(turn.end_s for turn in served),
    }
