"""What is told of sessions: to their tenant only, without commands, ready for JSON."""

from __future__ import annotations

import json

import pytest

from agentkv.events import TurnTag
from agentkv.session_report import engine_state, ledger_of, sessions_matching
from agentkv.signals import MAX_LEDGER_RECORDS, ControlReply, LedgerQuery, SessionQuery
from tests.test_event_handler import Told

SECRET = TurnTag(tool="bash", command="curl -H 'Authorization: s3cret'", expected_wait_s=40)


def told(world: Told, **query: object) -> list[dict[str, object]]:
    now_s = world.clock.monotonic_s()
    found = sessions_matching(world.controller, SessionQuery.model_validate(query), now_s)
    reply = ControlReply(id="m", sessions=found)
    return list(json.loads(reply.model_dump_json())["sessions"])


def test_a_paused_session_is_described_without_its_command() -> None:
    world = Told()
    world.turn("a", range(10), SECRET)
    world.clock.advance(4)
    world.say("heartbeat")
    world.clock.advance(2)
    world.controller.tokens_by_tier = lambda refs: {"gpu": 16 * len(refs), "ssd": 96}
    [session] = told(world, session_id="a")
    pause = session.pop("pause")
    assert session == {
        "session_id": "a",
        "state": "paused",
        "num_turns": 1,
        "context_tokens": 161,
        "is_inferred": False,
        "idle_s": 2.0,
        "kv_tokens": {"gpu": 160, "ssd": 96},
    }
    assert isinstance(pause, dict) and "s3cret" not in json.dumps(pause)
    assert pause["tool"] == "bash" and pause["since_s"] == 6.0
    assert pause["expected_wait_s"] == 40 and 20 < pause["returns_in_s"] < 40
    assert pause["action"] == "hold" and pause["reason"]
    assert not pause["is_tool_done"] and not pause["is_given_up"]


def test_a_done_tool_and_given_up_blocks_show() -> None:
    world = Told()
    world.turn("a", range(10), SECRET)
    world.press()
    assert world.victims()
    world.say("resume")
    [session] = told(world, session_id="a")
    pause = session["pause"]
    assert isinstance(pause, dict)
    assert pause["is_tool_done"] and pause["is_given_up"] and pause["action"] == "swap"


def test_an_overdue_pause_returns_now_not_in_the_past() -> None:
    world = Told()
    world.turn("a", range(10), TurnTag(expected_wait_s=5))
    world.clock.advance(500)
    [session] = told(world, session_id="a")
    assert session["pause"]["returns_in_s"] == 0  # type: ignore[index]


def test_a_running_session_has_no_pause() -> None:
    world = Told()
    world.arrive("r", "a", range(5))
    [session] = told(world)
    assert session["state"] == "running" and session["pause"] is None


def test_sessions_come_newest_first_up_to_the_limit() -> None:
    world = Told()
    for number, name in enumerate("abcd"):
        world.turn(name, range(10 * number, 10 * number + 5))
    world.say("heartbeat", "b")
    assert [session["session_id"] for session in told(world, limit=3)] == ["b", "d", "c"]


@pytest.mark.parametrize("query", [{}, {"session_id": "mine"}, {"limit": 1000}])
def test_a_tenant_sees_its_own_sessions_only(query: dict[str, object]) -> None:
    world = Told()
    world.arrive("r", "mine", range(5), scope="one")
    world.arrive("r2", "mine", range(5), scope="two")
    world.arrive("r3", "other", range(5), scope="two")
    assert len(told(world, scope="one", **query)) == 1
    assert told(world, scope="", **query) == [] == told(world, scope="three", **query)


def test_an_unknown_session_is_an_empty_answer() -> None:
    assert told(Told(), session_id="nobody") == []


def ledger(world: Told, **query: object) -> list[dict[str, object]]:
    found = ledger_of(world.ledger, LedgerQuery.model_validate({"session_id": "a", **query}))
    reply = ControlReply(id="m", ledger=found)
    return list(json.loads(reply.model_dump_json())["ledger"])


def test_a_ledger_is_told_to_its_tenant_without_commands_or_scopes() -> None:
    world = Told()
    world.arrive("r1", "a", range(5), scope="one", tag=SECRET)
    world.finish("r1", range(5))
    world.turn("a", range(10, 20), SECRET)
    assert [record["kind"] for record in ledger(world, scope="one")] == ["pause"]
    [record] = ledger(world)
    assert record["tool"] == "bash" and record["context_tokens"] == 161
    assert "s3cret" not in json.dumps(record) and "scope" not in record
    assert ledger(world, scope="two") == [] == ledger(world, session_id="b")


def test_a_ledger_has_the_newest_records_and_no_endless_texts() -> None:
    world = Told()
    for number in range(MAX_LEDGER_RECORDS):
        world.turn("a", range(5 + number), TurnTag(tool="x" * 4096))
    records = ledger(world)
    assert len(records) == MAX_LEDGER_RECORDS
    assert records[-1]["kind"] == "pause" and records[-1]["turn"] == MAX_LEDGER_RECORDS - 1
    assert len(json.dumps(records)) < 600_000
    assert [record["kind"] for record in ledger(world, limit=2)] == ["resume", "pause"]


def test_the_engines_state_names_no_session() -> None:
    world = Told()
    world.turn("a", range(10))
    world.arrive("r", "b", range(20, 25))
    world.press()
    assert world.victims()
    state = engine_state(world.controller, pool_blocks=99, free_blocks=7)
    assert state == {
        "sessions": {"running": 1, "paused": 1, "resuming": 0},
        "pressure": 1.0,
        "pauses_away": 1,
        "pool_blocks": 99,
        "free_blocks": 7,
    }


def feed(world: Told, **query: object) -> list[dict[str, object]]:
    found = ledger_of(world.ledger, LedgerQuery.model_validate(query))
    return list(json.loads(ControlReply(id="m", ledger=found).model_dump_json())["ledger"])


def test_the_feed_tells_what_happened_since_then_in_all_sessions_of_the_tenant() -> None:
    world = Told()
    world.turn("a", range(10), SECRET)
    world.arrive("r", "b", range(5), scope="one", tag=SECRET)
    world.finish("r", range(5))
    since_s = world.clock.wall_s()
    world.clock.advance(4)
    world.turn("a", range(12), TurnTag(last_turn=True))
    world.turn("c", range(30, 40), TurnTag(tool="x" * 4096))
    told = feed(world)
    assert [(each["kind"], each["session_id"]) for each in told] == [
        ("pause", "a"),
        ("resume", "a"),
        ("end", "a"),
        ("pause", "c"),
    ]
    assert told[0]["tool"] == "bash" and told[0]["estimate_p50_s"]
    assert told[1]["wait_s"] == 4 and "regret_s" in told[1]
    assert "s3cret" not in json.dumps(told) and len(json.dumps(told)) < 3000
    assert feed(world, since_s=since_s) == told[1:]
    assert feed(world, limit=1) == told[-1:]
    assert [each["session_id"] for each in feed(world, scope="one")] == ["b"]
    assert feed(world, scope="two") == []
