"""Turns that are held back, on vLLM's real scheduler: skipped, never stuck, never starved."""

from collections.abc import Callable

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.limits import limit_programs

RigFactory = Callable[..., Rig]


def _agents(rig: Rig, count: int, num_blocks: int = 6) -> list[Agent]:
    agents = [Agent(rig, f"agent{i}", i + 1, num_blocks) for i in range(count)]
    for agent in agents:
        agent.turn()
    return agents


def _finish(rig: Rig, *request_ids: str, max_steps: int = 400) -> None:
    rig.step_until(lambda: all(rig.results[i].is_finished for i in request_ids), max_steps)
    for request_id in request_ids:
        rig.check_answer(request_id)


@pytest.mark.parametrize("is_async", [False, True])
def test_who_is_held_back_is_skipped_and_the_others_go_on(
    make_rig: RigFactory, is_async: bool
) -> None:
    rig = make_rig(is_async=is_async)
    agents = _agents(rig, 3)
    limit_programs(rig, blocks(8))
    first = agents[0].arrive(max_tokens=40)
    rig.step(2)
    held = [agent.arrive() for agent in agents[1:]]
    rig.step(10)
    gate = rig.side.gate
    assert all(gate.is_held(rig.results[i].request) for i in held)
    assert rig.scheduler.running and not any(rig.results[i].tokens for i in held)
    assert not any(i in rig.side._arrived for i in held), "no room is made for them"
    again = rig.add("same program", agents[0].context, session="agent0").request_id
    _finish(rig, again, max_steps=20)
    assert all(gate.is_held(rig.results[i].request) for i in held)
    _finish(rig, first, *held)
    assert rig.counter("agentkv:admission_delayed") >= 2


def test_an_engine_with_nothing_else_to_do_holds_nobody_back(make_rig: RigFactory) -> None:
    """One empty step at most: vLLM would spin while somebody waits."""
    rig = make_rig()
    agents = _agents(rig, 3)
    limit_programs(rig, 1)
    for agent in reversed(agents):
        request_id = agent.arrive(max_tokens=3)
        before = rig.num_steps
        _finish(rig, request_id, max_steps=10)
        assert rig.num_steps - before <= 5


def test_held_back_turns_alone_come_one_after_the_other(make_rig: RigFactory) -> None:
    rig = make_rig()
    agents = _agents(rig, 5)
    limit_programs(rig, 1)
    ids = [agent.arrive() for agent in agents]
    _finish(rig, *ids, max_steps=60)


def test_what_a_held_back_session_has_goes_first(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, max_num_seqs=2, policy="always_swap")
    agents = _agents(rig, 3)
    limit_programs(rig, blocks(14))
    first = agents[0].arrive(max_tokens=60)
    rig.step(2)
    held = agents[2].arrive()
    rig.step(1)
    rig.add("needy", prompt(77, blocks(24)), session="agent0", max_tokens=2)
    _finish(rig, "needy", max_steps=30)
    assert rig.cached_blocks(agents[1].context) >= 6
    assert rig.cached_blocks(agents[2].context) < 6
    _finish(rig, first, held)


def test_a_turn_that_is_held_back_and_aborted_leaves_nothing(make_rig: RigFactory) -> None:
    rig = make_rig()
    agents = _agents(rig, 2)
    limit_programs(rig, blocks(7))
    first = agents[0].arrive(max_tokens=30)
    rig.step(2)
    held = agents[1].arrive()
    rig.step(2)
    assert rig.side.gate.is_held(rig.results[held].request)
    rig.abort(held)
    _finish(rig, first)


def test_the_longest_waiting_comes_after_the_bound(make_rig: RigFactory) -> None:
    rig = make_rig(extra={"admission": {"max_wait_s": 2.0}})
    agents = _agents(rig, 2)
    limit_programs(rig, blocks(7))
    agents[0].arrive(max_tokens=400)
    rig.step(2)
    held = agents[1].arrive()
    rig.step_s = 0.1
    rig.step(15)
    assert rig.side.gate.is_held(rig.results[held].request)
    rig.step(25)
    rig.check_answer(held)


def test_recomputation_is_what_counts(make_rig: RigFactory) -> None:
    """Agents whose KV is always lost make a load; those that find theirs make none."""
    loads = []
    for is_lost in (False, True):
        rig = make_rig(pool_blocks=100, dram_blocks=2 if is_lost else 256, max_step_tokens=64)
        rig.step_s = 0.2
        agents = _agents(rig, 2, num_blocks=20)
        for _ in range(12):
            for agent in agents:
                if is_lost:
                    rig.drop_gpu_cache()
                agent.turn()
        loads.append(rig.side.gate.admission.load)
    assert loads[0] == pytest.approx(0.0, abs=0.02)
    assert loads[1] > 0.3


def test_switched_off_nothing_is_held_back(make_rig: RigFactory) -> None:
    rig = make_rig(extra={"admission": {"enabled": False}})
    assert rig.side.gate.admission is None
    agents = _agents(rig, 3)
    _finish(rig, *(agent.arrive() for agent in agents))
