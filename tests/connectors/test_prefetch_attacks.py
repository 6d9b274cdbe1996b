"""Attempts to break prefetching: many at once, one against another, resets, forks, preemptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.control import signal, tell
from kit.copies import FOREVER
from vllm.v1.kv_offload.base import make_offload_key

from agentkv.connectors.pool_load import NOTHING
from agentkv.signals import Event

RigFactory = Callable[..., Rig]
TOOL = {"tool": "bash", "expected_wait_s": 1000.0}
SWAPS: dict[str, Any] = {"policy": "always_swap", "extra": {"min_load_tokens": 0}}
SHAPES = pytest.mark.parametrize(
    "shape", [{}, {"is_hybrid": True}, {"is_async": True}, {"max_step_tokens": 40}]
)


def away(rig: Rig, *agents: Agent) -> None:
    """Each has had a turn and waits for its tool; then the pool lost everything."""
    for agent in agents:
        agent.turn(tag=TOOL)
    rig.drop_gpu_cache()


def resume(rig: Rig, *agents: Agent) -> None:
    tell(rig, *(Event(event="resume", session_id=agent.name) for agent in agents))


def begin_loads(rig: Rig, *agents: Agent, delay_steps: int = FOREVER) -> None:
    rig.script.load_delay_steps = delay_steps
    resume(rig, *agents)
    rig.step_until(lambda: rig.copies.num_late > 0, max_steps=20)
    rig.script.load_delay_steps = 0


# --- many at once ---


@pytest.mark.parametrize("step_s", [0.001, 0.01])
def test_of_twenty_tools_that_are_done_at_once_none_is_forgotten(
    make_rig: RigFactory, step_s: float
) -> None:
    """More than begin in one step, on an engine that has nothing else to do."""
    rig = make_rig(pool_blocks=100, dram_blocks=300, **SWAPS)
    agents = [Agent(rig, f"a{seed}", seed, 3) for seed in range(1, 21)]
    away(rig, *agents)
    rig.step_s = step_s
    resume(rig, *agents)
    rig.settle()
    assert [rig.cached_blocks(agent.context) for agent in agents] == [3] * 20


@pytest.mark.parametrize("step_s", [0.001, 0.01])
def test_two_forks_of_one_prefix_are_both_brought_back(make_rig: RigFactory, step_s: float) -> None:
    """The second cannot begin while the first loads what they share."""
    rig = make_rig(pool_blocks=40, dram_blocks=200, **SWAPS)
    shared = prompt(5, blocks(6))
    forks = [Agent(rig, name, seed, 3, shared=shared) for seed, name in enumerate("ab", 1)]
    away(rig, *forks)
    rig.step_s = step_s
    begin_loads(rig, *forks, delay_steps=4)
    rig.settle()
    assert [rig.cached_blocks(fork.context) for fork in forks] == [9, 9]
    for fork in forks:
        assert fork.turn().dram_hit_tokens == 0


def test_a_budget_delays_loads_but_drops_none(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=60, dram_blocks=200, **SWAPS)
    agents = [Agent(rig, f"a{seed}", seed, 4) for seed in range(1, 9)]
    away(rig, *agents)
    prefetcher = rig.side.returns.prefetcher
    budget = int(rig.side._footprint.bytes_for(blocks(4)))
    prefetcher._config = prefetcher._config.model_copy(update={"max_in_flight_bytes": budget})
    rig.step_s = 0.001
    resume(rig, *agents)
    rig.settle()
    assert [rig.cached_blocks(agent.context) for agent in agents] == [4] * 8


# --- one against the other ---


def test_two_sessions_whose_tools_are_done_never_push_each_other_out(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(pool_blocks=26, dram_blocks=200, **SWAPS)
    pair = [Agent(rig, name, seed, 20) for seed, name in enumerate("ab", 1)]
    for agent in pair:
        agent.turn(tag=TOOL)
    resume(rig, *pair)
    for _ in range(50):
        rig.clock.advance(0.5)
        tell(rig)
        rig.settle()
    assert rig.copies.num_loads <= 3


def test_whose_tool_is_done_is_given_up_after_whose_tool_still_runs(make_rig: RigFactory) -> None:
    """Whatever was predicted before the signal came."""
    rig = make_rig(pool_blocks=40, dram_blocks=200, **SWAPS)
    done, running = Agent(rig, "done", 1, 10), Agent(rig, "running", 2, 10)
    done.turn(tag=TOOL)
    running.turn(tag={"tool": "bash", "expected_wait_s": 100.0})
    signal(rig, "resume", "done")
    rig.settle()
    rig.add("needy", prompt(3, blocks(25)), tag={"last_turn": True})
    assert [session.key.name for session, _ in rig.controller.pauses.away()] == ["running"]
    rig.settle()


# --- resets ---


@pytest.mark.parametrize("with_connector", [False, True])
def test_a_forced_reset_works_during_a_prefetch(make_rig: RigFactory, with_connector: bool) -> None:
    """What a trainer calls between two updates of the weights. vLLM refuses it during the load of a
    request, but the caller knows of requests; of a prefetch nobody knows. The copies, which have
    not begun yet, must be over before others write the blocks."""
    rig = make_rig(pool_blocks=40, dram_blocks=200, **SWAPS)
    agent = Agent(rig, "a", 1, 10)
    away(rig, agent)
    begin_loads(rig, agent)
    assert rig.scheduler.reset_prefix_cache(
        reset_running_requests=True, reset_connector=with_connector
    )
    for seed in range(3):
        Agent(rig, f"new{seed}", 70 + seed, 30).turn()
    if with_connector:
        assert rig.cached_blocks(agent.context) == 0


@SHAPES
@pytest.mark.parametrize("with_connector", [False, True])
def test_a_reset_during_a_prefetch_with_a_turn_waiting_for_it(
    make_rig: RigFactory, shape: dict[str, Any], with_connector: bool
) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, **SWAPS, **shape)
    agent = Agent(rig, "a", 1, 6)
    away(rig, agent)
    begin_loads(rig, agent)
    request_id = agent.arrive()
    rig.step(2)
    assert rig.scheduler.reset_prefix_cache(reset_connector=with_connector)
    rig.step(2)
    rig.copies.release()
    rig.settle()
    rig.check_answer(request_id)


# --- turns that arrive meanwhile ---


@SHAPES
@pytest.mark.parametrize("num_steps", range(6))
def test_a_turn_that_arrives_at_any_step_of_a_load_is_right(
    make_rig: RigFactory, shape: dict[str, Any], num_steps: int
) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, **SWAPS, **shape)
    agent = Agent(rig, "a", 1, 8)
    away(rig, agent)
    rig.script.load_delay_steps = 3
    resume(rig, agent)
    rig.step(num_steps)
    num_loads = rig.copies.num_loads
    request_id = agent.arrive(tool_tokens=40)
    rig.settle()
    rig.check_answer(request_id)
    assert rig.copies.num_loads <= max(1, num_loads), "no second load"


@SHAPES
def test_a_turn_that_took_over_a_load_may_be_preempted(
    make_rig: RigFactory, shape: dict[str, Any]
) -> None:
    rig = make_rig(pool_blocks=24, dram_blocks=200, **SWAPS, **shape)
    agent, other = Agent(rig, "a", 1, 6), Agent(rig, "other", 2, 5)
    away(rig, agent)
    begin_loads(rig, agent, delay_steps=3)
    ids = [other.arrive(max_tokens=blocks(5)), agent.arrive(max_tokens=blocks(5))]
    rig.settle()
    for request_id in ids:
        rig.check_answer(request_id)
    assert rig.counter("agentkv:faults") == 0


@SHAPES
def test_a_turn_that_is_aborted_while_it_waits_for_a_prefetch(
    make_rig: RigFactory, shape: dict[str, Any]
) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, **SWAPS, **shape)
    agent = Agent(rig, "a", 1, 6)
    away(rig, agent)
    begin_loads(rig, agent)
    for _ in range(3):
        request_id = agent.arrive()
        rig.step(2)
        rig.abort(request_id)
        rig.step(1)
    rig.copies.release()
    rig.settle()
    agent.turn()


def test_a_turn_with_another_prompt_does_not_wait_for_the_load(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, **SWAPS)
    agent = Agent(rig, "a", 1, 6)
    away(rig, agent)
    begin_loads(rig, agent)
    rig.add("a.other", prompt(9, 60), session="a", tag=TOOL)
    rig.step(20)
    rig.check_answer("a.other")
    rig.copies.release()
    rig.settle()
    assert rig.counter("agentkv:prefetch_outcomes") == 1


@SHAPES
def test_several_samples_of_one_turn_after_a_prefetch(
    make_rig: RigFactory, shape: dict[str, Any]
) -> None:
    """n=3: vLLM makes three requests of it, at once, while the load is under way."""
    rig = make_rig(pool_blocks=60, dram_blocks=200, **SWAPS, **shape)
    agent = Agent(rig, "a", 1, 6)
    away(rig, agent)
    begin_loads(rig, agent, delay_steps=3)
    num_loads = rig.copies.num_loads
    tokens = [*agent.context, *prompt(7, 20)]
    ids = [f"{index}_chatcmpl-x-0a1b2c3d" for index in range(3)]
    for request_id in ids:
        rig.add(request_id, tokens, session="a", tag=TOOL)
    rig.settle()
    for request_id in ids:
        rig.check_answer(request_id)
    assert rig.copies.num_loads == num_loads
    message_id = tell(rig, Event(event="pause", request_id="chatcmpl-x", tool="bash"))
    rig.settle()
    assert [result.status for result in rig.replies[message_id].results] == ["accepted"]
    assert rig.counter("agentkv:prefetch_outcomes") == 1


@SHAPES
def test_one_fork_is_fetched_while_the_other_one_runs_and_ends(
    make_rig: RigFactory, shape: dict[str, Any]
) -> None:
    rig = make_rig(pool_blocks=50, dram_blocks=200, **SWAPS, **shape)
    shared = prompt(5, blocks(5))
    forks = [Agent(rig, name, seed, 3, shared=shared) for seed, name in enumerate("ab", 1)]
    away(rig, *forks)
    begin_loads(rig, forks[0], delay_steps=4)
    running = forks[1].arrive(max_tokens=20)
    rig.step(3)
    tell(rig, Event(event="end", session_id="b"))
    rig.settle()
    rig.check_answer(running)
    assert forks[0].turn().dram_hit_tokens == 0


# --- names that are used again ---


@pytest.mark.parametrize("is_reused", [False, True])
def test_a_session_that_ends_and_begins_again_during_its_load(
    make_rig: RigFactory, is_reused: bool
) -> None:
    """Under its old name, with the same or another prompt."""
    rig = make_rig(pool_blocks=40, dram_blocks=200, **SWAPS)
    agent = Agent(rig, "a", 1, 6)
    away(rig, agent)
    begin_loads(rig, agent)
    tell(rig, Event(event="end", session_id="a"))
    rig.step(1)
    again = agent if is_reused else Agent(rig, "a", 2, 6)
    again.name = "again"
    request_id = again.arrive(tag=TOOL)
    rig.step(3)
    rig.copies.release()
    rig.settle()
    rig.check_answer(request_id)
    resume(rig, Agent(rig, "a", 3, 1))
    rig.settle()


def test_a_clients_request_may_be_called_like_a_prefetch(make_rig: RigFactory) -> None:
    """Ids of a server's requests cannot be, but those of an offline engine are free."""
    rig = make_rig(pool_blocks=40, dram_blocks=200, **SWAPS)
    agent = Agent(rig, "a", 1, 6)
    away(rig, agent)
    resume(rig, agent)
    rig.settle()
    rig.run("my-agentkv-prefetch-2", prompt(2, 60))
    rig.check_answer("my-agentkv-prefetch-2")
    assert agent.turn().dram_hit_tokens == 0


# --- thousands of sessions ---


def test_what_waits_is_looked_at_seldom_enough_not_to_be_felt(make_rig: RigFactory) -> None:
    """A busy engine with 1,000 sessions away: the looks at them, counted, not timed."""
    rig = make_rig(pool_blocks=100, dram_blocks=4000, max_num_seqs=32, **SWAPS)
    for number in range(1000):
        rig.add(f"r{number}.0", prompt(number, 40), session=f"s{number}", tag=TOOL, max_tokens=1)
    rig.settle()
    assert len(rig.controller.pauses.away()) > 800
    prefetcher = rig.side.returns.prefetcher
    num_looks = 0
    original = prefetcher._away_pause

    def counting(*args: Any) -> Any:
        nonlocal num_looks
        num_looks += 1
        return original(*args)

    prefetcher._away_pause = counting
    rig.step_s = 0.01
    rig.add("long", prompt(5000, 20), max_tokens=300, tag={"last_turn": True})
    rig.step(200)
    assert num_looks <= 30_000, "about 10 µs each, in 2 s: at most 15 % of the time"


def test_what_dram_does_not_have_is_looked_for_once(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = Agent(rig, "waiting", 1, 10)
    away(rig, agent)
    for block_hash in rig.hashes(agent.context):
        rig.side._damaged._drop(make_offload_key(block_hash, 0))
    loader = rig.side.returns.prefetcher._loader
    starts: list[object] = []
    start = loader.start

    def count(*args: object, **kwargs: object) -> object:
        starts.append(start(*args, **kwargs))
        return starts[-1]

    loader.start = count
    signal(rig, "resume", "waiting")
    for _ in range(20):
        tell(rig)
        rig.step()
    assert starts == [NOTHING]
