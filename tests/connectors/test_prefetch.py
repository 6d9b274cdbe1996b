"""KV of a paused session is back in the pool before its turn, whatever happens meanwhile.

The runner compares every element a turn reads with its canary, so each answer checked here is a
check of the prefetched blocks, too.
"""

import itertools
from collections.abc import Callable

import pytest
from kit import Agent, Rig, blocks
from kit.away import outcomes
from kit.control import signal, tell
from kit.copies import FOREVER

from agentkv.connectors import host_copies
from agentkv.signals import Event, Status

RigFactory = Callable[..., Rig]
TOOL = {"tool": "bash", "expected_wait_s": 1000.0}


def pushed_out(rig: Rig, *, num_blocks: float = 10, **tag: object) -> Agent:
    """An agent that waits for its tool; others have taken its blocks and are still there."""
    agent = Agent(rig, "waiting", 1, num_blocks)
    agent.turn(tag={**TOOL, **tag})
    crowd(rig)
    assert rig.cached_blocks(agent.context) < num_blocks / 2
    assert rig.dram_blocks(agent.context) >= int(num_blocks)
    return agent


def crowd(rig: Rig, *, seed: int = 50, wait_s: float = 10.0, last: bool = False) -> list[Agent]:
    """Takes the whole pool, one half after the other."""
    half = rig.config.pool_blocks / 2 - 1.5
    agents = [Agent(rig, f"other{seed + i}", seed + i, half) for i in range(2)]
    for agent in agents:
        agent.turn(tag={"tool": "bash", "expected_wait_s": wait_s, "last_turn": last})
    return agents


@pytest.mark.parametrize("is_hybrid", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_after_resume_the_turn_finds_all_its_kv_in_the_pool(
    make_rig: RigFactory, is_hybrid: bool, is_async: bool
) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, is_hybrid=is_hybrid, is_async=is_async)
    agent = pushed_out(rig, num_blocks=8 if is_hybrid else 10)
    num_computed = rig.runner.num_computed_tokens
    assert signal(rig, "resume", "waiting").status is Status.ACCEPTED
    rig.settle()
    assert rig.runner.num_computed_tokens == num_computed, "no request ran"
    result = agent.turn()
    assert result.dram_hit_tokens == 0
    assert result.gpu_hit_tokens is not None
    assert result.gpu_hit_tokens >= blocks(8 if is_hybrid else 10) - blocks(1)
    assert outcomes(rig) == {"useful": 1}


def test_without_a_signal_the_turn_loads_on_arrival(make_rig: RigFactory) -> None:
    """The negative control of the test above."""
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    result = pushed_out(rig).turn()
    assert result.dram_hit_tokens and result.dram_hit_tokens >= blocks(7)


def test_an_idle_engine_sleeps_again_after_a_prefetch_and_without_one(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    pushed_out(rig)
    for session in ("waiting", "nobody"):
        signal(rig, "resume", session)
        rig.settle(max_steps=20)
        assert not rig.scheduler.has_requests()


def test_room_that_nobody_needs_is_filled_without_a_signal(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag=TOOL)
    for each in crowd(rig):
        signal(rig, "end", each.name)
    rig.settle()
    assert rig.cached_blocks(agent.context) >= 10
    assert agent.turn().dram_hit_tokens == 0
    assert rig.counter("agentkv:prefetches", "headroom") == 1


def test_a_predicted_return_is_prepared_when_the_clock_is_told(make_rig: RigFactory) -> None:
    """The pool is full of sessions that return later; time alone brings the one that is due."""
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = pushed_out(rig, expected_wait_s=30.0)
    for name in ("other50", "other51"):
        signal(rig, "pause", name, tool="bash", expected_wait_s=5000.0)
    message_id = tell(rig)
    rig.settle()
    due_s = rig.replies[message_id].tick_in_s
    assert due_s is not None and 0 < due_s < 30
    assert rig.cached_blocks(agent.context) < 5, "too early to push others out"
    rig.clock.advance(due_s + 0.1)
    tell(rig)
    rig.settle()
    assert rig.cached_blocks(agent.context) >= 10
    assert agent.turn().dram_hit_tokens == 0
    assert rig.counter("agentkv:prefetches", "predicted") == 1


def test_a_prediction_displaces_nobody_while_dram_evicts_kv_of_live_sessions(
    make_rig: RigFactory,
) -> None:
    """What it displaced might be gone for good; ten quiet seconds later it may again."""
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = pushed_out(rig, expected_wait_s=30.0)
    for name in ("other50", "other51"):
        signal(rig, "pause", name, tool="bash", expected_wait_s=5000.0)
    rig.clock.advance(29.0)
    a_block_of_theirs = rig.side.layout.keys([_first_block(rig, "other50")])
    rig.side.after_dram_evicted(a_block_of_theirs)
    tell(rig)
    rig.settle()
    assert rig.counter("agentkv:prefetches") == 0
    rig.clock.advance(10.5)
    tell(rig)
    rig.settle()
    assert rig.counter("agentkv:prefetches", "predicted") == 1
    assert rig.cached_blocks(agent.context) >= 10


def _first_block(rig: Rig, name: str) -> tuple[int, bytes]:
    sessions = rig.controller.sessions
    session = next(each for each in sessions if each.key.name == name)
    return min(sessions.all_blocks(session))


def test_only_sessions_that_return_later_make_room(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag={"tool": "bash", "expected_wait_s": 100.0})
    soon = crowd(rig, wait_s=20.0)
    rig.clock.advance(90.0)  # the others are overdue: they may come any moment
    tell(rig)
    rig.settle()
    assert sum(rig.cached_blocks(each.context) for each in soon) >= 34
    assert rig.cached_blocks(agent.context) < 5


def test_a_reserve_of_idle_room_stays_empty(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, extra={"prefetch": {"reserve_fraction": 0.9}})
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag=TOOL)
    for each in crowd(rig):
        signal(rig, "end", each.name)
    rig.settle()
    assert rig.cached_blocks(agent.context) < 5


def test_what_requests_want_is_not_taken(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, max_step_tokens=48)
    agent = pushed_out(rig)
    large = Agent(rig, "large", 90, 39)
    large.arrive()
    rig.step()
    signal(rig, "resume", "waiting")
    rig.step(3)
    assert rig.counter("agentkv:prefetches") == 0
    rig.settle()
    rig.check_answer("large.0")
    assert rig.results["large.0"].request.num_preemptions == 0
    agent.turn()


def test_a_turn_that_arrives_meanwhile_takes_over_the_load(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = pushed_out(rig)
    rig.script.load_delay_steps = 6
    before = rig.copies.num_loads
    signal(rig, "resume", "waiting")
    rig.step(2)
    assert rig.copies.num_loads == before + 1 and rig.copies.num_late == 1
    other = Agent(rig, "bystander", 77, 2)
    agent.arrive()
    other.turn()  # is served while the turn waits
    assert rig.copies.num_loads == before + 1, "its blocks were not loaded twice"
    assert agent.turn().request is not None
    assert outcomes(rig)["late"] == 1


@pytest.mark.parametrize("how", ["end", "abandon", "reset", "reset_dram"])
def test_what_ends_a_session_during_its_load_leaves_nothing_behind(
    make_rig: RigFactory, how: str
) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, extra={"sessions": {"abandon_after_s": 5000}})
    agent = pushed_out(rig)
    depth = rig.cached_blocks(agent.context)
    rig.script.load_delay_steps = 5
    signal(rig, "resume", "waiting")
    rig.step(2)
    assert rig.copies.num_late == 1
    if how == "end":
        assert signal(rig, "end", "waiting").status is Status.ACCEPTED
    elif how == "abandon":
        rig.clock.advance(6000)
    else:
        assert rig.scheduler.reset_prefix_cache(reset_connector=how == "reset_dram")
    rig.settle()
    if how in ("end", "abandon"):
        assert rig.cached_blocks(agent.context) <= depth
    agent.turn()


def test_a_damaged_block_is_refused_and_the_turn_computes(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = pushed_out(rig)
    depth = rig.cached_blocks(agent.context)
    rig.flip_dram_byte(agent.context, depth + 2)
    signal(rig, "resume", "waiting")
    rig.settle()
    assert rig.cached_blocks(agent.context) == depth, "nothing of a failed load is cached"
    assert outcomes(rig) == {"failed": 1}
    result = agent.turn()
    assert (result.gpu_hit_tokens or 0) + (result.dram_hit_tokens or 0) < blocks(10)


def test_a_damaged_block_that_is_believed_shows(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the canaries notice one wrong byte in a prefetched block."""
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = pushed_out(rig)
    rig.copies.copies._dram[1][:, 77] ^= 1
    monkeypatch.setattr(host_copies, "checksum", lambda row: 1)
    rig.copies.copies._sums[:] = 1  # every checksum is right
    rig.is_spoilt = True
    signal(rig, "resume", "waiting")
    with pytest.raises(Exception, match="wrong elements"):
        rig.settle()
        agent.turn()


def test_a_prefetched_session_is_given_up_again_under_pressure(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = pushed_out(rig)
    signal(rig, "resume", "waiting")
    rig.settle()
    assert rig.cached_blocks(agent.context) >= 10
    signal(
        rig, "pause", "waiting", expected_wait_s=3000.0
    )  # another tool, it will not be back soon
    Agent(rig, "large", 90, 36).turn(tag={"tool": "bash", "expected_wait_s": 1.0})
    assert rig.cached_blocks(agent.context) < 5
    agent.turn()
    assert outcomes(rig) == {"lost": 1}


def test_two_sessions_never_push_each_other_out_in_turns(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=24, dram_blocks=200)
    pair = [Agent(rig, f"a{i}", i + 1, 20) for i in range(2)]
    for agent in pair:
        agent.turn(tag={"tool": "bash", "expected_wait_s": 1.0})
    for _ in range(50):
        rig.clock.advance(0.5)
        tell(rig)
        rig.settle()
    assert rig.counter("agentkv:prefetches") <= 2


def test_finished_tools_share_what_room_there_is_and_then_rest(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than fit, on a clock that moves between any two looks at it."""
    rig = make_rig(pool_blocks=24, dram_blocks=200)
    agents = [Agent(rig, f"a{i}", i + 1, 9) for i in range(6)]
    for agent in agents:
        agent.turn(tag={"tool": "bash", "expected_wait_s": 30.0})
    clock, looks = type(rig.clock), itertools.count()
    now = clock.monotonic_s
    monkeypatch.setattr(clock, "monotonic_s", lambda self: now(self) + next(looks) * 1e-6)
    for agent in agents:
        tell(rig, Event(event="resume", session_id=agent.name))
        rig.step()
    rig.settle(max_steps=200)
    assert sum(rig.cached_blocks(agent.context) >= 9 for agent in agents) == 2


@pytest.mark.parametrize("trigger", ["resume", "headroom"])
def test_a_load_in_parts_ends_with_all_of_it(make_rig: RigFactory, trigger: str) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag=TOOL)
    others = crowd(rig)
    prefetcher = rig.side.returns.prefetcher
    a_third_bytes = int(rig.side._footprint.bytes_for(blocks(3)))
    prefetcher._config = prefetcher._config.model_copy(
        update={"max_in_flight_bytes": a_third_bytes}
    )
    if trigger == "resume":
        signal(rig, "resume", "waiting")
    for other in others if trigger == "headroom" else ():
        signal(rig, "end", other.name)
    rig.settle()
    assert rig.counter("agentkv:prefetches", trigger) >= 3
    assert agent.turn().dram_hit_tokens == 0
    assert outcomes(rig) == {"useful": 1}


def test_a_prediction_brings_a_pause_back_once(make_rig: RigFactory) -> None:
    """Pushed out again, it waits for its tool: else requests and predictions would take turns."""
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    pushed_out(rig, expected_wait_s=30.0)
    for name in ("other50", "other51"):
        signal(rig, "pause", name, tool="bash", expected_wait_s=5000.0)
    rig.clock.advance(29.0)
    for number in range(4):
        tell(rig)
        rig.settle()
        later = {"tool": "bash", "expected_wait_s": 9000.0 - number}
        Agent(rig, f"large{number}", 90 + number, 36).turn(tag=later)
        rig.clock.advance(2.0)
    assert rig.counter("agentkv:prefetches", "predicted") == 1


@pytest.mark.parametrize(("num_more", "most_looks"), [(0, 14), (3, 28)])
def test_room_that_is_not_there_is_looked_for_now_and_then(
    make_rig: RigFactory, num_more: int, most_looks: int
) -> None:
    """The search walks over the other pauses: not at every step, for every message or pause."""
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    more = [Agent(rig, f"more{i}", 200 + i, 6) for i in range(num_more)]
    for each in more:
        each.turn(tag=TOOL)
    agent = pushed_out(rig)
    for name in ("other50", "other51"):  # so they may not be displaced
        signal(rig, "resume", name)
    looks: list[float] = []
    search = rig.controller.portfolio.later_returns

    def count(*args: object, **kwargs: object) -> object:
        looks.append(rig.clock.monotonic_s())
        return search(*args, **kwargs)

    rig.controller.portfolio.later_returns = count
    for name in ("waiting", *(each.name for each in more)):
        signal(rig, "resume", name)
    for _ in range(100):
        tell(rig)
        rig.step()
    assert rig.cached_blocks(agent.context) < 10, "there was no room"
    assert 1 <= len(looks) <= most_looks, "ten a second at most, not for each by itself"
    rig.settle()


def test_switched_off_nothing_is_fetched(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, extra={"prefetch": {"enabled": False}})
    agent = pushed_out(rig)
    result = signal(rig, "resume", "waiting")
    assert result.status is Status.ACCEPTED and result.detail == "noted; prefetching is off"
    rig.settle()
    assert rig.counter("agentkv:prefetches") == 0
    assert agent.turn().dram_hit_tokens


def test_a_load_that_never_ends_does_not_stop_others(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    agent = pushed_out(rig)
    rig.script.load_delay_steps = FOREVER
    signal(rig, "resume", "waiting")
    rig.step(2)
    rig.script.load_delay_steps = 0
    Agent(rig, "bystander", 77, 2).arrive()
    rig.step(40)
    assert rig.results["bystander.0"].is_finished
    rig.copies.release()
    agent.turn()


def test_a_parallel_pause_lasts_as_long_as_its_longest_call(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    Agent(rig, "waiting", 1, 4).turn()
    calls = [
        {"tool": "bash", "command": "sleep 500"},
        {"tool": "bash", "command": "ls"},
    ]
    event = Event.model_validate({"event": "pause", "session_id": "waiting", "calls": calls})
    message_id = tell(rig, event, sessions={"session_id": "waiting"})
    rig.step_until(lambda: message_id in rig.replies)
    [session] = rig.replies[message_id].sessions or ()
    assert session["pause"]["tool"] == "bash"
    assert session["pause"]["returns_in_s"] > 300
