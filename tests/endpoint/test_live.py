"""GET /v1/agentkv/live: one answer for those who watch, and no idle engine woken for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from agentkv.config import resolve_extra_config
from agentkv.connectors.endpoint.activity import Activity
from agentkv.connectors.endpoint.last_answers import MAX_AGE_S, SETTLE_S, Answer, LastAnswers
from agentkv.connectors.endpoint.tiers import Tiers, tier_sizes
from agentkv.signals import ControlMessage, ControlReply

from .builders import FakeEngine, Served, session_row
from .conftest import Serve

RECORD = {"kind": "pause", "t": 10.0, "session_id": "mine", "pause_id": 1, "action": "hold"}


class Watching:
    """Engines that answer with these records and sessions; `asked` are the questions."""

    def __init__(self, *records: dict[str, Any], sessions: tuple[str, ...] = ("mine",)) -> None:
        self.records = records
        self.sessions = sessions
        self.asked: list[ControlMessage] = []
        self.state: dict[str, Any] = {"pool_blocks": 8, "free_blocks": 3}

    def __call__(self, rank: int, message: ControlMessage) -> ControlReply:
        if message.ledger is not None:
            self.asked.append(message)
        return ControlReply(
            id=message.id,
            sessions=tuple(map(session_row, self.sessions)),
            ledger=self.records,
            state=self.state,
        )


def engine(watching: Watching, **fields: Any) -> FakeEngine:
    return FakeEngine(answer=watching, **fields)


def settle(served: Served) -> None:
    """As if the last request had been a while ago."""
    activity = served.app.state.agentkv.activity
    activity.begin()
    activity.end(time.monotonic() - SETTLE_S - 1)


async def test_all_comes_with_one_question(serve: Serve) -> None:
    watching = Watching(RECORD)
    served = await serve(engine(watching))
    before_s = time.time()
    live = (await served.get("live?since=3")).json()
    [asked] = watching.asked
    assert asked.wants_state and asked.ledger is not None and asked.ledger.since_s == 3
    assert live["engines"][0]["free_blocks"] == 3 and live["engines"][0]["tiers"]
    assert [each["session_id"] for each in live["sessions"]] == ["mine"]
    assert live["records"] == [RECORD] and not live["is_cut"]
    assert before_s <= live["as_of_s"] <= live["now_s"] and live["started_s"] <= live["now_s"]
    assert live["endpoint"]["requests_watched"] == 0


async def test_while_nothing_happens_no_engine_is_asked_again(serve: Serve) -> None:
    watching = Watching(RECORD)
    served = await serve(engine(watching))
    first = (await served.get("live")).json()
    again = (await served.get("live?since=9")).json()
    later = (await served.get("live?since=10")).json()
    assert len(watching.asked) == 1
    assert again["records"] == [RECORD] and later["records"] == []
    assert again["as_of_s"] == first["as_of_s"] and again["now_s"] >= first["now_s"]


async def test_a_request_makes_the_engine_worth_asking(serve: Serve) -> None:
    watching = Watching(RECORD)
    served = await serve(engine(watching))
    await served.get("live")
    await served.chat()
    await served.get("live")
    await served.get("live")  # What the request set off may still go on.
    assert len(watching.asked) == 3
    settle(served)
    await served.get("live")
    assert len(watching.asked) == 3


async def test_what_the_engine_says_unasked_makes_it_worth_asking(serve: Serve) -> None:
    from agentkv.connectors.endpoint import mailbox

    watching = Watching(RECORD)
    served = await serve(engine(watching))
    await served.get("live")
    mailbox.deliver(ControlReply(id=""), 0)
    await served.get("live")
    assert len(watching.asked) == 2


async def test_more_than_was_asked_for_is_asked_for(serve: Serve) -> None:
    watching = Watching(RECORD)
    served = await serve(engine(watching))
    for query in ("since=5&limit=10", "since=5&limit=20", "since=4&limit=20", "since=6&limit=2"):
        await served.get(f"live?{query}")
    assert len(watching.asked) == 3
    await served.get("live?since=6", **{"X-Cache-Salt": "red"})
    assert len(watching.asked) == 4


async def test_only_the_callers_sessions_and_records_are_told(serve: Serve) -> None:
    theirs = {**RECORD, "session_id": "theirs"}
    watching = Watching(theirs, RECORD, sessions=("theirs", "mine"))
    served = await serve(engine(watching), "--api-key", "key-a", "key-b")
    await served.chat(key="key-a", **{"X-Session-ID": "mine"})
    await served.chat(key="key-b", **{"X-Session-ID": "theirs"})
    for key, name in (("key-a", "mine"), ("key-b", "theirs")):
        live = (await served.get("live", key)).json()
        assert [each["session_id"] for each in live["sessions"]] == [name]
        assert [each["session_id"] for each in live["records"]] == [name]
    assert (await served.get("live")).status_code == 401


async def test_records_of_several_engines_come_in_order(serve: Serve) -> None:
    def answer(rank: int, message: ControlMessage) -> ControlReply:
        records = ({**RECORD, "t": 10.0 + rank}, {**RECORD, "t": 20.0 - rank})
        return ControlReply(id=message.id, ledger=records, sessions=(), state={})

    served = await serve(FakeEngine(num_ranks=2, answer=answer))
    live = (await served.get("live")).json()
    assert [each["t"] for each in live["records"]] == [10.0, 11.0, 19.0, 20.0]
    assert [each["rank"] for each in live["engines"]] == [0, 1]


@pytest.mark.parametrize("query", ["since=-1", "since=nan", "since=x", "limit=0", "limit=1001"])
async def test_a_wrong_question_is_refused(served: Served, query: str) -> None:
    assert (await served.get(f"live?{query}")).status_code == 400
    assert served.engine.sent == []


async def test_a_silent_engine_is_an_error_and_is_asked_again(serve: Serve) -> None:
    served = await serve(FakeEngine(is_silent=True))
    served.app.state.agentkv.link._num_unheard = 99
    assert (await served.get("live")).status_code == 503
    served.engine.is_silent = False
    served.app.state.agentkv.link._num_unheard = 0
    assert (await served.get("live")).status_code == 200


def answer(since_s: float = 0.0, limit: int = 10, asked_s: float = 100.0) -> Answer:
    return Answer((), since_s, limit, asked_s, as_of_s=asked_s, num_unasked=0)


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({}, True),
        ({"now_s": 100 + MAX_AGE_S}, False),
        ({"active_s": 100 - SETTLE_S}, False),
        ({"num_unasked": 1}, False),
        ({"since_s": -1}, False),
        ({"limit": 11}, False),
        ({"limit": 9}, True),
    ],
)
def test_an_answer_holds_until_something_may_have_happened(
    changes: dict[str, Any], is_found: bool
) -> None:
    last = LastAnswers()
    last.keep("", answer())
    asked = {"since_s": 0.0, "limit": 10, "now_s": 101.0, "active_s": 90.0, "num_unasked": 0}
    assert (last.find("", **{**asked, **changes}) is not None) is is_found
    assert last.find("other", **asked) is None


def test_two_who_ask_differently_do_not_take_each_others_answer() -> None:
    last = LastAnswers()
    last.keep("", answer(since_s=5.0, limit=100))
    last.keep("", answer(since_s=1e9, limit=1000))
    asked = {"now_s": 101.0, "active_s": 0.0, "num_unasked": 0}
    assert last.find("", since_s=6.0, limit=100, **asked)
    assert last.find("", since_s=1e9, limit=1000, **asked)


def test_of_many_scopes_the_last_ones_are_kept() -> None:
    last = LastAnswers()
    for number in range(100):
        last.keep(str(number), answer())
    asked = {"since_s": 0.0, "limit": 10, "now_s": 101.0, "active_s": 0.0, "num_unasked": 0}
    assert last.find("99", **asked) and not last.find("0", **asked)


def test_a_request_that_is_being_answered_is_activity_now() -> None:
    activity = Activity()
    assert activity.last_s(5.0) == float("-inf")
    activity.begin()
    activity.begin()
    activity.end(6.0)
    assert activity.last_s(7.0) == 7.0
    activity.end(8.0)
    assert activity.last_s(9.0) == 8.0


def test_tiers_show_what_is_set_up_and_what_the_engine_sent() -> None:
    registry = CollectorRegistry()
    labels = ("model_name", "engine", "tier")
    used = Gauge("agentkv:tier_bytes", "", labels, registry=registry)
    used.labels("m", "0", "dram").set(5)
    used.labels("m", "1", "dram").set(7)
    works = Gauge("agentkv:tier_available", "", labels, registry=registry)
    works.labels("m", "1", "redis").set(0)
    tiers = Tiers({"dram": 9, "redis": None}, registry)
    assert tiers.of_engine(1) == {
        "dram": {"used_bytes": 7, "size_bytes": 9, "is_available": True},
        "redis": {"used_bytes": None, "size_bytes": None, "is_available": False},
    }
    assert tiers.of_engine(0)["dram"]["used_bytes"] == 5


def test_sizes_of_tiers_are_those_of_the_settings(tmp_path: Path) -> None:
    extra = {"dram": {"size_bytes": "2GiB"}, "redis": {"url": "redis://h:1/0"}}
    assert tier_sizes(extra) == {"dram": 2 << 30, "redis": None}
    assert tier_sizes({}) == {"dram": None}
    settled = resolve_extra_config(
        {"dram": {"size_bytes": "3GiB"}, "ssd": {"path": str(tmp_path), "size_bytes": "1GiB"}},
        free_memory=lambda: 1 << 40,
    )
    assert tier_sizes(settled) == {"dram": 3 << 30, "ssd": 1 << 30}
