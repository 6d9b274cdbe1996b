"""Public bug reports about signals: retention hints, leases, and sessions closed at any moment.

Each test is named after its report in `tests/BUG_REPORTS.md`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.control import signal, tell

from agentkv.signals import Event, Status

RigFactory = Callable[..., Rig]
TOOL = {"tool": "bash", "expected_wait_s": 1000.0}
EVENTS = ("pause", "resume", "heartbeat", "end")
MINUTE = 60.0


def fill(rig: Rig, num_blocks: int, seed: int = 900) -> None:
    """A one-shot request that takes so many blocks."""
    rig.run(f"fill{seed}", prompt(seed, blocks(num_blocks) - 2), tag={"last_turn": True})


# --- A84: one-shot prompts flush paused sessions ---


def flushed(rig: Rig, tag: dict[str, object] | None) -> float:
    """The share of five paused sessions' blocks that DRAM has after 500 blocks of one-shots."""
    agents = [Agent(rig, f"a{seed}", seed, 10) for seed in range(1, 6)]
    for agent in agents:
        agent.turn(tag={"tool": "bash", "expected_wait_s": 20.0})
    for number in range(50):
        name = f"shot{number}"
        tokens = prompt(100 + number, blocks(10) - 2)
        rig.run(f"{name}.0", tokens, session=name, max_tokens=1, tag=tag)
        if tag is None:
            signal(rig, "end", name)
    return sum(rig.dram_blocks(agent.context) for agent in agents) / 50


@pytest.mark.parametrize("tag", [{"last_turn": True}, None])
def test_a84_one_shots_that_are_known_as_such_flush_nobody(
    make_rig: RigFactory, tag: dict[str, object] | None
) -> None:
    """Known by their tag, or by a signal right after each."""
    assert flushed(make_rig(pool_blocks=40, dram_blocks=100), tag) >= 0.8


@pytest.mark.parametrize("gap_s", [0.0, 0.3])
def test_a84_one_shots_of_which_nobody_says_anything_flush_nobody(
    make_rig: RigFactory, gap_s: float
) -> None:
    """Told by what is not known of them: no name, no tool, and none of them comes back."""
    rig = make_rig(pool_blocks=40, dram_blocks=100, policy="expected_cost")
    agents = [Agent(rig, f"a{seed}", seed, 10) for seed in range(1, 6)]
    for agent in agents:
        agent.turn(tag={"tool": "bash", "expected_wait_s": 20.0})
    for number in range(50):
        rig.run(f"shot{number}", prompt(100 + number, blocks(10) - 2), max_tokens=1)
        rig.clock.advance(gap_s)
    kept = [max(rig.cached_blocks(a.context), rig.dram_blocks(a.context)) for a in agents]
    assert sum(kept) >= 0.8 * 50


# --- A95: retention is soft ---


def test_a95_three_blocks_are_taken_at_once_from_what_was_fetched_for_others(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, policy="always_swap")
    agents = [Agent(rig, f"a{seed}", seed, 13) for seed in range(1, 4)]
    for agent, wait_s in zip(agents, (900.0, 10.0, 20.0), strict=True):
        agent.turn(tag={"tool": "bash", "expected_wait_s": wait_s})
    for agent in agents:
        signal(rig, "resume", agent.name)
    rig.settle()
    assert rig.pool.get_num_free_blocks() == 40
    rig.add("needy", prompt(9, blocks(3) - 4), tag={"last_turn": True})
    rig.step(1)
    assert [request.request_id for request in rig.scheduler.running] == ["needy"]
    rig.settle()
    rig.check_answer("needy")
    assert rig.counter("agentkv:given_up_blocks", "swap") >= 1
    assert sum(rig.cached_blocks(agent.context) for agent in agents) >= 35


# --- A96: signals while nothing runs, each with a clear answer ---


def test_a96_every_signal_has_its_answer_and_changes_no_more_than_it_says(
    make_rig: RigFactory,
) -> None:
    rig = make_rig()
    for name in ("known", "closed"):
        Agent(rig, name, len(name), 4).turn(tag=TOOL)
    signal(rig, "end", "closed")
    for event in EVENTS[:3]:
        for _ in range(2):
            assert signal(rig, event, "known").status is Status.ACCEPTED
        unknown = signal(rig, event, "nobody")
        assert unknown.status is Status.UNKNOWN
        assert signal(rig, event, "closed") == unknown
        assert signal(rig, event, "known", scope="other tenant") == unknown
    assert signal(rig, "end", "known", scope="other tenant").status is Status.UNKNOWN
    assert len(rig.controller.sessions) == 1
    assert signal(rig, "end", "known").status is Status.ACCEPTED
    assert signal(rig, "end", "known").status is Status.UNKNOWN


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("when", ["queued", "prefill", "decode"])
def test_a96_a_signal_at_any_moment_of_a_turn_leaves_the_turn_as_it_is(
    make_rig: RigFactory, event: str, when: str
) -> None:
    rig = make_rig(max_num_seqs=1, max_step_tokens=48)
    if when == "queued":
        rig.add("before", prompt(8, 40), max_tokens=8)
        rig.step(1)
    agent = Agent(rig, "a", 1, 6)
    request_id = agent.arrive(max_tokens=12)
    rig.step({"queued": 1, "prefill": 1, "decode": 6}[when])
    is_noted = event in ("pause", "end")
    for _ in range(2):
        result = signal(rig, event, "a", tool="bash")
        assert result.status is (Status.DEFERRED if is_noted else Status.ACCEPTED)
    rig.settle()
    rig.check_answer(request_id)
    assert len([s for s in rig.controller.sessions if not s.is_inferred]) == (event != "end")


# --- A97: leases ---


def test_a97_the_blocks_of_a_client_that_died_come_back_with_the_lease(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(pool_blocks=40, extra={"sessions": {"abandon_after_s": 300}})
    other = Agent(rig, "other", 2, 10)
    other.turn(tag=TOOL)
    dead = Agent(rig, "dead", 1, 10)
    dead.turn(tag=TOOL)
    rig.clock.advance(200)
    signal(rig, "heartbeat", "other")
    rig.clock.advance(101)
    tell(rig)
    rig.settle()
    assert [session.key.name for session in rig.controller.sessions] == ["other"]
    fill(rig, 28)
    assert rig.cached_blocks(dead.context) < 4, "its blocks went first, though used last"
    assert rig.cached_blocks(other.context) == 10


def test_a97_ten_minutes_of_heartbeats_keep_a_session_and_its_blocks(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(pool_blocks=40, extra={"sessions": {"abandon_after_s": 60}})
    agent = Agent(rig, "a", 1, 10)
    agent.turn(tag=TOOL)
    for _ in range(20):
        rig.clock.advance(MINUTE / 2)
        assert signal(rig, "heartbeat", "a").status is Status.ACCEPTED
        fill(rig, 20, seed=int(rig.clock.monotonic_s()))
    assert agent.turn().gpu_hit_tokens == blocks(10)


def test_a97_a_heartbeat_after_the_lease_revives_no_block(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, extra={"sessions": {"abandon_after_s": 60}})
    agent = Agent(rig, "a", 1, 10)
    agent.turn(tag=TOOL)
    rig.clock.advance(61)
    tell(rig)
    rig.settle()
    fill(rig, 39)
    for event in ("heartbeat", "resume", "pause"):
        assert signal(rig, event, "a").status is Status.UNKNOWN
    rig.settle()
    assert len(rig.controller.sessions) == 0 and rig.cached_blocks(agent.context) < 2
    assert rig.counter("agentkv:prefetches") == 0
    agent.turn()


# --- A98: a session closed at any moment ---


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_a98_a_session_closed_while_its_turn_runs_ends_after_it(
    make_rig: RigFactory, num_steps: int, is_async: bool
) -> None:
    """Before the first token and in the middle; the answer is the one without the signal."""
    rig = make_rig(max_step_tokens=64, is_async=is_async)
    agent = Agent(rig, "a", 1, 6)
    request_id = agent.arrive(max_tokens=10)
    rig.step(num_steps)
    tell(rig, Event(event="end", session_id="a"), Event(event="end", session_id="a"))
    rig.step(1)
    assert not rig.results[request_id].is_finished
    assert rig.cached_blocks(agent.context) <= 6 and len(rig.controller.sessions) == 1
    rig.settle()
    rig.check_answer(request_id)
    assert len(rig.controller.sessions) == 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_before", [True, False])
def test_a98_a_session_closed_in_the_step_in_which_its_turn_finishes_ends_once(
    make_rig: RigFactory, is_before: bool, is_async: bool
) -> None:
    """The signal is handled before the step's results are, or after them."""
    rig = make_rig(is_async=is_async)
    agent = Agent(rig, "a", 1, 4)
    request_id = agent.arrive(max_tokens=3)
    messages: list[str] = []

    def end() -> None:
        messages.append(tell(rig, Event(event="end", session_id="a")))

    rig.step_until(lambda: len(rig.results[request_id].tokens) == 2)
    if is_before:
        rig.before_update = end
    rig.step_until(lambda: rig.results[request_id].is_finished)
    if not is_before:
        end()
    rig.settle()
    rig.check_answer(request_id)
    [result] = rig.replies[messages[0]].results
    assert result.status is (Status.DEFERRED if is_before else Status.ACCEPTED)
    assert len(rig.controller.sessions) == 0
    assert signal(rig, "end", "a").status is Status.UNKNOWN


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_a98_a_thousand_turns_of_closed_sessions_strand_no_block(
    make_rig: RigFactory, is_hybrid: bool
) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=60, is_hybrid=is_hybrid, max_num_seqs=8)
    for number in range(250):
        for part in range(4):
            name = f"s{number}.{part}"
            rig.add(f"{name}.0", prompt(number * 4 + part, 40), session=name, max_tokens=2)
        rig.step(number % 3)
        tell(rig, *(Event(event="end", session_id=f"s{number}.{part}") for part in range(4)))
        rig.settle()
        assert rig.pool.get_num_free_blocks() == 40
        assert len(rig.controller.sessions) == 0
    assert len(rig.controller.sessions.tree) == 0
    rig.clock.advance(2.0)
    tell(rig)
    rig.settle()
    assert len(rig.side.returns.prefetcher._kept) == 0
