"""Rows of open pauses: always those of the pauses that there are; queues in the order of keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentkv.events import EMPTY_TAG
from agentkv.pause_book import PauseBook
from agentkv.pause_table import RankedQueue
from agentkv.policy import Action, Decision
from agentkv.sessions import OpenPause, Pause, Session, SessionKey

STEPS = st.lists(
    st.tuples(st.sampled_from(("open", "decide", "give", "back", "close")), st.integers(0, 9)),
    max_size=60,
)


def make_pause(number: int) -> OpenPause:
    session = Session(key=SessionKey("", f"s{number}"), is_inferred=False)
    session.pause = Pause(number, 0, 0.0, EMPTY_TAG, context_tokens=10 + number)
    session.pause.decision = Decision(Action.HOLD, "")
    return session, session.pause


@given(steps=STEPS)
def test_rows_sums_and_places_are_those_of_a_walk(steps: list[tuple[str, int]]) -> None:
    book = PauseBook()
    known: dict[int, OpenPause] = {}
    for step, number in steps:
        session, pause = known.setdefault(number, make_pause(number))
        is_open = any(each is session for each, _ in (*book.kept(), *book.away()))
        if step == "open" and not is_open:
            pause.is_given_up = False
            book.open(session, pause)
            book.note(session, pause)
        elif step == "decide" and is_open:
            pause.decision = Decision((Action.HOLD, Action.SWAP)[number % 2], "")
            book.note(session, pause)
        elif step == "give" and is_open:
            book.give_up(session, pause)
        elif step == "back" and pause.is_given_up and is_open:
            book.take_back(session)
        elif step == "close":
            book.close(session)
    kept = book.kept()
    rows = book.table.rows()
    assert len(rows) == len(kept) + len(book.away())
    places = book.table.kept()
    assert sorted(rows["context_tokens"][places]) == sorted(p.context_tokens for _, p in kept)
    in_order = book.table.sorted(places, [np.zeros(len(places))])
    assert list(in_order) == kept, "in the order in which they came to be kept"
    held = [p.context_tokens for _, p in kept if p.decision and p.decision.action is Action.HOLD]
    assert book.held_tokens(besides=make_pause(1000)[0]) == sum(held)
    for session, pause in kept:
        is_held = pause.decision is not None and pause.decision.action is Action.HOLD
        own = pause.context_tokens if is_held else 0
        assert book.held_tokens(besides=session) == sum(held) - own


def test_a_row_that_took_the_place_of_another_is_still_found() -> None:
    book = PauseBook()
    a, b, c = (make_pause(number) for number in range(3))
    for each in (a, b, c):
        book.open(*each)
        book.note(*each)
    book.close(a[0])
    c[1].context_tokens = 99
    book.note(*c)
    assert sorted(book.table.rows()["context_tokens"]) == [11, 99]
    book.close(c[0])
    assert list(book.table.rows()["context_tokens"]) == [11]
    book.give_up(*b)
    assert not len(book.table.kept())


@given(
    keys=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 3))),
    later=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 3))),
    num_taken=st.integers(0, 5),
)
def test_a_queue_is_sorted_whatever_is_taken_and_put_in(
    keys: list[tuple[int, float]], later: list[tuple[int, float]], num_taken: int
) -> None:
    pauses = [make_pause(number) for number in range(len(keys) + len(later))]
    columns = [np.array([key[part] for key in keys], float) for part in (0, 1)]
    queue = RankedQueue(pauses[: len(keys)], np.arange(len(keys)), columns)
    expected = sorted((key, number, pauses[number]) for number, key in enumerate(keys))
    for _ in range(num_taken):
        assert queue.pop() == (expected.pop(0) if expected else None)
    for number, key in enumerate(later, start=len(keys)):
        queue.put((key, number, pauses[number]))
        expected.append((key, number, pauses[number]))
    expected.sort(key=lambda entry: entry[:2])
    assert list(queue) == [pair for *_, pair in expected]
    assert queue.first() == (expected[0] if expected else None)
    assert [queue.pop() for _ in expected] == expected and queue.pop() is None
