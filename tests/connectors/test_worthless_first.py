"""What no session needs is reused first; what another session still needs survives."""

from collections.abc import Callable

import pytest
from kit import Agent, Rig, blocks, prompt

RigFactory = Callable[..., Rig]
LAST = {"last_turn": True}


def _fill(rig: Rig, num_blocks: int, seed: int = 900) -> None:
    """A one-shot request that takes so many blocks."""
    rig.run(f"fill{seed}", prompt(seed, blocks(num_blocks) - 2), max_tokens=1, tag=LAST)


def test_an_ended_sessions_blocks_go_before_older_ones(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=20)
    older = Agent(rig, "older", 1, 6)
    older.turn()
    ended = Agent(rig, "ended", 2, 6)
    ended.turn()
    ended.turn(tag=LAST)
    _fill(rig, 14)
    assert rig.cached_blocks(ended.context) == 0
    assert rig.cached_blocks(older.context) == 6


def test_it_is_the_other_way_round_when_no_end_is_known(make_rig: RigFactory) -> None:
    extra = {"protect_arrived_turns": False, "prefetch": {"enabled": False}}
    rig = make_rig(pool_blocks=20, policy="always_hold", extra=extra)
    older = Agent(rig, "older", 1, 6)
    older.turn()
    newer = Agent(rig, "newer", 2, 6)
    newer.turn()
    newer.turn()
    _fill(rig, 13)
    assert rig.cached_blocks(older.context) < 6
    assert rig.cached_blocks(newer.context) == 6


@pytest.mark.parametrize("is_resumed_from_dram", [False, True])
def test_an_ended_sessions_blocks_go_first_in_dram(
    make_rig: RigFactory, is_resumed_from_dram: bool
) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=20)
    older = Agent(rig, "older", 1, 6)
    older.turn()
    ended = Agent(rig, "ended", 2, 6)
    ended.turn()
    if is_resumed_from_dram:
        rig.drop_gpu_cache()
    last = ended.turn(tag=LAST)
    assert bool(last.dram_hit_tokens) is is_resumed_from_dram
    Agent(rig, "new", 3, 12).turn()
    assert rig.dram_blocks(older.context) == 6
    assert rig.dram_blocks(ended.context) == 2, "14 of 20 blocks are the other sessions'"


def test_a_last_turn_is_not_stored_at_all(make_rig: RigFactory) -> None:
    rig = make_rig()
    one_shot = prompt(1, blocks(5))
    rig.run("one-shot", one_shot, tag=LAST)
    assert rig.dram_blocks(one_shot) == 0 and rig.copies.num_stores == 0


def test_a_superseded_branch_goes_first_and_the_live_chain_stays(make_rig: RigFactory) -> None:
    """The agent rewrites its history from block 3 on (a compaction)."""
    rig = make_rig(pool_blocks=24)
    other = Agent(rig, "other", 9, 4)
    other.turn()
    agent = Agent(rig, "agent", 1, 8)
    agent.turn()
    old = list(agent.context)
    agent.context = agent.context[: blocks(3)] + prompt(5, blocks(3))
    agent.turn()
    assert rig.cached_blocks(old) == 8
    _fill(rig, 24 - 4 - 6)
    assert rig.cached_blocks(old) == 3
    assert rig.cached_blocks(agent.context) >= 6
    assert rig.cached_blocks(other.context) == 4


def _fork(rig: Rig, name: str, shared: list[int], seed: int) -> Agent:
    return Agent(rig, name, seed, 3, shared=shared)


def test_a_shared_prefix_survives_the_end_of_one_of_its_sessions(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=24, dram_blocks=64)
    shared = prompt(77, blocks(5))
    first, second = _fork(rig, "first", shared, 1), _fork(rig, "second", shared, 2)
    first.turn()
    second.turn()
    private = first.context[blocks(5) :]
    first.turn(tag=LAST)
    _fill(rig, 15)
    assert rig.cached_blocks(second.context) == 8
    assert rig.cached_blocks([*shared, *private]) < 8


def test_a_shared_prefix_survives_the_end_of_a_session_while_the_other_runs_its_first_turn(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(pool_blocks=26, dram_blocks=16)
    shared = prompt(77, blocks(5))
    first, second = _fork(rig, "first", shared, 1), _fork(rig, "second", shared, 2)
    first.turn()
    running = second.arrive(max_tokens=40)
    rig.step(3)
    ending = first.arrive(tag=LAST, max_tokens=2)
    rig.step_until(lambda: rig.results[ending].is_finished)
    assert not rig.results[running].is_finished
    rig.settle()
    third = _fork(rig, "third", prompt(78, blocks(5)), 3)
    third.turn()
    _fill(rig, 7)
    assert rig.cached_blocks(second.context) == 8


def test_a_shared_prefix_survives_while_the_other_session_only_waits(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=26, max_num_seqs=1, extra={"sessions": {"abandon_after_s": 100}})
    shared = prompt(77, blocks(5))
    first, second = _fork(rig, "first", shared, 1), _fork(rig, "second", shared, 2)
    first.turn()
    rig.add("busy", prompt(9, blocks(4)), max_tokens=blocks(12), tag=LAST)
    rig.step(2)
    waiting = second.arrive()
    rig.clock.advance(200)  # the first session is abandoned
    rig.settle()
    assert rig.results[waiting].gpu_hit_tokens == blocks(5)


def test_an_aborted_last_turns_blocks_go_first_though_a_step_still_writes_them(
    make_rig: RigFactory,
) -> None:
    """With async scheduling vLLM frees them only when the overlapping step is done."""
    rig = make_rig(pool_blocks=24, is_async=True)
    older = Agent(rig, "older", 1, 6)
    older.turn()
    tokens = prompt(2, blocks(6))
    rig.add("last", tokens, tag=LAST, max_tokens=50)
    rig.step(3)
    rig.abort("last")
    rig.settle()
    assert rig.cached_blocks(tokens) == 6
    _fill(rig, 24 - 6)
    assert rig.cached_blocks(tokens) == 0 and rig.cached_blocks(older.context) == 6


def test_an_abandoned_session_ends_by_itself(make_rig: RigFactory) -> None:
    rig = make_rig(extra={"sessions": {"abandon_after_s": 100}})
    agent = Agent(rig, "agent", 1, 5)
    agent.turn()
    rig.clock.advance(99)
    _fill(rig, 3, seed=901)
    assert len(rig.controller.sessions) == 1
    rig.clock.advance(99)
    _fill(rig, 3, seed=902)
    assert len(rig.controller.sessions) == 0


def test_forks_of_one_session_share_their_prefix_and_lose_nothing(make_rig: RigFactory) -> None:
    """Four turns of one session at once (a best-of-4): all blocks of the winner stay known."""
    rig = make_rig(pool_blocks=60)
    agent = Agent(rig, "agent", 1, 6)
    agent.turn()
    context = list(agent.context) + rig.results["agent.0"].tokens
    forks = {f"fork{i}": context + prompt(20 + i, blocks(2)) for i in range(4)}
    for request_id, tokens in forks.items():
        rig.add(request_id, tokens, session="agent", max_tokens=6)
    rig.settle()
    for request_id, tokens in forks.items():
        rig.check_answer(request_id)
        assert rig.results[request_id].gpu_hit_tokens == blocks(6)
        assert rig.cached_blocks(tokens) == 8
    (session,) = rig.controller.sessions
    assert len(session.branches) == 4
    winner = forks["fork2"] + rig.results["fork2"].tokens + prompt(30, 5)
    rig.run("winner", winner, session="agent")
    assert rig.results["winner"].gpu_hit_tokens == blocks(8)
    assert len(session.branches) == 1
    _fill(rig, 60 - 9)
    assert rig.cached_blocks(winner) == 8


@pytest.mark.parametrize("pool_blocks, is_found", [(40, True), (24, False)])
def test_a92_a_tool_list_that_changes_and_changes_back_finds_its_old_branch(
    make_rig: RigFactory, pool_blocks: int, is_found: bool
) -> None:
    """While empty blocks are left; under pressure what the session turned away from goes first."""
    rig = make_rig(pool_blocks=pool_blocks, dram_blocks=8, extra={"min_load_tokens": 10**6})
    agent = Agent(rig, "agent", 1, 8)
    agent.turn()
    old = list(agent.context)
    agent.context = old[: blocks(1)] + prompt(5, blocks(7))
    agent.turn()
    _fill(rig, 24 - 8)
    assert rig.cached_blocks(old) == (8 if is_found else 1)
    agent.context = old
    assert agent.turn().gpu_hit_tokens == (8 * 16 if is_found else 16)
