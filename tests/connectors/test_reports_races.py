"""Public bug reports about finish, abort, preemption and reuse while copies are under way.

Each test is named after its report in `tests/BUG_REPORTS.md`.
"""

from collections.abc import Callable
from unittest import mock

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.copies import FOREVER
from vllm.v1.request import RequestStatus

RigFactory = Callable[..., Rig]


def _preempt_all(rig: Rig) -> None:
    """Takes the blocks of every running request away, as memory pressure would."""
    assert rig.scheduler.reset_prefix_cache(reset_running_requests=True)


def _loading(rig: Rig) -> list[str]:
    return [request.request_id for request in rig.scheduler.kv_holding_waiting]


def test_a16_finished_transfer_of_an_aborted_request_is_swallowed(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.script.store_delay_steps = 5
    rig.add("gone", prompt(1, blocks(4)), max_tokens=50)
    rig.step(2)
    assert rig.copies.late_jobs(is_store=True)
    rig.abort("gone")
    rig.step(6)
    assert rig.copies.num_late == 0
    rig.run("next", prompt(2, blocks(4)))
    rig.check_answer("next")


def test_a17_an_aborted_load_frees_its_blocks_once_and_only_when_it_is_done(
    make_rig: RigFactory,
) -> None:
    rig = make_rig()
    agent = Agent(rig, "agent", seed=1, num_blocks=6)
    agent.turn()
    rig.drop_gpu_cache()
    rig.script.load_delay_steps = 4
    request_id = agent.arrive()
    rig.step(1)
    assert _loading(rig) == [request_id]
    num_free = rig.pool.get_num_free_blocks()
    rig.abort(request_id)
    rig.step(2)
    assert rig.pool.get_num_free_blocks() == num_free < rig.config.pool_blocks
    rig.settle()
    assert rig.pool.get_num_free_blocks() == rig.config.pool_blocks


@pytest.mark.parametrize("is_first_done_first", [True, False])
def test_a17_an_aborted_request_survives_its_stores_in_any_order(
    make_rig: RigFactory, is_first_done_first: bool
) -> None:
    rig = make_rig(max_step_tokens=blocks(2))
    rig.script.store_delay_steps = FOREVER
    rig.add("r", prompt(1, blocks(6)))
    rig.step(3)
    jobs = rig.copies.late_jobs(is_store=True)
    assert len(jobs) >= 2
    rig.abort("r")
    for job in jobs if is_first_done_first else reversed(jobs):
        rig.copies.release(job)
        rig.step(1)
    assert rig.pool.get_num_free_blocks() == rig.config.pool_blocks


def test_a17_loads_and_stores_of_a_request_never_meet(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=24, max_step_tokens=blocks(3))
    rig.script.store_delay_steps = rig.script.load_delay_steps = 3
    agents = [Agent(rig, f"agent{i}", seed=i + 1, num_blocks=6) for i in range(5)]
    offloading = rig.connector.connector_scheduler
    for _ in range(3):
        ids = [agent.arrive() for agent in agents]
        while not all(rig.results[i].is_finished for i in ids):
            rig.step()
            for status in offloading._req_status.values():
                kinds = {offloading._jobs[job].is_store for job in status.transfer_jobs}
                assert len(kinds) <= 1
        rig.settle()
        for request_id in ids:
            rig.check_answer(request_id)


def test_a18_a_preempted_request_waits_for_its_store_before_it_is_admitted_again(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(pool_blocks=12)
    rig.script.store_delay_steps = 4
    rig.add("r", prompt(1, blocks(8)), max_tokens=8)
    rig.step(2)
    assert rig.copies.late_jobs(is_store=True)
    _preempt_all(rig)
    rig.step(1)
    assert not rig.scheduler.running and len(rig.scheduler.waiting) == 1
    rig.settle()
    rig.check_answer("r")
    assert rig.results["r"].request.num_preemptions == 1


def test_a18_the_same_under_natural_pressure(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=12, max_num_seqs=2)
    rig.script.store_delay_steps = 4
    rig.add("first", prompt(1, blocks(5)), max_tokens=blocks(2))
    rig.add("second", prompt(2, blocks(5)), max_tokens=blocks(2))
    rig.settle()
    rig.check_answer("first")
    rig.check_answer("second")
    assert sum(rig.results[i].request.num_preemptions for i in ("first", "second")) > 0


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_a19_a_store_reads_its_blocks_before_they_are_handed_to_another(
    make_rig: RigFactory, is_hybrid: bool
) -> None:
    rig = make_rig(pool_blocks=16 if is_hybrid else 8, is_hybrid=is_hybrid)
    rig.script.store_delay_steps = FOREVER
    victim = prompt(1, blocks(6))
    rig.add("victim", victim, max_tokens=30)
    rig.step(2)
    assert rig.copies.late_jobs(is_store=True)
    rig.abort("victim")
    rig.script.store_delay_steps = 0  # of later stores: the victim's still waits
    rig.run("other", prompt(2, blocks(7)))
    rig.check_answer("other")
    rig.drop_gpu_cache()
    again = rig.run("again", [*victim, 1])
    rig.check_answer("again")
    assert again.dram_hit_tokens >= blocks(5)


def test_a20_finish_of_an_unknown_request_changes_nothing(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.run("known", prompt(1, blocks(3)), session="s")
    known = rig.results["known"].request
    finish = rig.connector.request_finished_all_groups
    assert finish(known, ([],)) == (False, None)
    assert finish(known, ([],)) == (False, None)
    stranger = rig.add("stranger", prompt(2, blocks(3)))
    rig.settle()
    stranger.request_id = "never-seen"
    assert finish(stranger, ([1, 2],)) == (False, None)
    (session,) = [s for s in rig.controller.sessions if s.key.name == "s"]
    assert session.num_turns == 1


def test_a20_a_request_may_finish_after_its_preemption(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.script.store_delay_steps = 3
    rig.add("r", prompt(1, blocks(4)), max_tokens=50)
    rig.step(3)
    _preempt_all(rig)
    rig.abort("r")
    rig.settle()


def test_a21_a_turn_that_ends_without_blocks_claims_none(make_rig: RigFactory) -> None:
    rig = make_rig()
    agent = Agent(rig, "agent", seed=1, num_blocks=4)
    agent.turn()
    (session,) = rig.controller.sessions
    depth = session.branches[0].leaf.depth
    request_id = agent.arrive(tool_tokens=blocks(4), max_tokens=50)
    rig.step(2)
    _preempt_all(rig)
    assert rig.results[request_id].request.status is RequestStatus.PREEMPTED
    rig.abort(request_id)
    rig.settle()
    assert [branch.leaf.depth for branch in session.branches] == [depth]
    assert session.context_tokens < blocks(depth + 1)


def test_a21_a_first_turn_that_ends_without_blocks_leaves_no_session(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.add("r", prompt(1, blocks(4)), session="s", max_tokens=50)
    rig.step(2)
    _preempt_all(rig)
    rig.abort("r")
    rig.settle()
    assert len(rig.controller.sessions) == 0 and len(rig.controller.sessions.tree) == 0


def test_a22_a_queued_request_can_be_aborted_before_it_ever_ran(make_rig: RigFactory) -> None:
    rig = make_rig(max_num_seqs=1)
    rig.add("first", prompt(1, blocks(3)))
    rig.add("second", prompt(2, blocks(3)))
    rig.abort("second")
    rig.settle()
    rig.check_answer("first")
    assert rig.results["second"].tokens == []


def test_a23_a_thousand_look_ups_before_allocation_leave_no_lock(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=80, dram_blocks=8)
    wanted = prompt(1, blocks(6))
    rig.run("stored", wanted, max_tokens=1)
    rig.drop_gpu_cache()
    manager = rig.connector.connector_scheduler.manager
    manager.lookup = mock.Mock(wraps=manager.lookup)
    rig.add("busy", prompt(2, blocks(76)), max_tokens=50, tag={"last_turn": True})
    rig.step(2)
    for i in range(1000):
        rig.add(f"hit{i}", [*wanted, i])
        output = rig.scheduler.schedule()
        rig._process(output, rig.runner.execute(output, set()))
        rig.abort(f"hit{i}")
        if i % 40 == 0:  # keep the busy request from finishing
            rig.abort("busy" if i == 0 else f"busy{i - 40}")
            rig.step(2)
            rig.add(f"busy{i}", prompt(3 + i, blocks(76)), max_tokens=60, tag={"last_turn": True})
            rig.step(2)
    rig.abort("busy960")
    rig.settle()
    assert manager.lookup.call_count > 1000
    assert rig.primary._num_evictable_cache_chunks == len(rig.dram.chunks)
    rig.run("new", prompt(9, blocks(8)), max_tokens=1)
    assert rig.dram_blocks(prompt(9, blocks(8))) == 8, "the full tier can still be evicted"


def test_a26_a_store_that_finds_the_tier_full_of_copies_harms_no_other_request(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(dram_blocks=4)
    rig.script.store_delay_steps = 6
    prompts = {f"r{i}": prompt(i, blocks(2)) for i in range(1, 4)}
    for request_id, tokens in prompts.items():
        rig.add(request_id, tokens, max_tokens=20)
    rig.step(2)
    statuses = rig.connector.connector_scheduler._req_status
    tables = [len(statuses[i].group_states[0].block_ids) for i in prompts]
    assert tables == [3, 3, 3], "every request's block table was recorded"
    rig.settle()
    assert rig.counter("vllm:kv_offload_allocation_failure") >= 1
    for request_id in prompts:
        rig.check_answer(request_id)


@pytest.mark.parametrize("num_times", [1, 2, 5])
def test_a30_asking_for_matches_again_changes_nothing(make_rig: RigFactory, num_times: int) -> None:
    rig = make_rig()
    agent = Agent(rig, "agent", seed=1, num_blocks=6)
    agent.turn()
    rig.drop_gpu_cache()
    request_id = agent.arrive()
    request = rig.results[request_id].request
    match = rig.connector.get_num_new_matched_tokens
    assert [match(request, 0) for _ in range(num_times)] == [(blocks(6), True)] * num_times
    rig.script.load_delay_steps = 2
    rig.step(1)
    assert _loading(rig) == [request_id]
    rig.settle()
    rig.check_answer(request_id)
    assert rig.copies.num_loads == 1
    assert rig.counter("agentkv:resume_tokens", "dram") == blocks(6)


@pytest.mark.parametrize("num_times", [1, 2, 5])
def test_a30_a_short_hit_is_counted_once_however_often_it_is_looked_up(
    make_rig: RigFactory, num_times: int
) -> None:
    rig = make_rig(extra={"min_load_tokens": blocks(20)})
    agent = Agent(rig, "agent", seed=1, num_blocks=6)
    agent.turn()
    rig.drop_gpu_cache()
    request = rig.results[agent.arrive()].request
    for _ in range(num_times - 1):
        assert rig.connector.get_num_new_matched_tokens(request, 0) == (0, False)
    rig.settle()
    assert rig.copies.num_loads == 0
    assert rig.counter("agentkv:short_hits_skipped") == 1
