"""DRAM drops what the pool has, too, as long as there is any, and then no more than it must."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from kit import Agent, Rig
from kit.pool import Pool
from vllm.v1.kv_offload.base import make_offload_key

RigFactory = Callable[..., Rig]
TOOL = {"tool": "bash", "expected_wait_s": 100.0}


def shape(**fields: Any) -> dict[str, Any]:
    extra = {"min_load_tokens": 0, "prefetch": {"enabled": False}, "dram": {"size_bytes": "1MiB"}}
    return {"pool_blocks": 60, "dram_blocks": 48, "policy": "always_swap", "extra": extra, **fields}


def turn(agent: Agent, **tag: Any) -> None:
    agent.turn(tag={"tool": "bash", **tag})


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_fits_pool_and_dram_together_is_not_computed_again(
    make_rig: RigFactory, seed: int, is_async: bool
) -> None:
    """Nine sessions, 72 blocks in the end, take turns in any order; there is room for 107.

    The last block of a turn may be lost where the pool needs its room at once.
    """
    rig = make_rig(**shape(is_async=is_async))
    numbers = random.Random(seed)
    agents = [Agent(rig, f"a{i}", i + 1, 7) for i in range(9)]
    for _ in range(4):
        for agent in numbers.sample(agents, 9):
            turn(agent, expected_wait_s=numbers.uniform(5, 500))
            rig.clock.advance(0.05)
    assert rig.counter("agentkv:copied_out_blocks") > 0
    assert rig.counter("agentkv:resume_tokens", "recomputed") <= 16


def test_what_a_turn_stores_late_goes_before_what_dram_alone_has(make_rig: RigFactory) -> None:
    """A long answer: DRAM holds 24, the turn stores 28, and each of its blocks is in the pool."""
    rig = make_rig(**shape(dram_blocks=24))
    swapped = Agent(rig, "swapped", 1, 12)
    turn(swapped, expected_wait_s=100.0)
    rig.drop_gpu_cache()
    Agent(rig, "runner", 2, 8).turn(max_tokens=20 * 16, tag=TOOL)
    assert rig.dram_blocks(swapped.context) == 12


def test_no_more_is_dropped_than_has_to_be(make_rig: RigFactory) -> None:
    """Eight blocks are lost for the first turn; the second one's go where the first one's were."""
    rig = make_rig(**shape(policy="expected_cost"))
    agents = {"soon": Agent(rig, "soon", 1, 14), "late": Agent(rig, "late", 2, 14)}
    turn(agents["soon"], expected_wait_s=1.0)
    turn(agents["late"], expected_wait_s=5000.0)
    rig.drop_gpu_cache()
    for seed, size in ((3, 28), (4, 10)):
        turn(Agent(rig, f"new{seed}", seed, size), expected_wait_s=100.0)
        kept = {name: rig.dram_blocks(agent.context) for name, agent in agents.items()}
        assert kept == {"soon": 14, "late": 6}


def test_what_has_lost_its_prefix_is_not_dropped(make_rig: RigFactory) -> None:
    """Nobody could copy it out when the pool gives it up."""
    rig = make_rig(**shape())
    found = rig.side.exclusive.held_twice
    order = rig.side.returns.order
    agent = Agent(rig, "paused", 1, 10)
    turn(agent, expected_wait_s=100.0)
    found._kept.clear()
    assert found.find(order, 100, set()) == []
    turn(agent, expected_wait_s=100.0)
    assert len(found.find(order, 100, set())) == 10


def test_what_sessions_share_is_not_dropped(make_rig: RigFactory) -> None:
    """The pool gives up what one session has for itself, and copies no more out."""
    rig = make_rig(**shape())
    shared = list(range(1, 5 * 16 + 1))
    agents = [Agent(rig, f"a{i}", i + 1, 4, shared=shared) for i in range(2)]
    for agent in agents:
        turn(agent, expected_wait_s=100.0)
    keys = set(rig.side.exclusive.held_twice.find(rig.side.returns.order, 100, set()))
    hashes = rig.hashes(agents[0].context)
    assert not keys & {make_offload_key(each, 0) for each in hashes[:5]}
    assert keys >= {make_offload_key(each, 0) for each in hashes[5:9]}


def test_a_block_given_up_has_no_users_until_it_is_used() -> None:
    pool = Pool(8)
    pool.cache(1, 4)
    keys = [make_offload_key(each, 0) for each in pool.chains[1]]
    assert list(map(pool.order.num_users, keys)) == [0, 0, 0, 0]
    pool.order.give_up(pool.refs(1)[:2])
    assert list(map(pool.order.num_users, keys)) == [0, 0, None, None]
    pool.pool.touch(pool.pool.get_cached_block(pool.chains[1][3], [0]))
    assert pool.order.num_users(keys[3]) == 1, "whoever uses it keeps it"
    pool.pool.evict_blocks({pool.order.block_id(pool.order._groups[0], pool.chains[1][0])})
    assert pool.order.num_users(keys[0]) is None


def keys_of(rig: Rig, agent: Agent) -> list[bytes]:
    return [make_offload_key(each, 0) for each in rig.hashes(agent.context)]


def test_what_room_is_made_for_makes_none(make_rig: RigFactory) -> None:
    """All of a turn's blocks are held twice, another one's too: those of the other one go."""
    rig = make_rig(**shape(dram_blocks=20))
    first, second = (Agent(rig, name, seed, 9) for seed, name in enumerate(("b", "a"), start=1))
    for agent in (first, second):
        turn(agent, expected_wait_s=100.0)
    exclusive = rig.side.exclusive
    own = set(keys_of(rig, second)[:9])
    exclusive.make_room(4, own)
    assert rig.dram.num_expendable_of(own) == 0
    assert rig.dram.num_expendable >= 4
    before = {key for key in own if rig.dram.is_sole(key)}
    assert before == own


def test_a_copy_that_is_under_way_makes_no_room(make_rig: RigFactory) -> None:
    """What is looked for goes on behind it."""
    rig = make_rig(**shape())
    old, new = Agent(rig, "old", 1, 10), Agent(rig, "new", 2, 10)
    turn(old, expected_wait_s=100.0)
    turn(new, expected_wait_s=100.0)
    busy = keys_of(rig, new)[:10]
    for key in busy:
        rig.dram.mark_non_evictable(key)
    found = rig.side.exclusive.held_twice.find(rig.side.returns.order, 4, set())
    assert len(set(found) - set(busy)) >= 4
    for key in busy:
        rig.dram.mark_evictable(key)


def test_what_a_pause_gave_up_is_not_dropped_though_the_pool_still_has_it(
    make_rig: RigFactory,
) -> None:
    """As after a prefetch that found no room: nothing is marked, and nobody copies it out again."""
    rig = make_rig(**shape())
    agent = Agent(rig, "away", 1, 10)
    turn(agent, expected_wait_s=100.0)
    order, found = rig.side.returns.order, rig.side.exclusive.held_twice
    (session,) = rig.controller.sessions
    (victim,) = rig.controller.victims()
    assert session.pause is not None and session.pause.is_given_up
    order.give_up(victim.refs)
    order.protect([rig.controller.sessions.all_blocks(session)])
    assert order.num_users(keys_of(rig, agent)[0]) == 0
    assert found.find(order, 100, set()) == []


def test_what_several_running_turns_have_computed_is_not_dropped(make_rig: RigFactory) -> None:
    """A prompt that they share belongs to no session yet, and will not be copied out for one."""
    rig = make_rig(**shape())
    shared = list(range(1, 6 * 16 + 1))
    runners = [Agent(rig, f"r{i}", i + 1, 2, shared=shared) for i in range(2)]
    for agent in runners:
        agent.arrive(max_tokens=40, tag=TOOL)
    rig.step_until(lambda: rig.dram_blocks(runners[1].context) >= 8)
    held_twice = rig.side.exclusive.held_twice
    found = set(held_twice._dram.take_fresh())
    assert found >= set(keys_of(rig, runners[0])[:6])
    order = rig.side.returns.order
    private = {
        key
        for agent in runners
        for key in keys_of(rig, agent)
        if held_twice._is_private(key[:-4], order.num_users(key) or 0)
    }
    assert private.isdisjoint(keys_of(rig, runners[0])[:6])
    rig.settle()
