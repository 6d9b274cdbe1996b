"""From a ledger's records to stories: joined by pause, whatever the ledger lacks."""

from __future__ import annotations

import json
from typing import Any

from agentkv.events import TurnTag
from agentkv.explain import PauseStory, explain_value, pause_stories
from tests.test_controller import BLOCK, World


def lived(world: World) -> list[PauseStory]:
    """Two pauses of "a" on a real controller: one held in peace, one given up and parked."""
    world.turn("a", range(20), TurnTag(tool="bash", command="pytest -q"))
    world.clock.advance(3)
    world.turn("a", range(24), TurnTag(tool="bash", expected_wait_s=60), gpu=20 * BLOCK)
    world.clock.advance(5)
    world.press()
    assert world.victims()
    world.ledger.record("park", pause_id=2, session_id="a", tier="ssd", num_blocks=24)
    world.clock.advance(55)
    world.turn("a", range(28), dram=24 * BLOCK)
    return stories(world)


def stories(world: World, name: str = "a") -> list[PauseStory]:
    return pause_stories(r for r in world.ledger.records() if r.get("session_id") == name)


def record(kind: str, at_s: float, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "t": at_s, "session_id": "a", "scope": "", "pause_id": 1, **fields}


def test_a_lived_session_is_told_pause_by_pause() -> None:
    calm, robbed, open_pause = lived(World())
    assert [each["action"] for each in calm.decisions] == ["hold"] and calm.regret_s == 0
    assert [each["action"] for each in robbed.decisions] == ["hold", "swap"]
    assert [each["kind"] for each in robbed.events()] == ["pause", "redecide", "park"]
    assert robbed.resume is not None and robbed.resume["wait_s"] == 60
    assert robbed.began_at_s == robbed.decisions[0]["t"]
    assert robbed.regret_s == robbed.resume["regret_s"]
    assert open_pause.resume is None and open_pause.regret_s is None


def test_the_value_for_json_has_every_record_and_the_sum() -> None:
    told = lived(World())
    value = json.loads(json.dumps(explain_value("a", told)))
    assert value["session_id"] == "a" and len(value["pauses"]) == 3
    assert value["regret_s"] == sum(story.regret_s or 0 for story in told)
    assert value["pauses"][1]["parks"][0]["tier"] == "ssd"
    assert value["pauses"][2]["resume"] is None


def test_a_session_that_ended_leaves_no_pause_open() -> None:
    world = World()
    world.turn("a", range(20))
    world.clock.advance(7)
    [session] = world.controller.sessions
    world.controller.end(session)
    [story] = stories(world)
    assert story.end_at_s is not None and story.resume is None
    assert story.end_at_s - story.began_at_s == 7


def test_a_ledger_that_begins_in_the_middle_of_a_pause() -> None:
    [story] = pause_stories([record("redecide", 105.0, age_s=5.0), record("resume", 130.0)])
    assert story.began_at_s == 100.0 and len(story.decisions) == 1 and story.resume is not None
    [story] = pause_stories([record("resume", 130.0, wait_s=30.0)])
    assert story.began_at_s == 100.0 and story.decisions == []


def test_an_id_that_a_restarted_engine_uses_again_is_another_pause() -> None:
    found = pause_stories(
        [record("pause", 1.0), record("pause", 50.0), record("resume", 60.0), record("park", 70.0)]
    )
    assert [story.began_at_s for story in found] == [1.0, 50.0, 70.0]
    assert [story.resume is not None for story in found] == [False, True, False]


def test_pauses_of_one_session_may_overlap_in_the_file() -> None:
    """Those of two tenants who chose the same name."""
    found = pause_stories(
        [
            record("pause", 1.0),
            record("pause", 2.0, pause_id=2, scope="other"),
            record("resume", 3.0),
            record("end", 4.0, scope="other", pause_id=None),
        ]
    )
    assert [story.scope for story in found] == ["", "other"]
    assert found[0].resume is not None and found[0].end_at_s is None
    assert found[1].resume is None and found[1].end_at_s == 4.0


def test_an_end_that_does_not_say_whose_ends_nobodys_of_several() -> None:
    both = [record("pause", 1.0), record("pause", 2.0, pause_id=2, scope="other")]
    end = {"kind": "end", "t": 4.0, "session_id": "a"}
    assert [story.end_at_s for story in pause_stories([*both, end])] == [None, None]
    assert [story.end_at_s for story in pause_stories([both[0], end])] == [4.0]


def test_records_of_other_kinds_are_passed_over() -> None:
    assert pause_stories([record("news", 1.0), {"t": 2.0}]) == []
