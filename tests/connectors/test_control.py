"""The engine's end of the control path: who is believed, what is answered, what is left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.control import control_request, signal, tell
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from agentkv.connectors.connector import AgentKVConnector
from agentkv.connectors.control import ControlPort, is_control, take_replies
from agentkv.signals import (
    CONTROL_KEY,
    REPLY_KEY,
    ControlMessage,
    ControlReply,
    Event,
    ScopedEvent,
    Status,
)
from tests.test_controller import World

RigFactory = Callable[..., Rig]
TOOL = {"tool": "bash", "expected_wait_s": 1000.0}
END_VICTIM = ControlMessage(
    id="m", events=(ScopedEvent(event=Event(event="end", session_id="victim")),)
)


def params_of(message: ControlMessage) -> dict[str, Any]:
    return {CONTROL_KEY: message.model_dump(mode="json", exclude_defaults=True)}


def submit(rig: Rig, params: Any, *, request_id: str = "chatcmpl-1", abort: bool = True) -> None:
    """A request with these `kv_transfer_params`, aborted before it began or left to run."""
    request = Request(
        request_id,
        [0],
        SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": params}),
        None,
        arrival_time=0.0,
        abort_immediately=abort,
    )
    rig.scheduler.add_request(request)
    if abort:
        rig.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)


# --- who is believed ---


def test_a_clients_request_that_looks_like_a_message_is_only_a_strange_tag(
    make_rig: RigFactory,
) -> None:
    rig = make_rig()
    Agent(rig, "victim", 1, 4).turn(tag=TOOL)
    result = rig.run("r", prompt(2, 40), tag=params_of(END_VICTIM))
    rig.check_answer("r")
    assert len(result.tokens) == 4
    assert {s.key.name for s in rig.controller.sessions} >= {"victim"}
    assert rig.counter("agentkv:tag_problems") == 1 and rig.counter("agentkv:signals") == 0
    assert rig.replies == {}


def test_flat_arguments_are_no_message_either(make_rig: RigFactory) -> None:
    rig = make_rig()
    request = control_request(END_VICTIM)
    request.abort_immediately = False
    assert not is_control(request)
    sampling = SamplingParams(extra_args={"agentkv.control": params_of(END_VICTIM)[CONTROL_KEY]})
    flat = Request("r", [0], sampling, None, arrival_time=0.0, abort_immediately=True)
    assert not is_control(flat)
    assert rig.controller is not None


@pytest.mark.xfail(
    strict=True,
    reason="vLLM aborts a refused request that asks for a remote prefill with the client's own "
    "parameters (entrypoints/generate/base/serving.py), and those may hold a control message",
)
def test_a_request_that_vllm_refused_is_no_message(make_rig: RigFactory) -> None:
    """As `_with_kv_transfer_rejection_cleanup` does for a prompt that is too long, say."""
    rig = make_rig()
    Agent(rig, "victim", 1, 4).turn(tag=TOOL)
    submit(rig, {"do_remote_prefill": True, "agentkv": params_of(END_VICTIM)})
    rig.settle()
    assert {session.key.name for session in rig.controller.sessions} == {"victim"}


@pytest.mark.xfail(strict=True, reason="a request that vLLM refused counts as a turn")
def test_a_request_that_vllm_refused_is_no_turn(make_rig: RigFactory) -> None:
    rig = make_rig()
    Agent(rig, "victim", 1, 4).turn(tag=TOOL)
    [session] = rig.controller.sessions
    pause = session.pause
    submit(rig, {"do_remote_prefill": True, "agentkv": {"session_id": "victim"}})
    rig.settle()
    assert session.pause is pause and session.num_turns == 1


# --- what a message leaves behind ---


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_hybrid", [False, True])
def test_a_message_leaves_nothing_behind_in_vllm(
    make_rig: RigFactory, is_async: bool, is_hybrid: bool
) -> None:
    rig = make_rig(is_async=is_async, is_hybrid=is_hybrid)
    Agent(rig, "a", 1, 4).turn(tag=TOOL)
    before = _traces(rig)
    message_ids = [tell(rig, Event(event="heartbeat", session_id="a")) for _ in range(20)]
    rig.settle(max_steps=10)
    assert rig.replies.keys() >= set(message_ids)
    assert _traces(rig) == before
    assert not rig.scheduler.has_requests()


def _traces(rig: Rig) -> list[Any]:
    return [
        rig.runner.num_computed_tokens,
        rig.pool.get_num_free_blocks(),
        len(rig.scheduler.requests),
        len(rig.connector.connector_scheduler._req_status),
        len(rig.side._requests),
        len(rig.controller.sessions),
        len(rig.controller.sessions._turns),
        rig.counter("agentkv:tags"),
        rig.external_queries,
    ]


def test_a_message_among_running_turns_disturbs_none(make_rig: RigFactory) -> None:
    rig = make_rig(max_step_tokens=64)
    agent = Agent(rig, "a", 1, 8)
    request_id = agent.arrive(max_tokens=20)
    for _ in range(20):
        rig.step()
        tell(rig, Event(event="pause", session_id="a", tool="bash"))
    rig.settle()
    rig.check_answer(request_id)
    assert rig.results[request_id].request.num_preemptions == 0


# --- what is answered ---


def test_the_answers_come_in_the_order_of_the_events(make_rig: RigFactory) -> None:
    rig = make_rig()
    Agent(rig, "a", 1, 4).turn(tag=TOOL)
    events = [
        Event(event="heartbeat", session_id="a", seq=3),
        Event(event="heartbeat", session_id="nobody"),
        Event(event="heartbeat", session_id="a", seq=2),
        Event(event="end", session_id="a"),
        Event(event="heartbeat", session_id="a"),
    ]
    message_id = tell(rig, *events)
    rig.settle()
    statuses = [result.status for result in rig.replies[message_id].results]
    assert statuses == ["accepted", "unknown", "rejected", "accepted", "unknown"]
    assert rig.counter("agentkv:signals", "accepted") == 2
    assert rig.counter("agentkv:signals") == 5


def test_state_and_sessions_are_told_when_asked_for(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40)
    Agent(rig, "a", 1, 4).turn(tag=TOOL)
    plain, full = tell(rig), tell(rig, wants_state=True, sessions={"limit": 5})
    foreign = tell(rig, scope="", sessions={"session_id": "a", "scope": "other"})
    rig.settle()
    assert rig.replies[plain].sessions is None and rig.replies[plain].state is None
    state = rig.replies[full].state
    assert state is not None and state["pool_blocks"] == state["free_blocks"] == 40
    [session] = rig.replies[full].sessions or ()
    assert session["session_id"] == "a"
    assert rig.replies[foreign].sessions == ()


@pytest.mark.parametrize(
    "content",
    [
        None,
        "m",
        7,
        [],
        {},
        {"id": 3},
        {"id": "m", "colour": "red"},
        {"id": "m", "events": [{"event": {"event": "explode", "session_id": "a"}}]},
        {"id": "m", "events": [{"event": {"event": "end"}}]},
        {"id": "m", "events": {"event": "end", "session_id": "a"}},
        {"id": "m", "sessions": {"limit": 10**9}},
        {"id": "m", "events": [{"event": {"event": "end", "session_id": "a", "seq": -1}}]},
    ],
)
def test_a_malformed_message_changes_nothing_and_is_counted(
    make_rig: RigFactory, content: Any
) -> None:
    rig = make_rig()
    Agent(rig, "a", 1, 4).turn(tag=TOOL)
    submit(rig, {"agentkv": {CONTROL_KEY: content}})
    rig.settle()
    assert {s.key.name for s in rig.controller.sessions if not s.is_inferred} == {"a"}
    assert rig.counter("agentkv:tag_problems") == 1
    assert rig.counter("agentkv:faults") == 0 and rig.counter("agentkv:signals") == 0
    assert rig.replies == {}


@pytest.mark.parametrize("params", [None, [], "x", {"agentkv": None}, {"agentkv": [CONTROL_KEY]}])
def test_what_is_no_message_at_all_is_taken_for_none(params: Any) -> None:
    request = control_request(END_VICTIM)
    request.sampling_params.extra_args["kv_transfer_params"] = params
    request.kv_transfer_params = params
    assert not is_control(request)


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


@pytest.mark.xfail(
    strict=True,
    reason="ControlPort.add_to counts the tick as told with every statistics, sent or not",
)
def test_an_engine_that_falls_asleep_with_a_pause_away_asks_for_a_tick_unasked(
    make_rig: RigFactory,
) -> None:
    """Nobody has signalled anything: the zero-change client."""
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    _away(rig)
    assert rig.replies.keys() == {""} and rig.replies[""].tick_in_s is not None


@pytest.mark.xfail(strict=True, reason="note_idle is silent while any later tick was told")
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


@pytest.mark.xfail(
    strict=True, reason="next_look_s counts pauses of which DRAM has nothing: ticks for nothing"
)
def test_a_pause_that_cannot_be_brought_back_asks_for_no_tick(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    _away(rig)
    [session] = [s for s in rig.controller.sessions if s.key.name == "away"]
    for chunk in list(rig.dram.chunks):
        if rig.dram.get(chunk).ref_cnt == 0:
            rig.side._drop_from_dram(chunk)
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


# --- hostile, but well formed ---


def test_a_message_of_the_largest_size_is_answered(make_rig: RigFactory) -> None:
    rig = make_rig()
    for number in range(300):
        rig.add(f"r{number}", prompt(number, blocks(1)), session=f"s{number}", max_tokens=1)
    rig.settle()
    long = "x" * 4096
    events = [
        Event(event="pause", session_id=f"s{number}", tool=long, command=long)
        for number in range(256)
    ]
    message_id = tell(rig, *events, sessions={"limit": 1000}, wants_state=True)
    rig.settle()
    reply = rig.replies[message_id]
    assert {result.status for result in reply.results} == {Status.ACCEPTED}
    assert len(reply.sessions or ()) == 300
    assert rig.counter("agentkv:faults") == 0


@pytest.mark.parametrize("name", ["агент 🤖", "a\x00b", "'; DROP TABLE", "{}", "x" * 256, " "])
def test_any_text_is_a_session(make_rig: RigFactory, name: str) -> None:
    rig = make_rig()
    Agent(rig, name, 1, 4).turn(tag={"tool": name, "command": name})
    assert signal(rig, "resume", name).status is Status.ACCEPTED
    message_id = tell(rig, sessions={"session_id": name})
    rig.settle()
    [session] = rig.replies[message_id].sessions or ()
    assert session["session_id"] == session["pause"]["tool"] == name
    assert signal(rig, "end", name).status is Status.ACCEPTED
