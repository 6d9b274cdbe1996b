"""DRAM keeps what the pool does not have, and the pool gives nothing up that DRAM has not got."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.control import signal
from kit.copies import FOREVER
from kit.pool import Pool
from kit.tiers import blocks_in, step_until
from vllm.v1.kv_offload.base import make_offload_key

from agentkv.connectors.layout import Group, Layout
from agentkv.connectors.pool_store import PoolStore

RigFactory = Callable[..., Rig]
TOOL = {"tool": "bash", "expected_wait_s": 100.0}


def shape(*, exclusive: bool = True, **fields: Any) -> dict[str, Any]:
    """A pool and a DRAM tier of about the same size."""
    dram = {"size_bytes": "1MiB", "exclusive": exclusive}
    extra = {"min_load_tokens": 0, "prefetch": {"enabled": False}, "dram": dram}
    return {"pool_blocks": 60, "dram_blocks": 48, "policy": "always_swap", "extra": extra, **fields}


def fill(rig: Rig, num_agents: int, *, num_blocks: float = 10) -> list[Agent]:
    """Whoever paused first returns last: the pool gives up what DRAM, by age, would drop too."""
    agents = [Agent(rig, f"a{i}", i + 1, num_blocks) for i in range(num_agents)]
    turns(agents)
    return agents


def turns(agents: list[Agent]) -> None:
    for i, agent in enumerate(agents):
        agent.turn(tag={"tool": "bash", "expected_wait_s": 1000.0 - 50 * i})


def recomputed(rig: Rig) -> float:
    return rig.counter("agentkv:resume_tokens", "recomputed")


def test_pool_and_dram_together_hold_more_than_the_larger_one(make_rig: RigFactory) -> None:
    """Nine sessions of ten blocks: more than the pool's 60, less than 60 + 48."""
    held: list[int] = []
    again: list[float] = []
    for exclusive in (False, True):
        rig = make_rig(**shape(exclusive=exclusive))
        agents = fill(rig, 9)
        held.append(
            sum(max(rig.cached_blocks(a.context), rig.dram_blocks(a.context)) for a in agents)
        )
        turns(agents)
        again.append(recomputed(rig))
        assert (rig.counter("agentkv:copied_out_blocks") > 0) is exclusive
    assert held[0] <= 60 < 85 <= held[1]
    assert again[1] < again[0] / 4


@pytest.mark.parametrize("is_hybrid", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_rounds_of_turns_are_exact(make_rig: RigFactory, is_hybrid: bool, is_async: bool) -> None:
    rig = make_rig(**shape(is_hybrid=is_hybrid, is_async=is_async))
    agents = fill(rig, 6 if is_hybrid else 9, num_blocks=7 if is_hybrid else 9)
    for _ in range(3):
        turns(agents)
    assert rig.counter("agentkv:copied_out_blocks") > 0


def test_whoever_gets_the_blocks_waits_for_a_slow_copy(make_rig: RigFactory) -> None:
    rig = make_rig(**shape())
    agents = fill(rig, 5)
    rig.script.store_delay_steps = FOREVER
    rest = [Agent(rig, f"late{i}", 50 + i, 12) for i in range(4)]
    for agent in rest:  # vLLM's fence forces the copies whose blocks are taken.
        request_id = agent.arrive(tag=TOOL)
        rig.step_until(lambda request_id=request_id: rig.results[request_id].is_finished)
    rig.script.store_delay_steps = 0
    rig.copies.release()
    rig.settle()
    for agent in (*agents, *rest):
        agent.turn(tag=TOOL)


def test_chunks_of_several_blocks_are_copied_whole_or_not_at_all(make_rig: RigFactory) -> None:
    fields = shape()
    fields["extra"]["offloading"] = {"blocks_per_chunk": 4}
    rig = make_rig(**fields)
    agents = fill(rig, 9, num_blocks=9.5)
    for _ in range(2):
        turns(agents)


def test_an_end_or_a_reset_before_the_copy_leaves_nothing(make_rig: RigFactory) -> None:
    rig = make_rig(**shape())
    fill(rig, 5)
    rig.add("wants", list(range(40 * 16)), max_tokens=1)
    assert len(rig.side.exclusive.store) >= 0
    rig.scheduler.reset_prefix_cache(reset_connector=True)
    rig.settle()
    rig.check_answer("wants")


def test_while_dram_has_room_nothing_is_copied_twice(make_rig: RigFactory) -> None:
    rig = make_rig(**{**shape(), "dram_blocks": 200})
    agents = fill(rig, 9)
    for agent in agents:
        agent.turn(tag=TOOL)
    assert rig.counter("agentkv:copied_out_blocks") == 0
    assert recomputed(rig) == 0


def test_a_long_pause_is_parked_although_dram_has_dropped_its_copy(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    """The pool alone has it: it is copied out, and goes on to the disk."""
    fields = shape()
    disk = {"path": str(tmp_path), "size_bytes": "64MiB", "min_free_bytes": "1MiB"}
    fields["extra"] |= {"ssd": disk, "park_after_s": 50}
    rig = make_rig(**fields)
    agent = Agent(rig, "waits", 99, 10)
    agent.turn(tag={"tool": "bash", "expected_wait_s": 10.0})
    for block_hash in rig.hashes(agent.context):
        rig.side._damaged._drop(make_offload_key(block_hash, 0))
    assert rig.cached_blocks(agent.context) == 10 and rig.dram_blocks(agent.context) == 0
    rig.clock.advance(60.0)
    step_until(rig, lambda: blocks_in(rig, agent) == 10)


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_running_turns_copy_in_dram_goes_before_a_session_that_only_dram_has(
    make_rig: RigFactory, exclusive: bool
) -> None:
    """The pool cannot lose what is in use; what the turn leaves is copied out like others."""
    rig = make_rig(**shape(exclusive=exclusive))
    swapped = Agent(rig, "swapped", 1, 10)
    swapped.turn(tag=TOOL)
    rig.drop_gpu_cache()
    runner = Agent(rig, "runner", 2, 26)
    runner.arrive(max_tokens=60, tag=TOOL)
    rig.step_until(lambda: rig.dram_blocks(runner.context) >= 25)
    rig.add("newer", prompt(3, blocks(15)), session="other", tag=TOOL)
    rig.step_until(lambda: rig.results["newer"].is_finished)
    rig.step(3)
    assert (rig.dram_blocks(swapped.context) == 10) is exclusive
    rig.settle()
    signal(rig, "end", "other")
    Agent(rig, "big", 4, 55).turn(tag={"last_turn": True})
    assert rig.cached_blocks(runner.context) < 26
    found = runner.turn()
    assert found.gpu_hit_tokens + found.dram_hit_tokens >= 26 * 16
    assert (rig.counter("agentkv:copied_out_blocks") > 0) is exclusive


@pytest.mark.parametrize("policy", ["expected_cost", "break_even"])
def test_dram_drops_the_session_that_is_worth_least(make_rig: RigFactory, policy: str) -> None:
    """Both are in DRAM alone. The oldest one is expected back at once; where the policy does not
    rank it goes first all the same."""
    rig = make_rig(**shape(policy=policy))
    sessions = {}
    for seed, (name, wait_s) in enumerate((("soon", 1.0), ("late", 5000.0)), start=1):
        sessions[name] = Agent(rig, name, seed, 14)
        sessions[name].turn(tag={"tool": "bash", "expected_wait_s": wait_s})
    rig.drop_gpu_cache()
    Agent(rig, "new", 3, 28).turn(tag=TOOL)
    kept = {name: rig.dram_blocks(agent.context) for name, agent in sessions.items()}
    first, second = ("late", "soon") if policy == "expected_cost" else ("soon", "late")
    assert kept[first] < 14 and kept[second] == 14, kept


def test_what_only_the_pool_has_is_unstored_not_missing(make_rig: RigFactory) -> None:
    rig = make_rig(**shape())
    fill(rig, 9)
    sessions = rig.controller.sessions
    found = [rig.side.whereabouts.locate(sessions.private_blocks(session)) for session in sessions]
    assert any(location.num_unstored and not location.num_missing for location in found)


def test_a_chunk_of_which_a_block_is_gone_is_not_copied_out() -> None:
    group = Group(group_id=0, per_block=1, per_chunk=4, window=None)
    pool = Pool(12, (group,))
    ids = pool.cache(1, 8)
    store = PoolStore(SimpleNamespace(), Layout((group,), tokens_per_hash=16))  # type: ignore[arg-type]
    assert list(store._ids_of(group, pool.chains[1], pool.order)) == ids
    pool.pool.evict_blocks({ids[5]})
    assert list(store._ids_of(group, pool.chains[1], pool.order)) == [*ids[:4], 0, 0, 0, 0]


def test_what_is_held_twice_is_looked_for_once_in_a_while_who_returns_first_first(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(**shape())
    fill(rig, 3, num_blocks=3)
    exclusive = rig.side.exclusive
    held_twice = exclusive.held_twice

    def looked_at() -> list[str]:
        return [session.key.name for session in held_twice._held_sessions()]

    assert looked_at() == ["a2", "a1", "a0"] and looked_at() == []
    Agent(rig, "new", 9, 3).turn(tag=TOOL)
    assert looked_at() == ["new"] and looked_at() == []
    exclusive.make_room(10**6, set())
    assert looked_at() == [], "it was looked at already"
    rig.clock.advance(3.0)
    exclusive._drop_least = lambda num_wanted, besides: None
    seen: list[str] = []
    real = held_twice._held_sessions
    held_twice._held_sessions = lambda: (seen.append(each.key.name) or each for each in real())
    exclusive.make_room(10**6, set())
    assert seen == ["new", "a2", "a1", "a0"]
