"""Of thousands of pauses only some are looked at each time: the scheduler's time is dear."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from agentkv import portfolio
from agentkv.appraisal import Location
from agentkv.events import TurnTag
from agentkv.pause_book import PauseBook
from agentkv.policy.ranking_many import Column, Rows
from tests.test_controller import World
from tests.test_portfolio import LATE, SOON, _names, _paused

RANKING_S = 1e-5
"""What ranking takes for each pause here."""


class Slow:
    """A world in which time passes while pauses are ranked; `ranked`: how many each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_pauses: int) -> None:
        self.ranked: list[int] = []
        self.world = World(policy="expected_cost")
        for number in range(num_pauses):
            _paused(self.world, f"s{number}", SOON if number % 2 else LATE, 20 * (number + 1))
        self.world.controller.appraiser.observe_demand(wanted_blocks=30, worthless_blocks=0)
        real = portfolio.give_up_columns

        def slowly(rows: Rows, now_s: float, **more: bool) -> tuple[Column, Column, Column]:
            self.ranked.append(len(rows))
            self.world.clock.advance(RANKING_S * len(rows))
            return real(rows, now_s, **more)

        monkeypatch.setattr(portfolio, "give_up_columns", slowly)

    def order(self) -> list[str]:
        return [session.key.name for session, _ in self.world.controller.portfolio.order()]

    def victims(self) -> list[str]:
        return _names(list(self.world.controller.victims()))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch, 100)


def test_they_are_ranked_in_a_hundredth_of_the_time(slow: Slow) -> None:
    for num_taken in range(5):
        assert len(slow.order()) == 100 - num_taken
        next(slow.world.controller.victims())
        slow.world.clock.advance(0.015)
    assert slow.ranked == [100], "not again for a hundred times as long as it took"
    slow.world.clock.advance(0.05)
    slow.order()
    assert len(slow.ranked) == 2


def test_a_moment_that_somebody_else_took_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{__name__}.RANKING_S", 1.0)
    slow = Slow(monkeypatch, 4)
    slow.order()
    slow.world.clock.advance(0.005)
    slow.order()
    assert slow.ranked == [4, 4]


def test_who_began_since_then_goes_after_all_others_and_who_returned_does_not(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio, "_RANKING_SHARE", 1e-4)
    monkeypatch.setattr(portfolio, "_MAX_RANKING_S", 1.0)
    slow.order()
    _paused(slow.world, "new", LATE, 10_000)
    slow.world.turn("s7", range(160, 171), TurnTag(last_turn=True))
    assert "new" not in slow.order() and "s7" not in slow.order()
    victims = slow.victims()
    assert len(set(victims)) == len(victims) == 100
    assert victims[-1] == "new" and "s7" not in victims
    assert slow.victims() == []


def test_after_a_reset_nobody_is_left(slow: Slow) -> None:
    slow.order()
    slow.world.controller.clear()
    assert slow.order() == slow.victims() == []


def test_who_was_decided_anew_has_another_place_from_then_on(slow: Slow) -> None:
    first = slow.order()[0]
    (session,) = [s for s in slow.world.controller.sessions if s.key.name == first]
    assert session.pause is not None
    session.pause.tag = TurnTag(tool="bash", expected_wait_s=0.1)
    assert _names([next(slow.world.controller.victims())]) != [first]
    order = slow.order()
    assert first in order[40:]
    queue = slow.world.controller.portfolio._ranking.queue
    keys = [key for key, *_ in iter(queue.pop, None)]
    assert len(keys) > 90 and all(key <= later for key, later in pairwise(keys))


def test_who_lacks_blocks_waits_for_few_second_thoughts(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All turn out to be worth more than they seemed."""
    for session in slow.world.controller.sessions:
        assert session.pause is not None
        session.pause.tag = TurnTag(tool="bash", expected_wait_s=0.1)
    decided: list[str] = []
    slow.world.controller.on_decided = lambda session, pause: decided.append(session.key.name)
    first = next(slow.world.controller.victims())
    assert len(decided) == 17 and decided[-1] == first.session.key.name


def test_a_return_looks_at_few_and_passes_few_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow(monkeypatch, 400)
    (besides, *_) = slow.world.controller.sessions
    num_located = num_passed = 0

    def locate(refs: object) -> Location:
        nonlocal num_located
        num_located += 1
        return Location(1)

    real = PauseBook.is_kept

    def is_kept(*args: object) -> bool:
        nonlocal num_passed
        num_passed += 1
        return real(*args)  # type: ignore[arg-type]

    owner = slow.world.controller.portfolio
    monkeypatch.setattr(owner, "_deps", dataclasses.replace(owner._deps, locate=locate))
    monkeypatch.setattr(PauseBook, "is_kept", is_kept)
    assert list(slow.world.controller.portfolio.later_returns(0.0, besides=besides)) == []
    assert num_located == 32
    num_passed = 0
    assert list(slow.world.controller.portfolio.later_returns(1e9, besides=besides)) == []
    assert num_passed == 256
