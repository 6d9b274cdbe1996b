"""A session whose KV is away: others have taken its blocks while its tool runs."""

from __future__ import annotations

from kit.agent import Agent
from kit.rig import Rig

TOOL = {"tool": "bash", "expected_wait_s": 1000.0}
ANY_LENGTH = {"min_load_tokens": 0}
SMALL = {"pool_blocks": 40, "dram_blocks": 200, "policy": "always_swap", "extra": ANY_LENGTH}


def pushed_out(rig: Rig, num_blocks: float = 10, *, name: str = "waiting", seed: int = 1) -> Agent:
    """An agent that waits for its tool; others have taken its blocks and are still there."""
    agent = Agent(rig, name, seed, num_blocks)
    agent.turn(tag=TOOL)
    crowd(rig)
    assert rig.cached_blocks(agent.context) < num_blocks / 2
    return agent


def crowd(rig: Rig) -> None:
    """Takes the whole pool, one half after the other, with sessions that return soon."""
    for half in range(2):
        name = f"crowd{half}.{len(rig.results)}"
        agent = Agent(rig, name, 1000 + len(rig.results), rig.config.pool_blocks / 2 - 1.5)
        agent.turn(tag={"tool": "bash", "expected_wait_s": 10.0})


def outcomes(rig: Rig) -> dict[str, float]:
    return {labels[0]: n for labels, n in rig.counters.get("agentkv:prefetch_outcomes", {}).items()}
