"""The state machine of sessions: identity, pauses, forks, ends, bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.events import EMPTY_TAG, TurnTag
from agentkv.sessions import SessionKey, SessionState, SessionTracker, Turn
from tests.test_prefix_tree import chain

BLOCK = 16


class Driver:
    """A tracker with a clock that ticks once per call."""

    def __init__(self, **settings: int | bool) -> None:
        self.tracker = SessionTracker(tokens_per_hash=BLOCK, **settings)  # type: ignore[arg-type]
        self.now_s = 0.0

    def arrive(
        self,
        request_id: str,
        hashes: Sequence[bytes],
        name: str | None = None,
        *,
        scope: str = "",
        tag: TurnTag = EMPTY_TAG,
    ) -> Turn:
        self.now_s += 1
        return self.tracker.arrive(
            request_id,
            name=name,
            scope=scope,
            hashes=hashes,
            prompt_tokens=len(hashes) * BLOCK + 3,
            tag=tag,
            now_s=self.now_s,
        )

    def finish(self, request_id: str, hashes: Sequence[bytes]) -> Turn | None:
        self.now_s += 1
        turn = self.tracker.turn(request_id)
        if turn is not None:
            self.tracker.schedule(turn)
        return self.tracker.finish(
            request_id, hashes=hashes, num_tokens=len(hashes) * BLOCK + 5, now_s=self.now_s
        )

    def turn(
        self, request_id: str, hashes: Sequence[bytes], name: str | None = None, **kw: object
    ) -> Turn:
        self.arrive(request_id, hashes, name, **kw)  # type: ignore[arg-type]
        turn = self.finish(request_id, hashes)
        assert turn is not None
        return turn


def dead_hashes(driver: Driver) -> set[bytes]:
    return {ref[1] for ref in driver.tracker.take_dead()}


def lapsed_hashes(driver: Driver) -> set[bytes]:
    return {ref[1] for ref in driver.tracker.take_lapsed()}


def test_a_session_goes_through_its_states() -> None:
    driver = Driver()
    turn = driver.arrive("r1", chain(1, 2), "s")
    session = turn.session
    assert session.state is SessionState.RESUMING
    driver.tracker.schedule(turn)
    assert session.state is SessionState.RUNNING
    driver.finish("r1", chain(1, 2))
    assert session.state is SessionState.PAUSED and session.pause is not None
    again = driver.arrive("r2", chain(1, 2, 3), "s")
    assert again.session is session and session.state is SessionState.RESUMING
    assert again.closed_pause is not None and again.known_tokens == 2 * BLOCK


def test_the_last_turn_ends_the_session_and_frees_its_blocks() -> None:
    driver = Driver()
    driver.turn("r1", chain(1, 2), "s")
    driver.turn("r2", chain(1, 2, 3), "s", tag=TurnTag(last_turn=True))
    assert len(driver.tracker) == 0
    assert dead_hashes(driver) == set(chain(1, 2, 3))


def test_a_session_without_an_id_is_recognised_by_its_growing_prompt() -> None:
    driver = Driver()
    first = driver.turn("r1", chain(1, 2, 3))
    second = driver.turn("r2", chain(1, 2, 3, 4))
    assert second.session is first.session and second.number == 1


def test_a_retokenised_answer_still_continues_the_session() -> None:
    driver = Driver()
    driver.arrive("r1", chain(1, 2))
    first = driver.finish("r1", chain(1, 2, 30, 31))
    second = driver.arrive("r2", chain(1, 2, 40, 41, 42))
    assert first is not None and second.session is first.session
    assert second.known_tokens == 2 * BLOCK


def test_a_shared_system_prompt_does_not_join_two_sessions() -> None:
    driver = Driver()
    first = driver.turn("r1", chain(1, 2, 3, 4))
    second = driver.turn("r2", chain(1, 2, 8, 9))
    assert second.session is not first.session


def test_a_prompt_that_extends_a_running_turn_is_a_fork() -> None:
    driver = Driver()
    first = driver.turn("r1", chain(1, 2))
    driver.arrive("r2", chain(1, 2, 3))
    fork = driver.arrive("r3", chain(1, 2, 4))
    assert fork.session is not first.session


def test_nobody_gets_into_an_inferred_session_by_its_name() -> None:
    driver = Driver()
    first = driver.turn("r1", chain(1, 2, 3))
    name = first.session.key.name
    other = driver.turn("r2", chain(7, 8), name)
    assert other.session is not first.session and other.session.is_inferred
    assert first.session.state is SessionState.PAUSED
    assert driver.turn("r3", chain(1, 2, 3, 4)).session is first.session
    assert len(driver.tracker) == sum(driver.tracker.count_by_state().values()) == 2


def test_inference_can_be_switched_off() -> None:
    driver = Driver(infer_from_prefix=False)
    assert driver.turn("r1", chain(1)).session is not driver.turn("r2", chain(1, 2)).session


def test_one_session_may_run_two_turns_from_one_prefix() -> None:
    driver = Driver()
    driver.turn("r0", chain(1, 2), "s")
    left, right = driver.arrive("a", chain(1, 2, 3), "s"), driver.arrive("b", chain(1, 2, 4), "s")
    assert left.session is right.session
    driver.finish("a", chain(1, 2, 3))
    assert left.session.state is SessionState.RUNNING and left.session.pause is None
    driver.finish("b", chain(1, 2, 4))
    assert left.session.state is SessionState.PAUSED
    assert {ref[1] for ref in driver.tracker.all_blocks(left.session)} == {
        *chain(1, 2, 3),
        *chain(1, 2, 4),
    }
    assert dead_hashes(driver) == set()


def test_a_branch_the_session_turned_away_from_is_dead() -> None:
    driver = Driver()
    driver.turn("r1", chain(1, 2, 3, 4), "s")
    driver.turn("r2", chain(1, 2, 8), "s")
    assert dead_hashes(driver) == set(chain(1, 2, 3, 4)) - set(chain(1, 2))


def test_the_same_id_under_another_salt_is_another_session() -> None:
    driver = Driver()
    first = driver.turn("r1", chain(1, 2), "s", scope="x")
    second = driver.turn("r2", chain(5, 6), "s", scope="y")
    assert first.session is not second.session
    assert driver.tracker.get(SessionKey("x", "s")) is first.session


def test_finishing_twice_or_an_unknown_request_is_nothing() -> None:
    driver = Driver()
    driver.turn("r1", chain(1), "s")
    assert driver.finish("r1", chain(1)) is None
    assert driver.finish("never", chain(1)) is None


def test_a_turn_aborted_before_it_computed_anything_leaves_the_session_paused() -> None:
    driver = Driver()
    driver.turn("r1", chain(1, 2), "s")
    driver.arrive("r2", chain(1, 2, 3), "s")
    turn = driver.finish("r2", [])
    assert turn is not None and turn.session.state is SessionState.PAUSED
    assert driver.turn("r3", chain(1, 2, 3), "s").session is turn.session


def test_a_first_turn_that_computed_nothing_leaves_no_session() -> None:
    driver = Driver()
    driver.arrive("r1", chain(1, 2), "s")
    driver.finish("r1", [])
    assert len(driver.tracker) == 0


def test_what_a_turn_computed_after_its_session_ended_is_dead() -> None:
    driver = Driver()
    driver.turn("r1", chain(1), "s")
    turn = driver.arrive("r2", chain(1, 2), "s")
    driver.tracker.end(turn.session)
    assert dead_hashes(driver) == set(chain(1))
    driver.finish("r2", chain(1, 2))
    assert dead_hashes(driver) == set(chain(1, 2))


def test_abandoned_sessions_end() -> None:
    driver = Driver()
    old = driver.turn("r1", chain(1), "old").session
    driver.turn("r2", chain(2), "new")
    pause = old.pause
    assert driver.tracker.end_abandoned(idle_since_s=old.last_active_s + 0.5) == [(old, pause)]
    assert len(driver.tracker) == 1 and lapsed_hashes(driver) == set(chain(1))


def test_a_running_session_is_never_abandoned_nor_forgotten() -> None:
    driver = Driver(max_sessions=1)
    running = driver.arrive("r1", chain(1), "running").session
    driver.turn("r2", chain(2), "other")
    driver.turn("r3", chain(3), "another")
    driver.tracker.end_abandoned(idle_since_s=driver.now_s + 1)
    assert driver.tracker.get(running.key) is running


@pytest.mark.parametrize("count", [100_000])
def test_memory_stays_bounded_over_many_sessions(count: int) -> None:
    driver = Driver(max_sessions=1000)
    for number in range(count // 10):
        driver.turn(f"r{number}", chain(number), f"s{number}")
        driver.tracker.take_dead()
    assert len(driver.tracker) == 1000
    assert len(driver.tracker.tree) == 1000
    assert driver.tracker.get(SessionKey("", "s0")) is None


def test_clearing_forgets_blocks_but_not_running_turns() -> None:
    driver = Driver()
    driver.turn("r1", chain(1), "idle")
    turn = driver.arrive("r2", chain(2), "busy")
    driver.tracker.clear()
    assert len(driver.tracker) == 1 and len(driver.tracker.tree) == 0
    assert driver.finish("r2", chain(2)) is turn
    assert turn.session.state is SessionState.PAUSED


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "finish", "end", "abandon", "clear"]),
        st.integers(0, 3),
        st.lists(st.integers(0, 1), min_size=1, max_size=4),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_any_order_of_events_keeps_the_books_straight(
    events: list[tuple[str, int, list[int]]],
) -> None:
    driver = Driver(max_sessions=3)
    open_requests: dict[str, list[bytes]] = {}
    for number, (kind, which, tokens) in enumerate(events):
        if kind == "arrive":
            hashes = chain(*tokens)
            open_requests[f"r{number}"] = hashes
            driver.arrive(f"r{number}", hashes, f"s{which}" if which else None)
        elif kind == "finish" and open_requests:
            request_id = list(open_requests)[which % len(open_requests)]
            hashes = open_requests.pop(request_id)
            driver.finish(request_id, hashes[: len(hashes) - which % 2])
        elif kind == "end":
            session = driver.tracker.get(SessionKey("", f"s{which}"))
            if session is not None:
                driver.tracker.end(session)
        elif kind == "abandon":
            driver.tracker.end_abandoned(idle_since_s=driver.now_s - which)
        elif kind == "clear":
            driver.tracker.clear()
        assert_books(driver)
    for request_id, hashes in open_requests.items():
        driver.finish(request_id, hashes)
    for session in list(driver.tracker):
        driver.tracker.end(session)
    assert len(driver.tracker) == 0 and len(driver.tracker.tree) == 0


def assert_books(driver: Driver) -> None:
    known: set[bytes] = set()
    states = Counter(session.state for session in driver.tracker)
    assert Counter(driver.tracker.count_by_state()) == states
    for session in driver.tracker:
        assert (session.pause is not None) == (session.state is SessionState.PAUSED)
        known |= {ref[1] for ref in driver.tracker.all_blocks(session)}
    # A block is in the tree exactly as long as some session has it.
    assert len(driver.tracker.tree) == len(known)
