"""Sessions of which nothing is known: worth less while they do not come back, and no longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.events import TurnTag
from agentkv.newcomers import Newcomers
from tests.test_controller import World


def test_one_shots_are_worth_ever_less_and_those_that_come_back_are_not() -> None:
    newcomers = Newcomers()
    shares = []
    for _ in range(100):
        newcomers.begin()
        shares.append(newcomers.share_back)
    assert shares == sorted(shares, reverse=True) and shares[-1] < 0.01
    for _ in range(2000):
        newcomers.begin()
        newcomers.note_back()
    assert newcomers.share_back > 0.9


@given(st.lists(st.sampled_from(["begin", "forget", "note_back"]), max_size=60))
def test_no_order_of_calls_makes_it_more_than_a_share(calls: list[str]) -> None:
    newcomers = Newcomers()
    for call in calls:
        getattr(newcomers, call)()
        assert 0 < newcomers.share_back < 1


def worth(world: World) -> float:
    """Of keeping the KV of the newest session."""
    session = next(reversed(world.controller.sessions))
    assert session.pause is not None and session.pause.decision is not None
    value = session.pause.decision.keep_value
    assert value is not None
    return value


def one_shots(world: World, num: int) -> None:
    for number in range(num):
        world.turn(None, range(1000 + 10 * number, 1005 + 10 * number))


def test_a_burst_of_one_shots_is_worth_less_than_whatever_is_known() -> None:
    world = World()
    one_shots(world, 50)
    shot = worth(world)
    world.turn("named", range(5))
    named = worth(world)
    world.turn(None, range(20, 25), TurnTag(tool="no such tool"))
    tagged = worth(world)
    world.turn(None, range(40, 45), TurnTag(expected_wait_s=2.0))
    stated = worth(world)
    world.turn(None, range(30, 35))
    world.turn(None, range(30, 36))
    second_turn = worth(world)
    assert min(named, tagged, stated, second_turn) > 10 * shot


@pytest.mark.parametrize("is_back", [True, False])
def test_where_such_sessions_come_back_they_are_worth_as_much(is_back: bool) -> None:
    world = World()
    for number in range(60):
        start = 1000 + 10 * number
        world.turn(None, range(start, start + 5))
        if is_back:
            world.turn(None, range(start, start + 6))
    world.turn(None, range(5))
    unknown = worth(world)
    world.turn("named", range(20, 25))
    assert (unknown > 0.9 * worth(world)) is is_back


def test_what_is_said_of_a_pause_later_counts() -> None:
    """The reply of an agent is read after its turn has ended."""
    world = World()
    one_shots(world, 30)
    before = worth(world)
    share = world.controller.appraiser.newcomers.share_back
    session = next(reversed(world.controller.sessions))
    world.controller.retag(session, TurnTag(tool="bash"))
    assert worth(world) > 5 * before
    assert world.controller.appraiser.newcomers.share_back > share


def test_a_reset_tells_nothing_of_who_would_have_come_back() -> None:
    world = World()
    newcomers = world.controller.appraiser.newcomers
    before = newcomers.share_back
    one_shots(world, 50)
    assert newcomers.share_back < before / 2
    world.controller.clear()
    assert newcomers.share_back == before
