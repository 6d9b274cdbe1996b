"""How the engine's answers reach the API process, and when it asks to be told the time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from kit import Agent, Rig, prompt
from kit.control import control_request, tell
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)

from agentkv.connectors.connector import AgentKVConnector
from agentkv.connectors.control import ControlPort, take_replies
from agentkv.signals import REPLY_KEY, ControlMessage, ControlReply
from tests.test_controller import World

RigFactory = Callable[..., Rig]
TOOL = {"tool": "bash", "expected_wait_s": 1000.0}


# --- how the answer travels ---


class Port(World):
    """A port whose engine is this test."""

    def __init__(self) -> None:
        super().__init__()
        self.port = ControlPort(self.controller, self.controller._deps)

    def receive(self, *ids: str) -> None:
        for message_id in ids:
            self.port.receive(control_request(ControlMessage(id=message_id, wants_state=True)))

    def stats(self, tick_in_s: float | None = None) -> OffloadingConnectorStats:
        stats = OffloadingConnectorStats()
        self.port.add_to(stats, tick_in_s)
        return stats


def other_stats() -> OffloadingConnectorStats:
    stats = OffloadingConnectorStats()
    stats.increase_counter("vllm:kv_offload_load_bytes", 5)
    stats.observe_histogram("vllm:kv_offload_load_size", 5.0)
    return stats


@pytest.mark.parametrize("is_ours_first", [True, False])
def test_answers_survive_being_added_up_with_other_statistics(is_ours_first: bool) -> None:
    port = Port()
    port.receive("one", "two")
    ours, theirs = port.stats(3.5), other_stats()
    total = ours.aggregate(theirs) if is_ours_first else theirs.aggregate(ours)
    again = Port()
    again.receive("three")
    data = total.aggregate(again.stats()).data
    replies = {reply.id: reply for reply in take_replies(data)}
    assert replies.keys() == {"one", "two", "three"}
    assert replies["one"].tick_in_s == 3.5 and replies["three"].tick_in_s is None
    assert replies["two"].state is not None
    assert data == other_stats().data, "nothing of them is left for Prometheus"


def test_an_answer_is_sent_once(make_rig: RigFactory) -> None:
    port = Port()
    port.receive("one")
    assert port.port.has_unsent
    assert len(take_replies(port.stats().data)) == 1
    assert not port.port.has_unsent and port.stats().is_empty()


def test_answers_that_nobody_takes_do_not_pile_up() -> None:
    port = Port()
    port.receive(*(str(number) for number in range(1500)))
    replies = take_replies(port.stats().data)
    assert len(replies) == 1024 and replies[-1].id == "1499"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 3}', '{"id": "m", "colour": 1}'])
def test_an_answer_of_another_version_is_passed_over(text: str) -> None:
    stats = OffloadingConnectorStats()
    stats.increase_counter(REPLY_KEY, 1, (text,))
    stats.increase_counter(REPLY_KEY, 1, (ControlReply(id="m").model_dump_json(),))
    assert [reply.id for reply in take_replies(stats.data)] == ["m"]


@pytest.mark.parametrize("data", [{}, {"data": {}}, {"types": {}}, other_stats().data])
def test_statistics_without_answers_have_none(data: dict[str, Any]) -> None:
    before = copy.deepcopy(data)
    assert take_replies(data) == [] and data == before


def test_vllms_log_does_not_show_answers() -> None:
    port = Port()
    port.receive("one")
    data = other_stats().aggregate(port.stats()).data
    logged = AgentKVConnector.build_kv_connector_stats(data)
    assert logged is not None and logged.reduce() == other_stats().reduce()
    assert [reply.id for reply in take_replies(data)] == ["one"], "and does not take them"
    assert AgentKVConnector.build_kv_connector_stats() is not None


# --- the clock ---


def test_without_an_open_pause_no_tick_is_asked_for(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.run("r", prompt(1, 40), tag={"last_turn": True})
    message_id = tell(rig)
    rig.settle()
    assert rig.replies[message_id].tick_in_s is None and "" not in rig.replies


def test_a_reply_says_when_the_clock_is_to_be_told(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    _away(rig)
    message_id = tell(rig)
    rig.settle()
    tick_in_s = rig.replies[message_id].tick_in_s
    assert tick_in_s is not None and 0 < tick_in_s < 1000


def test_an_engine_that_falls_asleep_with_a_pause_away_asks_for_a_tick_unasked(
    make_rig: RigFactory,
) -> None:
    """Nobody has signalled anything: the zero-change client."""
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    _away(rig)
    assert rig.replies.keys() == {""} and rig.replies[""].tick_in_s is not None


def test_an_earlier_tick_than_the_one_told_is_told() -> None:
    port = Port()
    port.receive("one")
    port.stats(500.0)
    port.port.note_idle(2.0)
    assert [reply.tick_in_s for reply in take_replies(port.stats(2.0).data)] == [2.0]


def test_a_tick_that_was_told_is_not_told_again_until_it_is_over() -> None:
    port = Port()
    port.receive("one")
    port.stats(5.0)
    port.clock.advance(4.0)
    port.port.note_idle(1.0)
    assert not port.port.has_unsent
    port.clock.advance(1.0)
    port.port.note_idle(0.0)
    assert [reply.id for reply in take_replies(port.stats(0.0).data)] == [""]


def test_a_pause_that_cannot_be_brought_back_asks_for_no_tick(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    _away(rig)
    [session] = [s for s in rig.controller.sessions if s.key.name == "away"]
    rig.drop_gpu_cache()
    for chunk in list(rig.dram.chunks):
        if rig.dram.get(chunk).ref_cnt == 0:
            rig.side._damaged._drop(chunk)
    rig.clock.advance(2000.0)
    ticks = []
    for _ in range(5):
        rig.clock.advance(1.0)
        message_id = tell(rig)
        rig.settle()
        ticks.append(rig.replies[message_id].tick_in_s)
    assert session.pause is not None and session.pause.is_fetched
    assert ticks[-1] is None


def _away(rig: Rig) -> Agent:
    """An agent whose blocks others have taken."""
    agent = Agent(rig, "away", 1, 10)
    agent.turn(tag=TOOL)
    for seed in (50, 51):
        Agent(rig, f"other{seed}", seed, 18).turn(tag={"tool": "bash", "expected_wait_s": 10.0})
    assert rig.cached_blocks(agent.context) < 5
    return agent
