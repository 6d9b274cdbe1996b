"""Rigs with a tier below DRAM, on a real disk or a real server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.agent import Agent
from kit.control import tell
from kit.rig import Rig
from kit.tier_waits import let_tiers_work
from vllm.v1.kv_offload.base import make_offload_key

WAIT_S = 1000.0
_NUM_QUICK_STEPS = 2_000  # After them a step takes as long as by the engine's clock.
_MAX_STEPS = 14_000  # Two minutes at least.
HUMAN = {"tool": "human", "expected_wait_s": WAIT_S}


def ssd(path: Path, **extra: Any) -> dict[str, Any]:
    """Rig fields: a DRAM tier that a few sessions fill, a disk below it."""
    disk = {"path": str(path), "size_bytes": "64MiB", "min_free_bytes": "1MiB"}
    return {
        "pool_blocks": 40,
        "dram_blocks": 48,
        "extra": {"min_load_tokens": 0, "ssd": disk, **extra},
    }


def step_until(rig: Rig, condition: Callable[[], bool]) -> None:
    """Steps while threads work; the engine's own time moves too.

    Its end is a number of steps: a machine may stand still for longer than any time it is given.
    """
    first = rig.num_steps
    while not condition():
        num_steps = rig.num_steps - first
        assert num_steps < _MAX_STEPS, f"not so after {_MAX_STEPS} steps"
        if not rig.scheduler.has_requests():
            tell(rig)  # A tick, as the API process sends them while pauses are open.
        rig.step()
        let_tiers_work(rig)
        time.sleep(0.001 if num_steps < _NUM_QUICK_STEPS else rig.step_s)


def look_on(rig: Rig, num_steps: int = 60) -> None:
    """Steps while the tier's threads work."""
    last = rig.num_steps + num_steps
    step_until(rig, lambda: rig.num_steps >= last)


def tier(rig: Rig, index: int = 0) -> Any:
    return rig.connector.connector_scheduler.manager.tiers[index]


def blocks_in(rig: Rig, agent: Agent, index: int = 0) -> int:
    """Blocks of the agent's context that a tier holds."""
    keys = [make_offload_key(block_hash, 0) for block_hash in rig.hashes(agent.context)]
    return sum(tier(rig, index).holds(key) for key in keys)


def parked(rig: Rig, name: str = "waiting", *, num_blocks: float = 10, seed: int = 1) -> Agent:
    """An agent whose pause is long: its KV was written below DRAM."""
    agent = Agent(rig, name, seed, num_blocks)
    agent.turn(tag=HUMAN)
    step_until(rig, lambda: blocks_in(rig, agent) >= int(num_blocks))
    return agent


def crowd(rig: Rig, *, seed: int = 500, rounds: int = 4) -> list[Agent]:
    """Takes all of the pool and of DRAM with sessions that stay."""
    half = rig.config.pool_blocks / 2 - 1.5
    agents = [Agent(rig, f"crowd{seed + i}", seed + i, half) for i in range(rounds)]
    for agent in agents:
        agent.turn(tag={"tool": "bash", "expected_wait_s": 10.0})
        rig.settle()
    return agents
