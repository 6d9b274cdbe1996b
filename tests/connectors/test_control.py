"""The engine's end of the control path: who is believed, what is answered, what is left behind."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.control import control_request, signal, tell
from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from agentkv.connectors.control import is_control
from agentkv.signals import CONTROL_KEY, ControlMessage, Event, ScopedEvent, Status

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


async def test_a_request_that_vllm_refused_is_no_message(make_rig: RigFactory) -> None:
    """For a prompt that is too long, say; what is sent on is what vLLM's own code sends."""
    rig = make_rig()
    Agent(rig, "victim", 1, 4).turn(tag=TOOL)
    sent = await _sent_for_a_refused({"do_remote_prefill": True, "agentkv": params_of(END_VICTIM)})
    submit(rig, sent)
    rig.settle()
    assert {session.key.name for session in rig.controller.sessions} == {"victim"}


async def _sent_for_a_refused(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with which vLLM's server aborts a request that it did not take."""
    sent: list[dict[str, Any]] = []

    async def refuse() -> None:
        raise ValueError("the prompt is too long")

    async def notify(request_id: str, params: dict[str, Any], **_: Any) -> None:
        sent.append(params)

    server = SimpleNamespace(
        has_kv_connector=True,
        engine_client=SimpleNamespace(notify_kv_transfer_request_rejected=notify),
        _get_data_parallel_rank=lambda _: None,
    )
    request: Any = SimpleNamespace(request_id="chatcmpl-1", kv_transfer_params=params)
    with pytest.raises(ValueError, match="too long"):
        await GenerateBaseServing._with_kv_transfer_rejection_cleanup(
            server, refuse(), request, None
        )
    return sent[0]


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
    assert rig.replies[full].ledger is None


def test_the_ledger_of_a_session_is_told_when_asked_for(make_rig: RigFactory) -> None:
    rig = make_rig()
    Agent(rig, "a", 1, 4).turn(tag=TOOL)
    mine = tell(rig, ledger={"session_id": "a", "limit": 5})
    foreign = tell(rig, ledger={"session_id": "a", "scope": "other"})
    rig.settle()
    [record] = rig.replies[mine].ledger or ()
    assert (record["kind"], record["tool"]) == ("pause", TOOL["tool"])
    assert rig.replies[foreign].ledger == ()


@pytest.mark.parametrize(
    "content",
    [
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
        {"id": "m", "ledger": {"session_id": "a", "limit": 10**9}},
        {"id": "m", "ledger": {"limit": 5, "since_s": -1}},
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


@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        "x",
        {"agentkv": None},
        {"agentkv": [CONTROL_KEY]},
        {"agentkv": {CONTROL_KEY: None}},
    ],
)
def test_what_is_no_message_at_all_is_taken_for_none(params: Any) -> None:
    request = control_request(END_VICTIM)
    request.sampling_params.extra_args["kv_transfer_params"] = params
    request.kv_transfer_params = params
    assert not is_control(request)


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
