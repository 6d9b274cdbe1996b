"""What goes first where several loads are wanted at once, and what a reset makes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kit import Agent, Rig
from kit.away import outcomes
from kit.control import signal

from agentkv.prefetch import Trigger, Wanted

RigFactory = Callable[..., Rig]
TOOL = {"tool": "bash", "expected_wait_s": 1000.0}


def away(rig: Rig, *names: str) -> list[Agent]:
    """Agents whose blocks others have, who pause too."""
    agents = [Agent(rig, name, 1 + i, 8) for i, name in enumerate(names)]
    for agent in agents:
        agent.turn(tag=TOOL)
    for seed in (50, 51):
        Agent(rig, f"other{seed}", seed, 18.5).turn(tag={**TOOL, "expected_wait_s": 10.0})
    assert all(rig.cached_blocks(agent.context) < 4 for agent in agents)
    return agents


def wanted(rig: Rig, agent: Agent, trigger: Trigger) -> Wanted:
    (session,) = (s for s in rig.controller.sessions if s.key.name == agent.name)
    return Wanted(session, trigger)


def test_a_finished_tool_goes_before_idle_room_whichever_was_noted_first(
    make_rig: RigFactory,
) -> None:
    """The rest of a load in parts is noted before what a client has just said."""
    extra = {"prefetch": {"reserve_fraction": 0.5}}  # There is no idle room.
    rig = make_rig(pool_blocks=40, dram_blocks=200, extra=extra)
    first, second = away(rig, "idle", "done")
    prefetcher = rig.side.returns.prefetcher
    prefetcher._wanted.append(wanted(rig, first, Trigger.HEADROOM))
    prefetcher._wanted.append(wanted(rig, second, Trigger.RESUME))
    prefetcher.start(rig.side._order)
    assert [w.session.key.name for w in prefetcher._loading.values()] == ["done"]
    assert prefetcher._full_until_s == 0.0, "predictions may take what idle room does not"
    rig.settle()


@pytest.mark.parametrize("reset_dram", [False, True])
def test_what_a_reset_takes_from_the_pool_is_lost_not_useless(
    make_rig: RigFactory, reset_dram: bool
) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    (agent,) = away(rig, "waiting")
    signal(rig, "resume", "waiting")
    rig.settle()
    assert rig.cached_blocks(agent.context) >= 8
    assert rig.scheduler.reset_prefix_cache(reset_connector=reset_dram)
    rig.settle()
    agent.turn()
    assert outcomes(rig) == {"lost": 1}
