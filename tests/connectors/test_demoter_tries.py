"""Parking in parts goes on while it gets on, and no longer."""

from __future__ import annotations

from agentkv.connectors.demoter import _TRY_FOR_S, _Tries
from agentkv.events import EMPTY_TAG
from agentkv.sessions import Pause


def a_pause() -> Pause:
    return Pause(1, 0, 0.0, EMPTY_TAG, context_tokens=1600)


def test_whoever_gets_on_may_go_on_for_as_long_as_it_takes() -> None:
    tries, pause = _Tries(), a_pause()
    steps = range(1, 50)
    assert all(tries.is_worth_another(pause, 10 * i, 0.9 * _TRY_FOR_S * i) for i in steps)


def test_a_tier_that_writes_each_part_in_place_of_another_is_given_up() -> None:
    tries, pause = _Tries(), a_pause()
    held = [40, 60, 64, 60, 64, 62]
    found = [tries.is_worth_another(pause, num, 0.6 * _TRY_FOR_S * i) for i, num in enumerate(held)]
    assert found == [True, True, True, True, False, False]
    tries.forget(pause)
    assert tries.is_worth_another(pause, 1, 100.0)
