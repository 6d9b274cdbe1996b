"""Open pauses: kept or given up, until the next turn arrives or the session ends."""

from __future__ import annotations

from agentkv.events import EMPTY_TAG
from agentkv.pause_book import PauseBook
from agentkv.policy import Action, Decision
from agentkv.sessions import OpenPause, Pause, Session, SessionKey


def opened(book: PauseBook, name: str, started_s: float = 0.0) -> tuple[Session, Pause]:
    session = Session(key=SessionKey("", name), is_inferred=False)
    pause = Pause(1, turn=0, started_s=started_s, tag=EMPTY_TAG, context_tokens=10)
    session.pause = pause
    book.open(session, pause)
    return session, pause


def names(pairs: list[OpenPause]) -> list[str]:
    return [session.key.name for session, _ in pairs]


def test_a_pause_is_kept_until_it_is_given_up_and_may_come_back() -> None:
    book = PauseBook()
    session, pause = opened(book, "a")
    assert names(book.kept()) == ["a"] and not book.away()
    pause.is_fetched = True
    book.give_up(session, pause)
    assert names(book.away()) == ["a"] and not book.kept()
    assert pause.is_given_up and not pause.is_fetched, "there is something to bring back again"
    book.take_back(session)
    assert names(book.kept()) == ["a"] and not book.away() and not pause.is_given_up


def test_the_next_turn_closes_it_wherever_it_is() -> None:
    book = PauseBook()
    kept, _ = opened(book, "kept")
    away, pause = opened(book, "away")
    book.give_up(away, pause)
    for session in (kept, away):
        session.pause = None
        book.close(session)
        book.close(session)
    assert not book.kept() and not book.away()


def test_what_comes_back_after_the_pause_closed_is_no_open_pause() -> None:
    """The load was under way when the turn arrived."""
    book = PauseBook()
    session, pause = opened(book, "a")
    book.give_up(session, pause)
    session.pause = None
    book.take_back(session)
    assert not book.kept() and not book.away()


def test_nothing_is_left_of_a_closed_one() -> None:
    book = PauseBook()
    session, pause = opened(book, "away")
    pause.decision = Decision(Action.HOLD, "")
    pause.tool_done_s = 1.0
    book.note_done(session)
    book.give_up(session, pause)
    book.rob(session, 0.0)
    session.pause = None
    book.close(session)
    session.pause = pause
    assert book.take_robbed() == book.take_timed() == book.next_done(9) == book.next_away(9) == []
    assert len(book.table.rows()) == 0


def test_each_lease_ends_once_in_the_order_in_which_they_began() -> None:
    book = PauseBook()
    for number, name in enumerate("abc"):
        opened(book, name, started_s=float(number))
    assert names(list(book.take_expired(1.0))) == ["a", "b"]
    assert names(list(book.take_expired(1.0))) == []
    assert names(list(book.take_expired(9.0))) == ["c"]


def test_the_lease_of_a_closed_pause_ends_unheard_even_if_another_is_open() -> None:
    book = PauseBook()
    session, _ = opened(book, "a")
    session.pause = Pause(2, turn=1, started_s=5.0, tag=EMPTY_TAG, context_tokens=10)
    book.open(session, session.pause)
    assert list(book.take_expired(4.0)) == []
    assert [pause.pause_id for _, pause in book.take_expired(5.0)] == [2]


def test_what_dram_evicts_is_of_interest_only_while_the_pool_has_it_not() -> None:
    book = PauseBook()
    session, pause = opened(book, "a")
    book.rob(session, 0.0)
    assert book.take_robbed() == []
    book.give_up(session, pause)
    book.rob(session, 0.0)
    book.rob(session, 0.0)
    assert names(book.take_robbed()) == ["a"] and book.take_robbed() == []
    session.pause = None
    book.rob(session, 0.0)
    assert book.take_robbed() == []


def test_cleared_it_knows_nothing() -> None:
    book = PauseBook()
    opened(book, "kept")
    session, pause = opened(book, "away")
    book.give_up(session, pause)
    book.rob(session, 0.0)
    book.clear()
    assert not book.kept() and not book.away() and not book.take_robbed()
    assert list(book.take_expired(1e9)) == []
