"""A fault inside agentkv is counted and costs a hit at most: never an error, a hang or a leak."""

from collections.abc import Callable
from typing import Any

import pytest
from kit import Agent, Rig, blocks
from kit.clean import engine_leaks
from kit.control import tell
from vllm.v1.kv_offload.base import make_offload_key

from agentkv.appraisal import Appraiser
from agentkv.connectors import scheduler_side
from agentkv.connectors.arrived import ArrivedTurns
from agentkv.connectors.cache_policy import AgentKVCachePolicy
from agentkv.connectors.control import ControlPort
from agentkv.connectors.dead_blocks import DeadBlocks
from agentkv.connectors.held_twice import HeldTwice
from agentkv.connectors.pool_load import PoolLoader
from agentkv.connectors.pool_order import PoolOrder
from agentkv.connectors.pool_store import PoolStore
from agentkv.connectors.prefetcher import Prefetcher
from agentkv.connectors.step_timer import StepTimer
from agentkv.controller import Controller
from agentkv.cost_model import LinkSpeed
from agentkv.event_handler import EventHandler
from agentkv.pause_book import PauseBook
from agentkv.prefetch import PrefetchBook
from agentkv.sessions import SessionTracker
from agentkv.signals import Event

RigFactory = Callable[..., Rig]
FAULTS = [
    (scheduler_side, "tag_of"),
    (scheduler_side, "computed_hashes"),
    (Controller, "turn_arrived"),
    (Controller, "turn_scheduled"),
    (Controller, "turn_finished"),
    (Controller, "turn_preempted"),
    (Appraiser, "observe_demand"),
    (Controller, "victims"),
    (Appraiser, "min_load_tokens"),
    (SessionTracker, "take_dead"),
    (Controller, "tidy"),
    (Controller, "clear"),
    (SessionTracker, "turn"),
    (SessionTracker, "finish"),
    (ArrivedTurns, "add"),
    (ArrivedTurns, "remove"),
    (ArrivedTurns, "renew"),
    (ArrivedTurns, "protect_in_dram"),
    (AgentKVCachePolicy, "protect"),
    (AgentKVCachePolicy, "make_needed"),
    (HeldTwice, "find"),
    (PoolStore, "want"),
    (PoolStore, "added_to"),
    (AgentKVCachePolicy, "key_of_chunk"),
    (DeadBlocks, "remind_dram"),
    (PoolOrder, "cached_depth"),
    (PoolOrder, "protect"),
    (PoolOrder, "give_up"),
    (PoolOrder, "discard"),
    (PoolOrder, "count_front"),
    (StepTimer, "scheduled"),
    (StepTimer, "finished"),
    (LinkSpeed, "observe"),
    (EventHandler, "apply"),
    (ControlPort, "receive"),
    (ControlPort, "add_to"),
    (Prefetcher, "note_finished"),
    (Prefetcher, "consider"),
    (Prefetcher, "_make_room"),
    (PoolLoader, "start"),
    (PrefetchBook, "start"),
    (PrefetchBook, "finish"),
    (PrefetchBook, "resumed"),
    (PauseBook, "take_back"),
    (Prefetcher, "_settle"),
]


def _broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("broken on purpose")


def damage_one(rig: Rig, agents: list[Agent]) -> None:
    """A block in the middle of what DRAM has of some session."""
    for agent in agents:
        for block in (2, 3, 4):
            if rig.dram.get(make_offload_key(rig.hashes(agent.context)[block], 0)) is not None:
                rig.flip_dram_byte(agent.context, block)
                return
    raise AssertionError("DRAM has nothing of them")


@pytest.mark.parametrize(
    ("owner", "name"), FAULTS, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_fault_anywhere_is_survived(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Turns, pressure, loads, a damaged block, an end, resets: all with one part broken."""
    rig = make_rig(pool_blocks=30, dram_blocks=26, max_num_seqs=2)
    rig.is_spoilt = True  # the fault counter itself
    agents = [Agent(rig, f"agent{i}", i + 1, 5.5) for i in range(4)]
    for agent in agents[:2]:
        agent.turn()
    monkeypatch.setattr(owner, name, _broken)
    for agent in agents:
        agent.turn(tag={"tool": "bash"})
    # More than the pool and DRAM hold, all at once.
    crowd = [Agent(rig, f"crowd{i}", i + 20, 7) for i in range(5)]
    for agent in crowd:
        agent.turn()
    for agent in crowd:
        agent.arrive(tool_tokens=blocks(3), max_tokens=2)
    rig.settle()
    for name in ("agent0", "agent1", "nobody"):
        tell(rig, Event(event="resume", session_id=name))
        rig.settle()
    agents[0].turn()
    rig.drop_gpu_cache()
    everybody = [*agents, *crowd]
    damage_one(rig, everybody)
    ids = [agent.arrive(tool_tokens=blocks(2), max_tokens=20) for agent in everybody]
    rig.step(3)
    while rig.scheduler.kv_holding_waiting:
        rig.step()
    assert rig.scheduler.reset_prefix_cache(reset_running_requests=True)
    rig.clock.advance(2)
    rig.settle(max_steps=500)
    for request_id in ids:
        rig.check_answer(request_id)
    agents[0].turn(tag={"last_turn": True})
    rig.scheduler.reset_prefix_cache(reset_connector=True)
    agents[1].turn()
    assert rig.counter("agentkv:faults") > 0, "the broken part was used"
    assert list(engine_leaks(rig)) == []
