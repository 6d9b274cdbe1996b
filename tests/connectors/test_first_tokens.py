"""The time to first token of resumed turns: measured to the right step, under the right source."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kit import Agent, Rig, blocks

RigFactory = Callable[..., Rig]
NAME = "agentkv:resume_ttft_seconds"


def arrive(agent: Agent, *, came_before_s: float = 0.0, **kwargs: int) -> str:
    """The next turn, which reached the API process so long before the scheduler."""
    rig = agent.rig
    request_id = agent.arrive(**kwargs)
    rig.results[request_id].request.arrival_time = rig.clock.wall_s() - came_before_s
    return request_id


def seconds_to_first_token(rig: Rig, request_id: str) -> float:
    """Steps until a client would see the first token."""
    began_s = rig.clock.wall_s()
    rig.step_until(lambda: bool(rig.results[request_id].tokens))
    return rig.clock.wall_s() - began_s


@pytest.mark.parametrize("is_async", [False, True])
def test_it_ends_with_the_step_that_made_the_token(make_rig: RigFactory, is_async: bool) -> None:
    rig = make_rig(is_async=is_async, max_step_tokens=32)
    agent = Agent(rig, "a", 1, num_blocks=8)
    agent.turn()
    request_id = arrive(agent, tool_tokens=blocks(6), came_before_s=0.5)
    took_s = seconds_to_first_token(rig, request_id)
    assert took_s >= 3 * rig.step_s, "its prompt takes several steps"
    rig.settle()
    [value] = rig.samples[NAME]["gpu",]
    assert value == pytest.approx(0.5 + took_s)


def test_a_token_that_ends_its_turn_counts_too(make_rig: RigFactory) -> None:
    rig = make_rig()
    agent = Agent(rig, "a", 1, num_blocks=8)
    agent.turn()
    arrive(agent, max_tokens=1)
    rig.settle()
    assert rig.samples[NAME] == {("gpu",): [pytest.approx(rig.step_s)]}


def test_each_source_has_times_of_its_own(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40)
    rig.script.load_delay_steps = 5
    agent = Agent(rig, "a", 1, num_blocks=20)
    agent.turn()
    rig.drop_gpu_cache()
    loaded_s = seconds_to_first_token(rig, arrive(agent))
    rig.settle()
    rig.connector.reset_cache()
    rig.drop_gpu_cache()
    arrive(agent)
    rig.settle()
    times = rig.samples[NAME]
    assert times["dram",] == [pytest.approx(loaded_s)] and loaded_s > 5 * rig.step_s
    assert times.keys() == {("dram",)}, "after a reset nothing is known of the session"


def test_what_was_lost_is_computed_again_under_a_source_of_its_own(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=24, dram_blocks=2)
    agents = [Agent(rig, name, seed, num_blocks=18) for seed, name in enumerate("ab")]
    for agent in agents:
        agent.turn()
    arrive(agents[0])
    rig.settle()
    assert rig.samples[NAME].keys() == {("recomputed",)}


def test_a_first_turn_and_one_that_was_aborted_before_its_first_token_count_nothing(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(max_step_tokens=32)
    agent = Agent(rig, "a", 1, num_blocks=8)
    agent.turn()
    request_id = arrive(agent, tool_tokens=blocks(6))
    rig.step()
    assert len(rig.side._first_tokens) == 1
    rig.abort(request_id)
    rig.settle()
    assert NAME not in rig.samples and len(rig.side._first_tokens) == 0


def test_a_clock_that_was_set_back_gives_no_negative_time(make_rig: RigFactory) -> None:
    rig = make_rig()
    agent = Agent(rig, "a", 1, num_blocks=8)
    agent.turn()
    arrive(agent, came_before_s=-60.0)
    rig.settle()
    assert rig.samples[NAME] == {("gpu",): [0.0]}
