"""Public bug reports about loads, retold for loads that no request waits for.

Each test is named after its report in `tests/BUG_REPORTS.md`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.away import ANY_LENGTH, SMALL, TOOL, outcomes, pushed_out
from kit.control import signal, tell
from kit.copies import FOREVER

from agentkv.signals import Event, Status

RigFactory = Callable[..., Rig]


def begin_load(rig: Rig, name: str = "waiting", delay_steps: int = FOREVER) -> None:
    """The tool is done; its KV begins to come back, but so slowly."""
    rig.script.load_delay_steps = delay_steps
    tell(rig, Event(event="resume", session_id=name))
    rig.step_until(lambda: rig.copies.num_late > 0, max_steps=20)
    rig.script.load_delay_steps = 0


# --- A39, A40, A41: loads that end late, twice or never ---


@pytest.mark.parametrize("is_async", [False, True])
def test_a40_a_load_that_never_ends_stops_only_who_wants_its_blocks(
    make_rig: RigFactory, is_async: bool
) -> None:
    rig = make_rig(**SMALL, is_async=is_async)
    agent = pushed_out(rig)
    begin_load(rig)
    request_id = agent.arrive()
    for number in range(20):
        rig.add(f"other{number}", prompt(200 + number, 50), tag={"last_turn": True})
    rig.step(60)
    assert all(rig.results[f"other{number}"].is_finished for number in range(20))
    assert not rig.results[request_id].is_finished, "as with a load that vLLM began itself"
    rig.copies.release()
    rig.settle()
    rig.check_answer(request_id)


def test_a39_a_turn_gives_up_on_a_store_that_never_ends(make_rig: RigFactory) -> None:
    rig = make_rig(**{**SMALL, "extra": {**ANY_LENGTH, "load_timeout_s": 2.0}})
    rig.script.store_delay_steps = FOREVER
    agent = Agent(rig, "a", 1, 8)
    agent.arrive()
    rig.step_until(lambda: rig.results["a.0"].is_finished)
    rig.drop_gpu_cache()
    request_id = agent.arrive()
    rig.step(20)
    assert not rig.results[request_id].is_finished, "it waits for the copy first"
    rig.clock.advance(2.5)
    rig.step(20)
    assert rig.results[request_id].is_finished
    assert rig.counter("agentkv:load_timeouts") == 1
    rig.script.store_delay_steps = 0
    rig.copies.release()
    rig.settle()
    rig.check_answer(request_id)


def test_a40_a_turn_gives_up_on_a_load_that_never_ends(make_rig: RigFactory) -> None:
    rig = make_rig(**SMALL)
    rig.is_spoilt = True
    agent = pushed_out(rig)
    begin_load(rig)
    request_id = agent.arrive()
    rig.step_s = 1.0
    rig.step(600)
    assert rig.results[request_id].is_finished


@pytest.mark.parametrize("how", ["end", "abort", "abandon"])
def test_a40_what_arrives_late_is_written_into_no_block_of_another(
    make_rig: RigFactory, how: str
) -> None:
    """The blocks of a load stay in use until it is done, whoever has gone meanwhile."""
    rig = make_rig(**SMALL, max_num_seqs=8)
    agent = pushed_out(rig)
    begin_load(rig)
    num_held = 40 - rig.pool.get_num_free_blocks()
    assert num_held >= 10
    if how == "abort":
        rig.abort(agent.arrive())
    elif how == "end":
        assert signal(rig, "end", "waiting").status is Status.ACCEPTED
    else:
        rig.clock.advance(4000)
    for number in range(6):
        rig.add(f"other{number}", prompt(200 + number, blocks(4)), max_tokens=30)
    rig.step(5)
    rig.copies.release()  # while the others read and write what the pool gave them
    rig.settle()
    for number in range(6):
        rig.check_answer(f"other{number}")
    assert rig.pool.get_num_free_blocks() == 40
    agent.turn()


def test_a41_twenty_loads_whose_sessions_end_give_all_blocks_back(make_rig: RigFactory) -> None:
    rig = make_rig(**SMALL)
    agents = [Agent(rig, f"a{seed}", seed, 3) for seed in range(1, 21)]
    for number, agent in enumerate(agents):
        agent.turn(tag=TOOL)
        rig.drop_gpu_cache()
        begin_load(rig, agent.name)
        if number % 2:
            signal(rig, "end", agent.name)
        else:
            rig.abort(agent.arrive())
        rig.copies.release()
        rig.settle()
        assert rig.pool.get_num_free_blocks() == 40
    prefetcher = rig.side.returns.prefetcher
    assert not prefetcher._loading and prefetcher._bytes_loading == 0
    Agent(rig, "all", 99, 39).turn()


def test_a41_loads_that_never_end_hold_no_more_than_their_budget(make_rig: RigFactory) -> None:
    rig = make_rig(**SMALL)
    agents = [Agent(rig, f"a{seed}", seed, 3) for seed in range(1, 11)]
    for agent in agents:
        agent.turn(tag=TOOL)
    rig.drop_gpu_cache()
    prefetcher = rig.side.returns.prefetcher
    budget = int(rig.side._footprint.bytes_for(blocks(6)))
    prefetcher._config = prefetcher._config.model_copy(update={"max_in_flight_bytes": budget})
    rig.script.load_delay_steps = FOREVER
    tell(rig, *(Event(event="resume", session_id=agent.name) for agent in agents))
    rig.step(50)
    assert rig.copies.num_late == 2
    assert 40 - rig.pool.get_num_free_blocks() == 6
    rig.script.load_delay_steps = 0
    rig.copies.release()
    rig.step_s = 0.05
    rig.settle()


@pytest.mark.parametrize("name", ["agentkv-prefetch-1", "agentkv-prefetch-999", "nobody", ""])
def test_a41_the_end_of_a_load_that_nobody_knows_changes_nothing(
    make_rig: RigFactory, name: str
) -> None:
    """Never begun, done long ago, or told twice."""
    rig = make_rig(**SMALL)
    agent = pushed_out(rig)
    signal(rig, "resume", "waiting")
    rig.settle()
    num_free = rig.pool.get_num_free_blocks()
    for _ in range(2):
        rig.side.returns.receive({name}, {name})
    assert rig.pool.get_num_free_blocks() == num_free and outcomes(rig) == {}
    assert agent.turn().dram_hit_tokens == 0
    assert rig.counter("agentkv:faults") == 0


def test_a39_a_store_that_does_not_end_holds_up_no_prefetch_of_others(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(**SMALL)
    agent = pushed_out(rig)
    rig.script.store_delay_steps = FOREVER
    stuck = Agent(rig, "stuck", 77, 3)
    request_id = stuck.arrive(tag=TOOL)
    rig.step_until(lambda: rig.results[request_id].is_finished)
    tell(rig, *(Event(event="resume", session_id=name) for name in ("stuck", "waiting")))
    rig.step(20)
    assert rig.cached_blocks(agent.context) >= 10
    stuck.arrive()
    rig.step(20)
    rig.check_answer("stuck.1")


# --- A43, A44: who waits behind whom ---


def test_a43_sessions_that_were_brought_back_keep_nobody_waiting(make_rig: RigFactory) -> None:
    """60 % of the pool is fetched KV of sessions that are about to return."""
    rig = make_rig(**SMALL, max_num_seqs=8)
    agents = [Agent(rig, f"a{seed}", seed, 6) for seed in range(1, 5)]
    for agent in agents:
        agent.turn(tag=TOOL)
    rig.drop_gpu_cache()
    tell(rig, *(Event(event="resume", session_id=agent.name) for agent in agents))
    rig.settle()
    assert sum(rig.cached_blocks(agent.context) for agent in agents) >= 24
    rig.add("head", prompt(9, blocks(20)))
    for number in range(5):
        rig.add(f"follower{number}", prompt(20 + number, blocks(2) - 4))
    rig.step(1)
    assert len(rig.scheduler.running) == 6
    rig.settle()
    rig.check_answer("head")


def test_a43_a_stream_of_prefetches_does_not_starve_the_head(make_rig: RigFactory) -> None:
    rig = make_rig(**SMALL)
    agents = [Agent(rig, f"a{seed}", seed, 6) for seed in range(1, 9)]
    for agent in agents:
        agent.turn(tag=TOOL)
    rig.script.load_delay_steps = 3
    rig.add("early", prompt(30, blocks(3)), max_tokens=30, tag={"last_turn": True})
    rig.step(1)
    rig.add("head", prompt(9, blocks(37)), tag={"last_turn": True})
    for _ in range(200):
        tell(rig, *(Event(event="resume", session_id=agent.name) for agent in agents))
        rig.step(1)
        if rig.results["head"].is_finished:
            break
    rig.check_answer("head")
    rig.step_s = 0.05


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_a44_turns_that_share_a_prefetch_start_together_after_it(
    make_rig: RigFactory, is_hybrid: bool
) -> None:
    rig = make_rig(**{**SMALL, "pool_blocks": 80}, max_num_seqs=8, is_hybrid=is_hybrid)
    agent = Agent(rig, "waiting", 1, 6)
    agent.turn(tag=TOOL)
    rig.drop_gpu_cache()
    begin_load(rig)
    num_loads = rig.copies.num_loads
    for number in range(8):
        rig.add(f"r{number}", [*agent.context, *prompt(20 + number, 5)], max_tokens=2)
    rig.step(10)
    assert not any(rig.results[f"r{number}"].tokens for number in range(8))
    rig.copies.release()
    rig.step(3)
    assert all(rig.results[f"r{number}"].tokens for number in range(8))
    assert rig.copies.num_loads == num_loads, "one load for all of them"
    rig.settle()
    for number in range(8):
        rig.check_answer(f"r{number}")


# --- A53: prefetches that end early ---


def test_a53_after_200_prefetches_that_came_to_nothing_the_next_one_works(
    make_rig: RigFactory,
) -> None:
    """Ended or aborted before, during and after the load, or refused for its checksum."""
    rig = make_rig(pool_blocks=16, dram_blocks=60, policy="always_swap", extra=ANY_LENGTH)
    for number in range(200):
        agent = Agent(rig, f"a{number}", number + 1, 4)
        agent.turn(tag={**TOOL, "expected_wait_s": 5000.0})
        rig.drop_gpu_cache()
        _spoil(rig, agent, how=number % 5)
        rig.copies.release()
        rig.settle()
        tell(rig, Event(event="end", session_id=agent.name))
        rig.settle()
    assert rig.counter("agentkv:prefetches") >= 150
    assert outcomes(rig)["failed"] >= 40
    prefetcher = rig.side.returns.prefetcher
    assert not prefetcher._loading and prefetcher._bytes_loading == 0
    last = Agent(rig, "last", 999, 4)
    last.turn(tag=TOOL)
    rig.drop_gpu_cache()
    signal(rig, "resume", "last")
    rig.settle()
    assert last.turn().dram_hit_tokens == 0
    assert outcomes(rig)["useful"] >= 1


def _spoil(rig: Rig, agent: Agent, how: int) -> None:
    resume, end = (Event(event=kind, session_id=agent.name) for kind in ("resume", "end"))
    if how == 0:
        tell(rig, resume, end)
        rig.step(1)
    elif how == 1:
        rig.flip_dram_byte(agent.context, 1)
        tell(rig, resume)
        rig.settle()
    elif how == 2:
        begin_load(rig, agent.name)
        tell(rig, end)
        rig.step(1)
    elif how == 3:
        begin_load(rig, agent.name)
        request_id = agent.arrive()
        rig.step(1)
        rig.abort(request_id)
    else:
        tell(rig, resume)
        rig.settle()
        rig.abort(agent.arrive())
