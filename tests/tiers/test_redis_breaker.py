"""When the breaker opens, and when it trusts a server again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from kit.redis_server import wait_until

from agentkv.clock import ManualClock
from agentkv.tiers.redis.breaker import Breaker, Pause
from agentkv.tiers.redis.replies import Trouble

_TROUBLE = Trouble("timeout", "it is late")

_Opens = Callable[[Callable[[], Trouble | None]], Breaker]


@pytest.fixture
def breaker_with() -> Iterator[_Opens]:
    made: list[Breaker] = []

    def make(check: Callable[[], Trouble | None]) -> Breaker:
        made.append(Breaker("here", check, first_retry_s=0.01, max_retry_s=0.05))
        return made[-1]

    yield make
    for breaker in made:
        breaker.close(5)


def test_three_failures_in_a_row_open_it(breaker_with: _Opens) -> None:
    breaker = breaker_with(lambda: _TROUBLE)
    for _ in range(3):
        breaker.note_failure(_TROUBLE, at_once=False, is_data=True)
        breaker.note_failure(_TROUBLE, at_once=False, is_data=True)
        breaker.note_success(is_data=True)
    assert not breaker.is_open
    for _ in range(3):
        breaker.note_success(is_data=False)  # Answers to questions do not make up for lost data.
        breaker.note_failure(_TROUBLE, at_once=False, is_data=True)
    assert breaker.is_open
    assert (breaker.state.reason, breaker.state.num_openings) == ("timeout", 1)


def test_it_closes_when_the_server_is_well_and_its_thread_ends(breaker_with: _Opens) -> None:
    troubles: list[Trouble | None] = [_TROUBLE, Trouble("wrong_password", "no"), None]
    breaker = breaker_with(lambda: troubles.pop(0))
    breaker.note_failure(_TROUBLE, at_once=True)
    assert breaker.is_open
    wait_until(lambda: not breaker.is_open)
    assert troubles == []
    wait_until(lambda: not any(t.name == "agentkv-redis-retry" for t in threading.enumerate()))
    breaker.note_failure(_TROUBLE, at_once=False)
    assert not breaker.is_open


def test_trouble_during_a_check_is_not_overlooked(breaker_with: _Opens) -> None:
    """A clear that comes to be owed while the server is tried must keep the tier closed."""
    num_checks = 0

    def check() -> Trouble | None:
        nonlocal num_checks
        num_checks += 1
        if num_checks == 1:
            breaker.note_failure(Trouble("clear_failed", "owed"), at_once=True)
        return None

    breaker = breaker_with(check)
    breaker.note_failure(_TROUBLE, at_once=True)
    wait_until(lambda: not breaker.is_open)
    assert num_checks == 2


def test_after_its_end_it_does_not_open(breaker_with: _Opens) -> None:
    breaker = breaker_with(lambda: _TROUBLE)
    breaker.close(1)
    breaker.note_failure(_TROUBLE, at_once=True)
    assert not breaker.is_open


def test_pauses_grow_until_something_succeeds() -> None:
    clock = ManualClock()
    pause = Pause(clock, first_s=1.0, max_s=3.0)
    lengths = []
    for _ in range(4):
        pause.begin()
        pause.begin()  # Once more while it is on changes nothing.
        start_s = clock.monotonic_s()
        while pause.is_on:
            clock.advance(0.5)
        lengths.append(clock.monotonic_s() - start_s)
    assert lengths == [1.0, 2.0, 3.0, 3.0]
    pause.begin()
    pause.end()
    assert not pause.is_on
    pause.begin()
    clock.advance(1.0)
    assert not pause.is_on
