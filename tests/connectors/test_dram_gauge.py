"""How full DRAM is is told in blocks and bytes, with no tier below it, too."""

from __future__ import annotations

from collections.abc import Callable

from kit import Agent, Rig

from agentkv import metrics


def shown(rig: Rig) -> tuple[float, float]:
    """Blocks and bytes, as the gauges have them after the next look."""
    rig.connector._side.below.tidy()
    gauges = rig.connector._recorder.gauges
    return gauges[metrics.TIER_BLOCKS, ("dram",)], gauges[metrics.TIER_BYTES, ("dram",)]


def test_blocks_and_bytes_in_dram_are_what_the_tier_holds(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    assert shown(rig) == (0, 0)
    agent = Agent(rig, "a", seed=1, num_blocks=10)
    agent.turn()
    rig.settle()
    blocks, num_bytes = shown(rig)
    assert blocks == rig.dram_blocks(agent.context) >= 10
    chunk_bytes = rig.connector.connector_scheduler.manager.spec.kv_bytes_per_chunk
    assert num_bytes == blocks * chunk_bytes > 0
