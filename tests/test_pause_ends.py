"""How pauses end, in whatever way: nothing is left of them, and of many a few end at a time."""

from __future__ import annotations

import pytest

from agentkv.events import TurnTag
from tests.test_controller import World
from tests.test_prefix_tree import chain


def test_nothing_is_left_of_the_pause_of_a_session_that_ended_in_any_way() -> None:
    world = World(sessions={"abandon_after_s": 100, "max_sessions": 3})
    ended: list[str] = []
    world.controller.on_ended = lambda session: ended.append(session.key.name)
    for number, name in enumerate(("forgotten", "ended", "abandoned", "returned")):
        world.turn(name, range(number * 100, number * 100 + 20))
    world.turn("returned", range(300, 321), TurnTag(last_turn=True))
    (session,) = [each for each in world.controller.sessions if each.key.name == "ended"]
    world.controller.end(session)
    assert len(world.controller.pauses.table.rows()) == 1
    world.clock.advance(101)
    world.controller.tidy()
    assert ended == ["forgotten", "returned", "ended", "abandoned"]
    assert len(world.controller.pauses.table.rows()) == len(world.controller.pauses.kept()) == 0


@pytest.mark.parametrize("num_steps", [1, 3])
def test_of_many_overdue_ones_some_end_at_a_time(num_steps: int) -> None:
    world = World(sessions={"abandon_after_s": 100})
    for number in range(20):
        world.turn(f"s{number}", range(number * 100, number * 100 + 5))
    world.clock.advance(101)
    for _ in range(num_steps):
        world.controller.end_overdue(4)
    assert len(world.controller.sessions) == 20 - 4 * num_steps


def test_who_returns_before_that_was_settled_is_recomputed_for_the_record() -> None:
    world = World(missing=20)
    world.press()
    world.turn("a", range(20), TurnTag(expected_wait_s=60))
    world.missing = 0
    world.press()
    world.victims()
    world.missing = 20
    world.controller.note_evicted(chain(*range(20)))
    world.turn("a", range(21))
    assert world.records("resume")[0]["action"] == "recompute"
