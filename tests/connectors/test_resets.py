"""`reset_prefix_cache` works at any moment: nothing of ours holds a block."""

from collections.abc import Callable
from typing import Any

import pytest
from kit import Agent, Kind, Rig, blocks, prompt
from kit.copies import FOREVER

RigFactory = Callable[..., Rig]
SHAPES = pytest.mark.parametrize("fields", [{}, {"is_hybrid": True}, {"is_async": True}])
BOTH = pytest.mark.parametrize("with_connector", [False, True])


def _busy(rig: Rig) -> tuple[list[Agent], list[str]]:
    """Held, running and waiting turns, and stores under way."""
    agents = [Agent(rig, f"agent{i}", i + 1, 5) for i in range(5)]
    for agent in agents:
        agent.turn()
    rig.script.store_delay_steps = 3
    ids = [agent.arrive(tool_tokens=blocks(2), max_tokens=12) for agent in agents]
    return agents, ids


@SHAPES
@BOTH
@pytest.mark.parametrize("num_steps", range(7))
def test_a_reset_under_full_load_succeeds_and_every_answer_is_right(
    make_rig: RigFactory, fields: dict[str, Any], with_connector: bool, num_steps: int
) -> None:
    rig = make_rig(pool_blocks=48, max_num_seqs=2, policy="always_hold", **fields)
    _, ids = _busy(rig)
    rig.step(num_steps)
    while rig.scheduler.kv_holding_waiting:
        rig.step()  # vLLM itself refuses a forced reset during a load,
    rig.drain()  # and while an overlapping step still writes
    assert rig.scheduler.reset_prefix_cache(
        reset_running_requests=True, reset_connector=with_connector
    )
    rig.settle()
    for request_id in ids:
        rig.check_answer(request_id)


@BOTH
def test_a_reset_between_turns_needs_no_force(make_rig: RigFactory, with_connector: bool) -> None:
    rig = make_rig(policy="always_hold")
    agents = [Agent(rig, f"agent{i}", i + 1, 5) for i in range(4)]
    for agent in agents:
        agent.turn()
    assert rig.scheduler.reset_prefix_cache(reset_connector=with_connector)
    for agent in agents:
        assert rig.cached_blocks(agent.context) == 0
        resumed = agent.turn()
        assert resumed.dram_hit_tokens == (0 if with_connector else blocks(5))


def test_a_reset_of_the_connector_lets_no_store_under_way_land_later(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.script.store_delay_steps = 5
    tokens = prompt(1, blocks(6))
    rig.add("r", tokens, max_tokens=2)
    rig.step_until(lambda: rig.results["r"].is_finished)
    assert rig.copies.late_jobs(is_store=True)
    assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    rig.settle()
    assert rig.dram_blocks(tokens) == 0
    assert rig.run("again", [*tokens, 1]).dram_hit_tokens == 0


def test_a_reset_while_a_turn_loads_lets_it_finish(make_rig: RigFactory) -> None:
    """vLLM reports the pool as not reset, but clears the tier all the same."""
    rig = make_rig()
    agent = Agent(rig, "agent", 1, 6)
    agent.turn()
    rig.drop_gpu_cache()
    rig.script.load_delay_steps = 4
    request_id = agent.arrive()
    rig.step(2)
    assert not rig.scheduler.reset_prefix_cache(reset_connector=True)
    rig.settle()
    rig.check_answer(request_id)


def test_after_a_reset_a_waiting_turn_is_protected_as_before(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=30, max_num_seqs=1)
    agent = Agent(rig, "agent", 1, 6)
    agent.turn()
    rig.add("busy", prompt(2, blocks(3)), max_tokens=60)
    rig.step(2)
    waiting, twin = agent.arrive(), "twin"
    rig.add(twin, agent.context)
    assert not rig.scheduler.reset_prefix_cache(reset_connector=True), "a turn is running"
    rig.step(1)
    keys = rig.side.layout.keys(enumerate(rig.hashes(agent.context), start=1))
    rig.side.before_dram_evicts(1, set())
    assert all(rig.dram._arrived[key] == 2 for key in keys)
    rig.abort(waiting)
    assert all(rig.dram._arrived[key] == 1 for key in keys)
    rig.settle()


def test_sessions_go_on_after_a_reset(make_rig: RigFactory) -> None:
    rig = make_rig()
    agent = Agent(rig, "agent", 1, 5)
    agent.turn()
    assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    assert len(rig.controller.sessions.tree) == 0
    agent.turn()
    agent.turn()
    (session,) = rig.controller.sessions
    assert session.branches[0].leaf.depth >= 5 and rig.counter("agentkv:resumes", "gpu") == 1


def test_two_resets_without_a_step_between_them(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.script.store_delay_steps = 5
    rig.add("r", prompt(1, blocks(6)), max_tokens=20)
    rig.step(3)
    assert rig.copies.late_jobs(is_store=True)
    for _ in range(2):
        assert rig.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    rig.settle()
    rig.check_answer("r")


@pytest.mark.parametrize("num_resets", [1, 2])
def test_a_store_from_before_a_reset_never_overwrites_one_from_after_it(
    make_rig: RigFactory, num_resets: int
) -> None:
    """Both go to the tier's first chunks; the old one must be over before the new one begins."""
    rig = make_rig(dram_blocks=8)
    rig.script.store_delay_steps = FOREVER
    rig.add("old", prompt(1, blocks(4)), max_tokens=20)
    rig.step(3)
    (late,) = rig.copies.late_jobs(is_store=True)
    rig.abort("old")
    for _ in range(num_resets):
        assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    rig.script.store_delay_steps = 0
    new = prompt(2, blocks(4))
    rig.add("new", new, max_tokens=1)
    rig.step_until(lambda: rig.dram_blocks(new) == 4, max_steps=20)
    if late in rig.copies.late_jobs(is_store=True):
        rig.copies.release(late)
    rig.settle()
    rig.drop_gpu_cache()
    rig.run("again", [*new, 1])
    rig.check_answer("again")
    assert rig.counter("agentkv:load_failures") == 0


def _preempted_by_a_reset(rig: Rig) -> None:
    """A running turn whose KV is in DRAM too loses its blocks between two steps."""
    rig.add("r", prompt(1, 50), max_tokens=20)
    rig.step(3)
    assert rig.scheduler.reset_prefix_cache(reset_running_requests=True)


def test_vllms_own_offloading_fails_when_a_reset_preempts_what_is_in_dram(
    make_rig: RigFactory,
) -> None:
    """Why `SchedulerSide.is_preemption_new` exists. Passes no longer? Then delete both."""
    rig = make_rig(kind=Kind.LRU)
    _preempted_by_a_reset(rig)
    rig.is_spoilt = True
    with pytest.raises(AssertionError):
        rig.step()


def test_a_turn_preempted_by_a_reset_is_loaded_one_step_later(make_rig: RigFactory) -> None:
    rig = make_rig()
    _preempted_by_a_reset(rig)
    rig.step()
    assert not rig.scheduler.running
    rig.settle()
    rig.check_answer("r")
    assert rig.copies.num_loads == 1


def test_a_turn_preempted_by_a_reset_runs_even_if_its_load_is_refused(make_rig: RigFactory) -> None:
    rig = make_rig()
    _preempted_by_a_reset(rig)
    rig.flip_dram_byte(prompt(1, 50), 0)
    rig.settle()
    rig.check_answer("r")
    assert rig.counter("agentkv:load_failures") == 1
