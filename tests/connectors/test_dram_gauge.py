"""How full the pool and DRAM are: DRAM in bytes too, with no tier below it as well."""

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


def test_of_the_pool_what_is_kept_for_pauses_that_were_not_given_up(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(pool_blocks=60)
    for seed in (1, 2, 3):
        Agent(rig, f"a{seed}", seed=seed, num_blocks=4).turn()
    rig.settle()
    side, book = rig.side, rig.controller.pauses
    (away, pause), *kept = book.kept()
    book.give_up(away, pause)
    side.room.record(side.returns.order)
    gauges = rig.connector._recorder.gauges
    num_kept = sum(side.layout.blocks(each.context_tokens) for _, each in kept)
    assert gauges[metrics.BLOCKS, ("kept",)] == num_kept >= 8
    others = gauges[metrics.BLOCKS, ("used",)] + gauges[metrics.BLOCKS, ("free",)]
    assert others + num_kept == side.returns.order.num_blocks
