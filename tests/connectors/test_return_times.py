"""Given-up pauses by their times: due once it has come, for as long as they wait for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import Agent, Rig, prompt
from kit.away import ANY_LENGTH
from kit.tiers import HUMAN, ssd, step_until

from agentkv.connectors.return_times import ReturnTimes
from agentkv.sessions import Session
from tests.test_controller import World
from tests.test_pause_table import make_pause

MOST = 4


class Times:
    """Pauses 0, 1, 2, … are given up at 0 s and to be brought back after so many seconds."""

    def __init__(self) -> None:
        world = World()
        self.book = world.controller.pauses
        self.brought: set[str] = set()
        deps = dataclasses.replace(world.controller._deps)
        deps.costs.load_overhead_s = 0.0
        deps.costs.load_link.latency_s = 0.0
        self.times = ReturnTimes(self.book, deps, lambda each: each.key.name in self.brought)

    def give_up(self, number: int, start_s: float) -> Session:
        session, pause = make_pause(number)
        # The load begins a tenth of the shortest wait early, see `prefetch_start_s`.
        pause.context_tokens, pause.early_at_s = 0, start_s / 0.9
        self.book.open(session, pause)
        self.book.note(session, pause)
        self.book.give_up(session, pause)
        return session

    def due(self, now_s: float, most: int = MOST) -> list[str]:
        return [session.key.name for session, _ in self.times.due(now_s, most)]


def test_each_is_due_from_its_time_on() -> None:
    times = Times()
    for number, start_s in enumerate((3.0, 1.0, 2.0)):
        times.give_up(number, start_s)
    assert times.due(0.5) == [] and times.times.next_s(0.5, MOST) == pytest.approx(0.5)
    assert times.due(2.5) == ["s1", "s2"] == times.due(2.6)
    assert times.times.next_s(2.5, MOST) == pytest.approx(0.5)
    assert sorted(times.due(4.0)) == ["s0", "s1", "s2"]
    assert times.times.next_s(4.0, MOST) is None


def test_of_many_the_next_ones() -> None:
    times = Times()
    for number in range(10):
        times.give_up(number, 1.0)
    assert times.times.next_s(2.0, MOST) == 0.0, "it cannot tell yet"
    seen = [times.due(2.0) for _ in range(10)]
    assert all(len(each) <= MOST for each in seen)
    assert {name for each in seen[:4] for name in each} == {f"s{number}" for number in range(10)}


def test_who_does_not_wait_for_time_any_more_is_never_due() -> None:
    times = Times()
    back, done, closed, brought, stays = (times.give_up(number, 1.0) for number in range(5))
    assert len(times.due(2.0, most=9)) == 5
    times.book.take_back(back)
    assert done.pause is not None
    done.pause.tool_done_s = 1.0
    times.book.close(closed)
    closed.pause = None
    times.brought.add(brought.key.name)
    assert times.due(2.0, most=9) == [stays.key.name]
    times.times.drop(stays)
    assert times.due(2.0, most=9) == []


def test_who_is_expected_at_another_time_is_due_then() -> None:
    times = Times()
    early, late = times.give_up(0, 9.0), times.give_up(1, 1.0)
    assert times.due(2.0) == ["s1"]
    for session, start_s in ((early, 3.0), (late, 8.0)):
        assert session.pause is not None
        session.pause.early_at_s = start_s / 0.9
        times.book.note(session, session.pause)
    assert times.due(4.0) == ["s0"] and times.due(9.5) == ["s0", "s1"]


def test_closed_pauses_do_not_pile_up() -> None:
    times = Times()
    for number in range(500):
        session = times.give_up(number, 1e6)
        times.due(0.0)
        times.book.close(session)
        session.pause = None
    assert len(times.times) <= 66
    times.times.clear()
    assert len(times.times) == 0


def test_a_load_that_failed_may_be_tried_again(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, policy="always_swap", extra=ANY_LENGTH)
    agent = Agent(rig, "a", 1, 6)
    agent.turn(tag={"tool": "bash", "expected_wait_s": 100.0})
    ((session, pause),) = rig.controller.pauses.kept()
    rig.controller.pauses.give_up(session, pause)
    rig.drop_gpu_cache()
    rig.flip_dram_byte(agent.context, 4)
    times = rig.side.returns.prefetcher._times
    rig.clock.advance(95.0)
    assert [each for each, _ in times.due(rig.clock.monotonic_s(), MOST)] == [session]
    rig.script.load_delay_steps = 10
    rig.add("busy", prompt(5, 20), max_tokens=60, tag={"last_turn": True})
    rig.step_until(lambda: rig.copies.num_late > 0, max_steps=20)
    assert times.due(rig.clock.monotonic_s(), MOST) == [], "it is on its way"
    puts: list[Session] = []
    put = times.put
    times.put = lambda session, pause: puts.append(session) or put(session, pause)
    rig.settle()
    assert puts and puts[0] is session


def test_what_lies_below_dram_is_due_earlier(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    rig = make_rig(**ssd(tmp_path))
    Agent(rig, "a", 1, 10).turn(tag=HUMAN)
    ((session, pause),) = rig.controller.pauses.kept()
    rig.controller.pauses.give_up(session, pause)
    rig.controller.pauses.take_timed()
    step_until(rig, lambda: pause.slow_s > 0)
    times, now_s = rig.side.returns.prefetcher._times, rig.clock.monotonic_s()
    assert times.next_s(now_s, MOST) == pytest.approx(times.start_s(pause) - now_s)
