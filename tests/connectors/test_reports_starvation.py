"""Public bug reports about hangs and starvation: a hold must never keep anybody waiting.

Each test is named after its report in `tests/BUG_REPORTS.md`. "Held" sessions are paused ones whose
policy says hold; the pool is filled with them.
"""

from collections.abc import Callable

import pytest
from kit import Agent, Kind, Rig, blocks, prompt

RigFactory = Callable[..., Rig]
HOLDS = {"policy": "always_hold"}
NO_PREFETCH = {"prefetch": {"enabled": False}}


def _hold(rig: Rig, num_sessions: int, num_blocks: int, first_seed: int = 100) -> list[Agent]:
    agents = [Agent(rig, f"held{i}", first_seed + i, num_blocks) for i in range(num_sessions)]
    for agent in agents:
        agent.turn()
    return agents


def _all_finish(rig: Rig, *request_ids: str, max_steps: int = 200) -> None:
    rig.step_until(lambda: all(rig.results[i].is_finished for i in request_ids), max_steps)
    for request_id in request_ids:
        rig.check_answer(request_id)


@pytest.mark.parametrize("scheduling", ["fcfs", "priority"])
def test_a37_a_parked_load_and_the_queues_head_do_not_block_each_other(
    make_rig: RigFactory, scheduling: str
) -> None:
    rig = make_rig(pool_blocks=27, scheduling=scheduling)
    rig.run("stored", prompt(1, blocks(25)), max_tokens=1)
    rig.drop_gpu_cache()
    rig.script.load_delay_steps = 6
    rig.add("load", [*prompt(1, blocks(25)), 1], priority=1)
    rig.step(1)
    rig.add("head", prompt(2, blocks(10)), priority=0)
    rig.add("small", prompt(3, blocks(1)), priority=2)
    _all_finish(rig, "load", "head", "small")


@pytest.mark.parametrize("scheduling", ["fcfs", "priority"])
def test_a37_two_parked_loads_that_fill_the_pool_let_all_finish(
    make_rig: RigFactory, scheduling: str
) -> None:
    rig = make_rig(pool_blocks=27, scheduling=scheduling)
    for seed in (1, 2):
        rig.run(f"stored{seed}", prompt(seed, blocks(12)), max_tokens=1)
    rig.drop_gpu_cache()
    rig.script.load_delay_steps = 6
    rig.add("load1", [*prompt(1, blocks(12)), 1], priority=1)
    rig.add("load2", [*prompt(2, blocks(12)), 1], priority=1)
    rig.step(1)
    rig.add("head", prompt(3, blocks(10)), priority=0)
    rig.add("small", prompt(4, blocks(1)), priority=2)
    _all_finish(rig, "load1", "load2", "head", "small")


@pytest.mark.parametrize("scheduling", ["fcfs", "priority"])
def test_a37_holds_in_place_of_parked_loads_let_all_finish(
    make_rig: RigFactory, scheduling: str
) -> None:
    rig = make_rig(pool_blocks=27, scheduling=scheduling, **HOLDS)
    _hold(rig, 1, 25)
    rig.add("head", prompt(2, blocks(10)), priority=0)
    rig.add("small", prompt(3, blocks(1)), priority=2)
    _all_finish(rig, "head", "small", max_steps=20)
    assert rig.counter("agentkv:given_up_blocks", "swap") > 0


def test_a42_fenced_blocks_cost_at_most_one_preemption(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=20)
    rig.script.store_delay_steps = 8
    for i in range(4):
        rig.add(f"r{i}", prompt(i, blocks(5) - 2), max_tokens=6)
    _all_finish(rig, *(f"r{i}" for i in range(4)))
    num_preemptions = sum(rig.results[f"r{i}"].request.num_preemptions for i in range(4))
    assert num_preemptions <= 1


def test_a43_a_head_of_line_request_gets_its_blocks_from_holds(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, max_num_seqs=8, **HOLDS)
    _hold(rig, 4, 6)
    rig.add("head", prompt(1, blocks(20)))
    followers = [f"follower{i}" for i in range(5)]
    for i, request_id in enumerate(followers):
        rig.add(request_id, prompt(20 + i, blocks(2) - 4))
    rig.step(1)
    assert len(rig.scheduler.running) == 6, "nobody had to wait at all"
    _all_finish(rig, "head", *followers, max_steps=20)


def test_a43_a_stream_of_followers_does_not_starve_the_head(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, max_num_seqs=4, **HOLDS)
    _hold(rig, 4, 6)
    for i in range(3):
        rig.add(f"early{i}", prompt(50 + i, blocks(2)), max_tokens=30)
    rig.step(1)
    rig.add("head", prompt(1, blocks(36)))
    for i in range(500):
        if rig.results["head"].is_finished:
            break
        rig.add(f"late{i}", prompt(100 + i, blocks(1)), max_tokens=3)
        rig.step(1)
    rig.check_answer("head")


def test_a46_a_request_that_fits_without_the_holds_runs_at_once(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=30, **HOLDS)
    _hold(rig, 2, 10)
    rig.add("large", prompt(1, blocks(25)))
    rig.step(1)
    assert [request.request_id for request in rig.scheduler.running] == ["large"]
    rig.settle()
    rig.check_answer("large")


def test_a46_a_request_that_can_never_fit_waits_just_as_without_the_plugin(
    make_rig: RigFactory,
) -> None:
    ends = []
    for kind in (Kind.NONE, Kind.AGENTKV):
        rig = make_rig(pool_blocks=30, kind=kind, **HOLDS)
        _hold(rig, 2, 10)
        rig.add("early", prompt(2, blocks(2)))
        rig.add("huge", prompt(1, blocks(40)))
        rig.add("late", prompt(3, blocks(2)))
        rig.step(50)
        ends.append([rig.results[i].finish_reason for i in ("early", "huge", "late")])
        rig.abort("huge")
        rig.settle()
        rig.check_answer("late")
    assert ends[0] == ends[1]


@pytest.mark.parametrize("local_blocks", [4, 6])
def test_a47_a_dram_hit_that_is_not_needed_leaves_nothing_locked(
    make_rig: RigFactory, local_blocks: int
) -> None:
    """The pool holds as much as DRAM, or more."""
    rig = make_rig(dram_blocks=8)
    tokens = prompt(1, blocks(4))
    rig.run("stored", tokens, max_tokens=1)
    if local_blocks > 4:
        tokens = tokens + prompt(2, blocks(2))
        rig.run("longer", tokens, max_tokens=1, tag={"last_turn": True})
    for i in range(500):
        result = rig.run(f"r{i}", [*tokens, i], max_tokens=1, tag={"last_turn": True})
        assert result.gpu_hit_tokens == blocks(local_blocks) and result.dram_hit_tokens == 0
    assert rig.copies.num_loads == 0
    assert rig.primary._num_evictable_cache_chunks == len(rig.dram.chunks)
    rig.run("new", prompt(3, blocks(8)), max_tokens=1)
    assert rig.dram_blocks(prompt(3, blocks(8))) == 8


def test_a55_sessions_that_fill_the_pool_never_wedge_it(make_rig: RigFactory) -> None:
    """Eight held sessions; then a turn of one of them overlaps with its own former turn."""
    rig = make_rig(pool_blocks=64, **HOLDS)
    agents = _hold(rig, 8, 7)
    first = agents[0]
    slow = first.arrive(max_tokens=40)
    rig.step(3)
    rig.add("overlap", first.context + prompt(1, blocks(20) - 200), session=first.name)
    _all_finish(rig, slow, "overlap")
    (session,) = [s for s in rig.controller.sessions if s.key.name == first.name]
    assert session.pause is not None and not session.active
    big = rig.run("big", prompt(2, blocks(60)))
    assert big.is_finished


def test_a55_closing_a_session_frees_only_what_nobody_shares(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=64)
    shared = prompt(1, blocks(4))
    for name in ("one", "two"):
        rig.run(f"{name}.0", [*shared, *prompt(hash(name) % 999, blocks(3))], session=name)
    one = list(rig.results["one.0"].request.prompt_token_ids)
    two = list(rig.results["two.0"].request.prompt_token_ids)
    rig.run("one.1", [*one, 1], session="one", tag={"last_turn": True}, max_tokens=1)
    rig.run("filler", prompt(9, blocks(64 - 7)), max_tokens=1, tag={"last_turn": True})
    assert rig.cached_blocks(two) == 7
    assert rig.cached_blocks(one) == 4


def test_a58_idle_sessions_let_go_by_themselves(make_rig: RigFactory) -> None:
    """Fifty turns; nothing is ever pinned, and after its time-out the session is forgotten."""
    rig = make_rig(pool_blocks=80, extra={"sessions": {"abandon_after_s": 60}}, **HOLDS)
    agent = Agent(rig, "agent", 1, 2)
    for _ in range(50):
        agent.turn(tool_tokens=blocks(1))
        assert rig.pool.get_num_free_blocks() == 80
    rig.clock.advance(61)
    rig.run("other", prompt(2, blocks(2)), tag={"last_turn": True})
    assert len(rig.controller.sessions) == 0 and len(rig.controller.sessions.tree) == 0
    assert not rig.controller.pauses.kept()


def test_a58_under_pressure_the_latest_return_goes_first_not_the_oldest_session(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(pool_blocks=34, policy="always_swap", extra=NO_PREFETCH)
    returns_s = {"oldest": 5, "middle": 500, "newest": 50}
    agents = {}
    for seed, (name, wait_s) in enumerate(returns_s.items(), start=1):
        agents[name] = Agent(rig, name, seed, 8)
        agents[name].turn(tag={"expected_wait_s": wait_s})
    rig.run("needy", prompt(9, blocks(22) - 4), tag={"last_turn": True})
    left = {name: rig.cached_blocks(agent.context) for name, agent in agents.items()}
    assert left["oldest"] == 8 and left["middle"] == 0 and 0 < left["newest"] < 8


def test_a95_a_hold_is_broken_for_a_request_that_needs_its_blocks(make_rig: RigFactory) -> None:
    """Even a hold within all its limits, and of those the one that is back latest."""
    rig = make_rig(pool_blocks=40, extra=NO_PREFETCH, **HOLDS)
    returns_s = {"soon": 1, "late": 900, "later": 5000}
    agents = {}
    for seed, (name, wait_s) in enumerate(returns_s.items(), start=1):
        agents[name] = Agent(rig, name, seed, 7)
        agents[name].turn(tag={"expected_wait_s": wait_s})
    rig.add("needy", prompt(9, blocks(22) - 4), tag={"last_turn": True})
    rig.step(1)
    assert [request.request_id for request in rig.scheduler.running] == ["needy"]
    rig.settle()
    assert rig.counter("agentkv:given_up_blocks", "swap") >= 3
    assert rig.counter("agentkv:decisions", "swap") >= 1, "the hold was overridden, and said so"
    assert rig.cached_blocks(agents["soon"].context) == 7
    assert rig.cached_blocks(agents["late"].context) == 7
    assert rig.cached_blocks(agents["later"].context) < 7


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_every_request_that_fits_finishes_whatever_is_held(
    make_rig: RigFactory, is_hybrid: bool
) -> None:
    rig = make_rig(pool_blocks=30, is_hybrid=is_hybrid, max_step_tokens=64, **HOLDS)
    agents = _hold(rig, 6, 4)
    ids = [agent.arrive(tool_tokens=blocks(5), max_tokens=20) for agent in agents]
    rig.add("large", prompt(1, blocks(13 if is_hybrid else 28)))
    _all_finish(rig, *ids, "large", max_steps=1000)
