"""The HTTP API on vLLM's own app: what is answered to good, bad and hostile requests."""

import json
from typing import Any

import pytest

from agentkv.connectors.endpoint.answers import EVENTS_TIMEOUT_S
from agentkv.connectors.endpoint.engine_link import MAX_UNHEARD
from agentkv.signals import ControlReply, EventResult, Status

from .builders import FakeEngine, Served, scoped, session_row
from .conftest import Serve

PAUSE = {"event": "pause", "session_id": "s", "tool": "bash", "command": "pytest -q"}


async def test_a_single_event_is_answered_by_the_engine(serve: Serve) -> None:
    served = await serve(FakeEngine(sessions={scoped(None, "s")}))
    response = await served.post(PAUSE)
    assert (response.status_code, response.json()) == (200, {"status": "accepted", "detail": ""})
    (event,) = served.engine.events
    assert event.event.command == "pytest -q" and event.scope == ""


async def test_a_batch_is_answered_one_by_one_and_in_order(serve: Serve) -> None:
    served = await serve(FakeEngine(sessions={scoped(None, "a"), scoped(None, "c")}))
    events = [{"event": "resume", "session_id": name} for name in "abc"]
    results = (await served.post({"events": events})).json()["results"]
    assert [result["status"] for result in results] == ["accepted", "unknown", "accepted"]
    assert len(served.engine.sent) == 1


async def test_an_event_about_an_unknown_session_says_so_and_nothing_else(served: Served) -> None:
    response = await served.post(PAUSE)
    assert response.json() == {"status": "unknown", "detail": "no such session"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"event": "nap", "session_id": "s"}, "body.event"),
        ({"event": "pause"}, "body"),
        ({"event": "pause", "session_id": ""}, "body.session_id"),
        ({"event": "pause", "session_id": "s" * 257}, "body.session_id"),
        ({**PAUSE, "expected_wait_s": -1}, "body.expected_wait_s"),
        ({**PAUSE, "expected_wait_s": "soon"}, "body.expected_wait_s"),
        ({**PAUSE, "seq": 2**60}, "body.seq"),
        ({**PAUSE, "tol": "bash"}, "body.tol"),
        ({**PAUSE, "command": "x" * 5000}, "body.command"),
        ({**PAUSE, "calls": [{"tool": "a"}, {"tool": 1}]}, "body.calls.1.tool"),
        ({**PAUSE, "calls": [{"tool": "a"}] * 65}, "body.calls"),
        ({"events": []}, "body.events"),
        ({"events": [PAUSE] * 257}, "body.events"),
        ({"events": [PAUSE, {**PAUSE, "timeout_s": None, "seq": -1}]}, "body.events.1.seq"),
        ([PAUSE], "body"),
        ("pause", "body"),
        (None, "body"),
    ],
)
async def test_a_wrong_event_is_refused_with_the_field_in_vllms_own_words(
    served: Served, body: Any, field: str
) -> None:
    response = await served.post(body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, field, 400)
    assert served.engine.sent == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"event": "pause", "session_id": "s", "seq": NaN}',
        b'{"event": "pause", "session_id": "s", "timeout_s": Infinity}',
        b'{"event": "pause", "session_id": "\\ud800"}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"event": "pause", "session_id": "s", "seq": ' + b"9" * 5000 + b"}",
    ],
)
async def test_what_is_no_json_is_refused_and_reaches_no_engine(
    served: Served, content: bytes
) -> None:
    response = await served.client.post(
        "/v1/agentkv/events", content=content, headers={"content-type": "application/json"}
    )
    assert 400 <= response.status_code < 500
    assert set(response.json()) in ({"error"}, {"detail"})  # Both are vLLM's shapes.
    assert served.engine.sent == []


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_huge_body_is_refused_before_it_is_parsed(
    served: Served, is_announced: bool
) -> None:
    async def pieces() -> Any:
        for _ in range(5):
            yield b" " * (1 << 20)

    content = b" " * (5 << 20) if is_announced else pieces()
    response = await served.client.post("/v1/agentkv/events", content=content)
    assert response.status_code == 413
    assert response.json()["error"]["param"] == "body"


async def test_a_batch_of_the_largest_size_is_taken(serve: Serve) -> None:
    served = await serve(FakeEngine(sessions={scoped(None, "s")}))
    response = await served.post({"events": [{**PAUSE, "command": "x" * 4096}] * 256})
    assert {result["status"] for result in response.json()["results"]} == {"accepted"}


async def test_sessions_are_listed_and_shown(serve: Serve) -> None:
    served = await serve(FakeEngine(sessions={scoped(None, name) for name in "abc"}))
    listed = (await served.get("sessions?limit=2")).json()["sessions"]
    assert [session["session_id"] for session in listed] == ["a", "b"]
    shown = (await served.get("sessions/b")).json()
    assert (shown["state"], shown["pause"]["tool"]) == ("paused", "bash")


@pytest.mark.parametrize("name", ["org/run 1/agent", "ünïcode", "a?b#c", ".."])
async def test_any_name_can_be_shown(serve: Serve, name: str) -> None:
    from urllib.parse import quote

    served = await serve(FakeEngine(sessions={scoped(None, name)}))
    response = await served.get("sessions/" + quote(name, safe="").replace(".", "%2E"))
    assert response.json()["session_id"] == name


async def test_a_session_that_does_not_exist_is_not_found(served: Served) -> None:
    response = await served.get("sessions/nobody")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "No such session."


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("sessions?limit=0", "query.limit"),
        ("sessions?limit=1001", "query.limit"),
        ("sessions?limit=x", "query.limit"),
        ("sessions/" + "x" * 257, "path.session_id"),
        ("ledger/" + "x" * 257, "path.session_id"),
        ("ledger/s?limit=0", "query.limit"),
        ("ledger/s?limit=201", "query.limit"),
    ],
)
async def test_a_wrong_query_is_refused_with_the_field(
    served: Served, path: str, field: str
) -> None:
    response = await served.get(path)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


async def test_the_state_has_every_engine_and_the_endpoint_itself(serve: Serve) -> None:
    served = await serve(FakeEngine(num_ranks=2))
    state = (await served.get("state")).json()
    assert [engine["rank"] for engine in state["engines"]] == [0, 1]
    assert state["engines"][0]["sessions"] == {"paused": 1}
    assert state["endpoint"]["problems"] == 0


RECORDS = [
    {"kind": "pause", "t": 1.0, "pause_id": 1, "action": "hold", "costs_s": {"hold": 0.0}},
    {"kind": "resume", "t": 4.0, "pause_id": 1, "wait_s": 3.0, "regret_s": None, "new": {"a": 1}},
]


async def test_the_ledger_of_a_session_is_shown_as_the_engine_tells_it(serve: Serve) -> None:
    known = {scoped(None, "s"): RECORDS}
    served = await serve(FakeEngine(sessions={scoped(None, "s")}, ledgers=known))
    shown = (await served.get("ledger/s")).json()
    assert shown == {"session_id": "s", "state": "paused", "records": RECORDS}
    assert (await served.get("ledger/s?limit=1")).json()["records"] == RECORDS[1:]


async def test_the_ledger_of_a_session_that_has_ended_or_not_paused_yet(serve: Serve) -> None:
    known = {scoped(None, "old/one"): RECORDS}
    served = await serve(FakeEngine(sessions={scoped(None, "new")}, ledgers=known))
    ended = (await served.get("ledger/old%2Fone")).json()
    assert ended["state"] is None and len(ended["records"]) == 2
    fresh = (await served.get("ledger/new")).json()
    assert fresh == {"session_id": "new", "state": "paused", "records": []}
    unknown = await served.get("ledger/nobody")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"] == "No such session."


async def test_the_ledgers_of_several_engines_are_one_in_order(serve: Serve) -> None:
    def answer(rank: int, message: Any) -> ControlReply:
        return ControlReply(id=message.id, ledger=({"kind": "pause", "t": 9.0 - rank},) * 2)

    served = await serve(FakeEngine(num_ranks=3, answer=answer))
    records = (await served.get("ledger/s")).json()["records"]
    assert [record["t"] for record in records] == [7, 7, 8, 8, 9, 9]
    assert len((await served.get("ledger/s?limit=3")).json()["records"]) == 3


async def test_a_ledger_that_makes_no_sense_is_unavailable(serve: Serve) -> None:
    def answer(rank: int, message: Any) -> ControlReply:
        return ControlReply(id=message.id, ledger=({"kind": "pause", "t": "noon"},))

    served = await serve(FakeEngine(answer=answer))
    assert (await served.get("ledger/s")).status_code == 503


async def test_fields_that_the_engine_adds_are_shown(serve: Serve) -> None:
    def answer(rank: int, message: Any) -> ControlReply:
        return ControlReply(id=message.id, sessions=({**session_row("s"), "dram_bytes": 5},))

    served = await serve(FakeEngine(answer=answer))
    assert (await served.get("sessions/s")).json()["dram_bytes"] == 5


async def test_nonsense_from_the_engine_is_unavailable_not_a_crash(serve: Serve) -> None:
    def answer(rank: int, message: Any) -> ControlReply:
        return ControlReply(id=message.id, sessions=({"state": 3},))

    served = await serve(FakeEngine(answer=answer))
    assert (await served.get("sessions/s")).status_code == 503
    assert (await served.get("sessions")).status_code == 503


async def test_without_a_reply_events_are_deferred_and_queries_say_why(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv.connectors.endpoint.answers.QUERY_TIMEOUT_S", 0.01)
    served = await serve(FakeEngine(is_silent=True))
    assert (await served.post(PAUSE)).json()["status"] == "deferred"
    response = await served.get("state")
    assert response.status_code == 503
    assert "--disable-log-stats" in response.json()["error"]["message"]


async def test_a_process_that_hears_nothing_keeps_nobody_waiting_until_it_does(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv.connectors.endpoint.answers.EVENTS_TIMEOUT_S", 0.01)
    served = await serve(FakeEngine(is_silent=True, sessions={scoped(None, "s")}))
    for _ in range(MAX_UNHEARD):
        await served.post(PAUSE)
    monkeypatch.setattr("agentkv.connectors.endpoint.answers.EVENTS_TIMEOUT_S", 1e9)
    assert (await served.post(PAUSE)).json()["status"] == "deferred"
    served.engine.is_silent = False
    assert (await served.post(PAUSE)).json()["status"] == "deferred"
    assert (await served.post(PAUSE)).json()["status"] == "accepted"
    assert EVENTS_TIMEOUT_S <= 0.25


async def test_a_dead_engine_is_unavailable(serve: Serve) -> None:
    served = await serve(FakeEngine(is_dead=True))
    for response in (await served.post(PAUSE), await served.get("state")):
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "The engine cannot be reached."


async def test_an_engine_that_answers_too_few_results_has_confirmed_none(serve: Serve) -> None:
    def answer(rank: int, message: Any) -> ControlReply:
        return ControlReply(id=message.id, results=(EventResult(status=Status.ACCEPTED),))

    served = await serve(FakeEngine(answer=answer))
    results = (await served.post({"events": [PAUSE, PAUSE]})).json()["results"]
    assert [result["status"] for result in results] == ["deferred", "deferred"]


@pytest.mark.parametrize("connector", [None, "NixlConnector"])
async def test_without_our_connector_nothing_is_sent_and_nothing_claimed(
    serve: Serve, connector: str | None
) -> None:
    served = await serve(FakeEngine(connector=connector))
    assert (await served.post(PAUSE)).json()["status"] == "unsupported"
    assert (await served.get("sessions")).status_code == 503
    assert (await served.chat()).status_code == 200
    assert served.engine.sent == []


async def test_a_session_on_an_unknown_engine_is_looked_for_on_all(serve: Serve) -> None:
    def answer(rank: int, message: Any) -> ControlReply:
        status = Status.ACCEPTED if rank == 2 else Status.UNKNOWN
        results = tuple(EventResult(status=status) for _ in message.events)
        return ControlReply(id=message.id, results=results)

    served = await serve(FakeEngine(num_ranks=4, answer=answer))
    assert (await served.post(PAUSE)).json()["status"] == "accepted"
    assert sorted(rank for rank, _ in served.engine.sent) == [0, 1, 2, 3]


async def test_the_rank_header_picks_the_engine(serve: Serve) -> None:
    served = await serve(FakeEngine(num_ranks=4, sessions={scoped(None, "s")}))
    await served.post(PAUSE, **{"X-data-parallel-rank": "3"})
    assert [rank for rank, _ in served.engine.sent] == [3]
    for wrong in ("4", "-1", "x"):
        response = await served.post(PAUSE, **{"X-data-parallel-rank": wrong})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "header.X-data-parallel-rank")


async def test_the_rank_of_a_sessions_requests_is_remembered(serve: Serve) -> None:
    served = await serve(FakeEngine(num_ranks=4, sessions={scoped(None, "s")}))
    await served.chat({"session_id": "s"}, **{"X-data-parallel-rank": "2"})
    served.engine.sent.clear()
    events = [{"event": "resume", "session_id": "s"}, {"event": "end", "request_id": "chatcmpl-1"}]
    assert (await served.post({"events": events})).status_code == 200
    assert [(rank, len(message.events)) for rank, message in served.engine.sent] == [(2, 2)]


async def test_openapi_describes_every_route_and_every_field(served: Served) -> None:
    document = (await served.client.get("/openapi.json")).json()
    paths = {path: set(ops) for path, ops in document["paths"].items() if "/agentkv/" in path}
    assert paths == {
        "/v1/agentkv/events": {"post"},
        "/v1/agentkv/ledger/{session_id}": {"get"},
        "/v1/agentkv/live": {"get"},
        "/v1/agentkv/sessions": {"get"},
        "/v1/agentkv/sessions/{session_id}": {"get"},
        "/v1/agentkv/state": {"get"},
    }
    schemas = document["components"]["schemas"]
    assert schemas["Event"]["properties"]["waits_for"]["description"]
    event = document["paths"]["/v1/agentkv/events"]["post"]
    body = json.dumps(event["requestBody"])
    assert "/Event" in body and "/EventBatch" in body
    assert set(event["responses"]) == {"200", "4XX", "503"}
    assert set(document["paths"]["/v1/agentkv/sessions/{session_id}"]["get"]["responses"]) == {
        *("200", "404", "4XX", "503")
    }
