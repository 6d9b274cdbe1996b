"""A record of a decision tells the whole view it was made on, and no secret."""

from __future__ import annotations

import json

from agentkv.events import TurnTag
from tests.test_controller import World

SECRET = TurnTag(tool="bash", command="curl -H 'Authorization: s3cret' https://x && pytest -q")


def test_a_decision_is_written_with_all_it_was_made_on() -> None:
    world = World()
    world.press()
    world.turn("a", range(20), TurnTag(tool="bash", command="pytest -q", expected_wait_s=60))
    [record] = world.records("pause")
    assert (record["scope"], record["session_id"], record["turn"]) == ("", "a", 0)
    assert (record["tool"], record["command_class"]) == ("bash", "pytest/test")
    assert record["age_s"] == 0 and record["context_tokens"] == 321
    assert 0 < record["estimate_p10_s"] < record["estimate_p50_s"] < record["estimate_p90_s"]
    assert record["estimate_source"] and 0 <= record["confidence"] <= 1
    assert (record["pressure"], record["price_hbm"], record["price_dram"]) == (1.0, 1.0, 0.05)
    assert record["recompute_s"] > record["reload_s"] > 0 == record["store_s"]
    assert record["dram_bytes_missing"] == 0 and record["kv_bytes"] > 0
    assert record["costs_s"].keys() == {"hold", "swap", "recompute"}
    assert record["costs_by"] == "policy" and record["reason"]
    assert json.loads(json.dumps(record)) == record


def test_a_policy_that_weighs_nothing_still_tells_what_each_action_would_cost() -> None:
    world = World(policy="always_swap")
    world.turn("a", range(20), TurnTag(expected_wait_s=60))
    [record] = world.records("pause")
    assert record["costs_by"] == "median" and record["costs_s"]["hold"] == 0
    assert record["costs_s"]["recompute"] == record["recompute_s"] > 0
    assert record["costs_s"]["swap"] > record["reload_s"]


def test_a_second_decision_tells_its_age() -> None:
    world = World()
    world.turn("a", range(20), TurnTag(expected_wait_s=60))
    world.clock.advance(5)
    world.press()
    assert world.victims()
    [record] = world.records("redecide")
    assert record["age_s"] == 5.0 and record["pause_id"] == world.records("pause")[0]["pause_id"]


def test_a_resume_tells_the_tool_as_it_is_known_by_then() -> None:
    world = World()
    world.turn("a", range(20))
    session = next(iter(world.controller.sessions))
    world.controller.retag(session, TurnTag(tool="bash", command="pytest -q"))
    world.turn("a", range(21))
    assert world.records("pause")[0]["tool"] is None
    [record] = world.records("resume")
    assert (record["tool"], record["command_class"]) == ("bash", "pytest/test")


def test_a_command_is_told_by_its_class_only() -> None:
    world = World()
    world.turn("a", range(20), SECRET)
    world.turn("a", range(21))
    assert world.records("pause")[0]["command_class"] == "pytest/test"
    assert "s3cret" not in json.dumps(world.ledger.records())
    assert world.records("pause")[1]["command_class"] is None
