"""When KV is brought back, whose first, and what is said of it afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv import metrics
from agentkv.cost_model import prefetch_start_s
from agentkv.events import EMPTY_TAG
from agentkv.metrics import Recorder
from agentkv.predict import HierarchicalWaitPredictor
from agentkv.prefetch import AwayPause, PrefetchBook, Rests, Trigger, Wanted, choose
from agentkv.sessions import Pause, Session, SessionKey, Turn


def session(name: str, pause_id: int = 1) -> Session:
    made = Session(key=SessionKey("", name), is_inferred=False)
    made.pause = Pause(pause_id, turn=0, started_s=0.0, tag=EMPTY_TAG, context_tokens=100)
    return made


def away(name: str, **fields: Any) -> AwayPause:
    known = {
        "num_blocks": 10,
        "start_in_s": 50.0,
        "returns_in_s": 60.0,
        "is_tool_done": False,
        "was_brought": False,
        **fields,
    }
    return AwayPause(session=session(name), **known)


def chosen(*pauses: AwayPause, room: int = 0) -> list[tuple[str, Trigger]]:
    return [(each.session.key.name, each.trigger) for each in choose(pauses, room_blocks=room)]


# --- choice ---


def test_whose_tool_is_done_comes_back_at_once_whatever_was_predicted() -> None:
    assert chosen(away("a", is_tool_done=True)) == [("a", Trigger.RESUME)]


def test_whose_time_has_come_comes_back_without_room() -> None:
    assert chosen(away("a", start_in_s=0.0)) == [("a", Trigger.PREDICTED)]
    assert chosen(away("a", start_in_s=0.01)) == []


def test_idle_room_is_filled_by_whoever_returns_first_as_far_as_it_goes() -> None:
    pauses = [away("late", returns_in_s=90), away("soon", returns_in_s=60), away("next")]
    assert chosen(*pauses, room=19) == [("soon", Trigger.HEADROOM)]
    assert chosen(*pauses, room=20) == [("soon", Trigger.HEADROOM), ("next", Trigger.HEADROOM)]


def test_the_done_go_before_the_due_and_both_before_idle_room() -> None:
    pauses = [
        away("idle", returns_in_s=1),
        away("due", start_in_s=-5, returns_in_s=2),
        away("overdue", start_in_s=-9, returns_in_s=-3),
        away("done", is_tool_done=True, returns_in_s=500),
        away("done first", is_tool_done=True, returns_in_s=400),
    ]
    names = [name for name, _ in chosen(*pauses, room=10)]
    assert names == ["done first", "done", "overdue", "due", "idle"]


def test_what_was_brought_and_given_up_again_waits_for_its_tool() -> None:
    assert chosen(away("a", was_brought=True, start_in_s=-1), room=100) == []
    assert chosen(away("a", was_brought=True, is_tool_done=True)) == [("a", Trigger.RESUME)]


def test_nothing_is_chosen_from_nothing() -> None:
    assert choose([], room_blocks=100) == []


PAUSES = st.lists(
    st.builds(
        away,
        st.text("abc", min_size=1, max_size=4),
        num_blocks=st.integers(0, 30),
        start_in_s=st.floats(-100, 100),
        returns_in_s=st.floats(-100, 100),
        is_tool_done=st.booleans(),
        was_brought=st.booleans(),
    )
)


@given(pauses=PAUSES, room=st.integers(0, 50))
def test_no_choice_takes_more_idle_room_than_there_is_or_anybody_twice(
    pauses: list[AwayPause], room: int
) -> None:
    wanted = choose(pauses, room_blocks=room)
    assert len({id(each.session) for each in wanted}) == len(wanted)
    blocks = {id(pause.session): pause.num_blocks for pause in pauses}
    idle = [each for each in wanted if each.trigger is Trigger.HEADROOM]
    assert sum(blocks[id(each.session)] for each in idle) <= room
    assert wanted[len(wanted) - len(idle) :] == idle


# --- time ---


def test_a_load_of_3_s_for_a_wait_of_10_s_give_or_take_2_starts_between_5_and_8_s() -> None:
    """A87: the load is over before the tool returns, and begins no earlier than it has to."""
    early_s = 10.0 - 2.0  # nine waits of ten last longer
    assert 5.0 <= prefetch_start_s(early_s, 3.0) <= 7.0
    predictor = HierarchicalWaitPredictor()
    stated = predictor.estimate("bash", "make", expected_wait_s=10.0)
    start_s = prefetch_start_s(stated.p10_s, 3.0)
    assert start_s + 3.0 < stated.p50_s
    for age_s, is_due in ((start_s - 0.1, False), (start_s + 0.1, True)):
        pause = away("a", start_in_s=start_s - age_s, returns_in_s=10.0 - age_s)
        assert bool(chosen(pause)) is is_due


def test_learnt_waits_of_8_to_12_s_start_a_load_of_3_s_between_5_and_8_s() -> None:
    predictor = HierarchicalWaitPredictor()
    for i in range(400):
        predictor.observe("slowtool", None, 8.0 + 4.0 * (i % 41) / 40)
    start_s = prefetch_start_s(predictor.estimate("slowtool", None).p10_s, 3.0)
    assert 4.5 <= start_s <= 8.0 and start_s + 3.0 <= 10.0


# --- outcomes ---


class Book:
    """A book, one session, and what it counted."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.book = PrefetchBook(self.recorder)
        self.session = session("a")

    def start(self, start_tokens: int = 16, kv_bytes: float = 1000.0) -> None:
        self.book.start(self.session, Trigger.RESUME, start_tokens, kv_bytes)

    def finish(self, now_s: float, *, is_good: bool = True) -> None:
        self.book.finish(self.session.key, now_s, is_good=is_good)

    def resume(self, arrived_s: float, *, found: int, known: int = 96) -> None:
        turn = Turn("r", self.session, 1, arrived_s, 112, EMPTY_TAG, known_tokens=known)
        self.session.pause = None
        self.book.resumed(turn, found)

    @property
    def outcomes(self) -> dict[str, float]:
        counters = self.recorder.counters.items()
        return {
            labels[0]: n for (metric, labels), n in counters if metric is metrics.PREFETCH_OUTCOMES
        }

    @property
    def early(self) -> float:
        return self.recorder.counters.get((metrics.PREFETCH_EARLY, ()), 0)


def test_a_prefetch_that_the_turn_finds_is_useful_and_its_earliness_is_counted() -> None:
    book = Book()
    book.start()
    book.finish(10.0)
    book.resume(14.0, found=96)
    assert book.outcomes == {"useful": 1} and book.early == 4000.0


@pytest.mark.parametrize("done_s", [None, 14.5])
def test_a_turn_that_comes_before_the_load_is_done_makes_it_late(done_s: float | None) -> None:
    book = Book()
    book.start()
    if done_s is not None:
        book.finish(done_s)
    book.resume(14.0, found=96)
    assert book.outcomes == {"late": 1} and book.early == 0


@pytest.mark.parametrize(("known", "outcome"), [(96, "lost"), (16, "useless")])
def test_a_turn_that_finds_nothing_of_it(known: int, outcome: str) -> None:
    """Lost: it would have needed it. Useless: its prompt was another."""
    book = Book()
    book.start()
    book.finish(10.0)
    book.resume(14.0, found=16, known=known)
    assert book.outcomes == {outcome: 1}


def test_a_failed_load_brought_nothing_and_may_be_tried_again() -> None:
    book = Book()
    book.start()
    book.finish(10.0, is_good=False)
    assert not book.book.was_brought(book.session)
    book.resume(14.0, found=0)
    assert book.outcomes == {"failed": 1}


def test_loads_in_parts_have_one_outcome_together() -> None:
    book = Book()
    for start_tokens, done_s in ((16, 10.0), (48, 12.0)):
        book.start(start_tokens, 500.0)
        book.finish(done_s)
    book.resume(14.0, found=96)
    assert book.outcomes == {"useful": 1} and book.early == 2 * 1000.0
    assert book.recorder.counters[metrics.PREFETCHES, ("resume",)] == 2


def test_a_later_part_that_is_not_there_yet_makes_it_late() -> None:
    book = Book()
    book.start(16)
    book.finish(10.0)
    book.start(48)
    book.resume(14.0, found=48)
    assert book.outcomes == {"late": 1}


def test_a_turn_without_a_prefetch_has_no_outcome() -> None:
    book = Book()
    book.resume(14.0, found=96)
    assert book.outcomes == {}


def test_only_the_pause_it_was_for_counts_as_brought() -> None:
    book = Book()
    book.start()
    assert book.book.was_brought(book.session)
    book.session.pause = None
    assert not book.book.was_brought(book.session)
    book.session.pause = session("a", pause_id=2).pause
    assert not book.book.was_brought(book.session)


def test_what_ended_sessions_were_brought_was_useless_and_is_forgotten() -> None:
    book = Book()
    book.start()
    other = session("b")
    book.book.start(other, Trigger.HEADROOM, 0, 1.0)
    book.book.drop_ended(lambda key: key == other.key)
    assert book.outcomes == {"useless": 1}
    assert book.book.was_brought(other) and not book.book.was_brought(book.session)
    book.finish(11.0)  # its load was still under way


def test_after_a_reset_all_is_lost() -> None:
    book = Book()
    book.start()
    book.book.clear()
    book.finish(12.0)
    book.resume(14.0, found=0)
    assert book.outcomes == {"lost": 1}


@given(
    steps=st.lists(
        st.sampled_from(["start", "good", "bad", "resume", "drop", "clear"]), max_size=12
    )
)
def test_no_order_of_calls_gives_one_load_two_outcomes(steps: list[str]) -> None:
    book = Book()
    for number, step in enumerate(steps):
        if step == "start":
            book.session.pause = book.session.pause or session("a", number).pause
            book.start()
        elif step in ("good", "bad"):
            had_one = bool(book.book._brought)
            if had_one:
                book.finish(float(number), is_good=step == "good")
        elif step == "resume":
            book.resume(float(number), found=number * 16)
        elif step == "drop":
            book.book.drop_ended(lambda key: False)
        else:
            book.book.clear()
    num_started = sum(n for (m, _), n in book.recorder.counters.items() if m is metrics.PREFETCHES)
    assert sum(book.outcomes.values()) + len(book.book._brought) <= num_started
    assert book.early >= 0


def test_with_dram_short_a_prediction_displaces_nobody_but_a_finished_tool_does() -> None:
    due = away("due", start_in_s=-1.0)
    done = away("done", is_tool_done=True)
    names = [
        (wanted.session.key.name, wanted.trigger)
        for wanted in choose([due, done], room_blocks=0, is_dram_short=True)
    ]
    assert names == [("done", Trigger.RESUME)]


@pytest.mark.parametrize(("trigger", "rest_s"), [(Trigger.RESUME, 0.1), (Trigger.PREDICTED, 1.0)])
def test_who_found_no_room_rests_until_there_is_news(trigger: Trigger, rest_s: float) -> None:
    waiting, other = session("waiting"), session("other")
    pause, rests = waiting.pause, Rests()
    assert pause is not None and other.pause is not None
    pause.tool_done_s = 5.0 if trigger is Trigger.RESUME else None
    rests.begin(Wanted(waiting, trigger), 10.0)
    assert rests.hold_back(waiting, pause, 10.0 + 0.9 * rest_s)
    assert not rests.hold_back(waiting, pause, 10.0 + rest_s)
    assert not rests.hold_back(other, other.pause, 10.0)
    pause.tool_done_s = 10.01
    assert not rests.hold_back(waiting, pause, 10.02), "the client says: now"
    rests.begin(Wanted(waiting, Trigger.RESUME), 10.03)
    assert rests.hold_back(waiting, pause, 10.04), "that was tried, too"
    rests.clear()
    assert not rests.hold_back(waiting, pause, 10.04)
