"""From a reply's id to its session: the newest few of each, and never more than that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentkv.reply_index import MAX_IDS, ReplyId, ReplyIndex

R = ("", "r")


def reply(number: int) -> ReplyId:
    return "", f"r{number}"


def test_an_id_leads_to_its_owner_until_that_is_forgotten() -> None:
    index: ReplyIndex[str] = ReplyIndex()
    index.note(reply(1), "a")
    index.note(reply(2), "b")
    assert (index.find(reply(1)), index.find(reply(2)), index.find(reply(3))) == ("a", "b", None)
    index.forget("a")
    index.forget("a")
    assert (index.find(reply(1)), index.find(reply(2))) == (None, "b")


def test_only_the_newest_ids_of_an_owner_are_known() -> None:
    index: ReplyIndex[str] = ReplyIndex()
    for number in range(MAX_IDS + 3):
        index.note(reply(number), "a")
    assert len(index) == MAX_IDS
    assert index.find(reply(2)) is None and index.find(reply(3)) == "a"


def test_several_samples_of_a_request_count_as_one() -> None:
    index: ReplyIndex[str] = ReplyIndex()
    for _ in range(100):
        index.note(reply(1), "a")
    index.note(reply(2), "a")
    assert index.find(reply(1)) == "a" and len(index) == 2


def test_an_id_used_by_two_belongs_to_the_last_who_used_it() -> None:
    index: ReplyIndex[str] = ReplyIndex()
    index.note(R, "a")
    index.note(R, "b")
    index.forget("a")
    assert index.find(R) == "b", "the first one's end takes nothing from the second"
    index.forget("b")
    assert index.find(R) is None and len(index) == 0


def test_an_id_goes_to_the_last_who_used_it_even_if_that_one_had_it_before() -> None:
    index: ReplyIndex[str] = ReplyIndex()
    for owner in "aba":
        index.note(R, owner)
    assert index.find(R) == "a"


def test_an_id_used_again_is_as_new_as_its_last_use() -> None:
    index: ReplyIndex[str] = ReplyIndex()
    for number in (0, 1, 0, *range(2, 2 + MAX_IDS - 2)):
        index.note(reply(number), "a")
    assert index.find(reply(0)) == "a"


@given(calls=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=80))
def test_no_order_of_calls_leaves_an_id_without_an_owner(calls: list[tuple[str, bool]]) -> None:
    index: ReplyIndex[str] = ReplyIndex()
    live: set[str] = set()
    for number, (owner, is_end) in enumerate(calls):
        if is_end:
            index.forget(owner)
            live.discard(owner)
        else:
            index.note(reply(number), owner)
            live.add(owner)
            assert index.find(reply(number)) == owner
        assert {index.find(reply(n)) for n in range(len(calls))} <= live | {None}
        assert len(index) <= MAX_IDS * len(live)


def test_ids_of_two_tenants_never_meet() -> None:
    index: ReplyIndex[str] = ReplyIndex()
    index.note(("red", "r"), "a")
    index.note(("blue", "r"), "b")
    assert (index.find(("red", "r")), index.find(("blue", "r"))) == ("a", "b")
    assert index.find(R) is None
    index.forget("b")
    assert index.find(("red", "r")) == "a"
