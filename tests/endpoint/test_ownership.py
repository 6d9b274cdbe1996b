"""Tenants: by cache salt, and by API key where there are several."""

from typing import Any

import httpx
import pytest

from agentkv.connectors.endpoint.ownership import ANYONE, Callers, Claim, Claims, Name
from agentkv.scope import scope_of_salt

from .builders import FakeEngine, Served, call, chat_reply, scoped
from .conftest import Serve

END = {"event": "end", "session_id": "s"}
KEYS = ("--api-key", "key-a", "key-b")


async def two_tenants(serve: Serve) -> Served:
    """A server with two keys; the session "s" was used with the first."""
    served = await serve(FakeEngine(sessions={scoped(None, "s")}, requests={"chatcmpl-1"}), *KEYS)
    assert (await served.chat({"session_id": "s"}, key="key-a")).status_code == 200
    served.engine.sent.clear()
    return served


def same(one: httpx.Response, other: httpx.Response) -> bool:
    return (one.status_code, one.content) == (other.status_code, other.content)


async def test_every_route_is_behind_vllms_check_of_the_key(serve: Serve) -> None:
    served = await serve(FakeEngine(sessions={scoped(None, "s")}), *KEYS)
    for key in (None, "wrong"):
        for path in ("sessions", "sessions/s", "ledger/s", "state"):
            assert (await served.get(path, key)).status_code == 401
        assert (await served.post(END, key)).status_code == 401
    assert served.engine.sent == []


async def test_the_key_that_used_a_session_steers_and_sees_it(serve: Serve) -> None:
    served = await two_tenants(serve)
    assert (await served.post(END, "key-a")).json()["status"] == "accepted"
    assert (await served.get("sessions/s", "key-a")).json()["session_id"] == "s"
    listed = (await served.get("sessions", "key-a")).json()["sessions"]
    assert [session["session_id"] for session in listed] == ["s"]


@pytest.mark.parametrize(
    ("foreign", "unknown"),
    [
        (END, {**END, "session_id": "none"}),
        ({"event": "end", "request_id": "chatcmpl-1"}, {"event": "end", "request_id": "none"}),
        ({**END, "request_id": "mine"}, {**END, "session_id": "none", "request_id": "mine"}),
    ],
)
async def test_to_another_key_a_session_looks_like_none(
    serve: Serve, foreign: dict[str, Any], unknown: dict[str, Any]
) -> None:
    served = await two_tenants(serve)
    answer = await served.post(foreign, "key-b")
    assert answer.json()["status"] == "unknown"
    assert same(answer, await served.post(unknown, "key-b"))
    assert same(
        await served.post({"events": [foreign]}, "key-b"),
        await served.post({"events": [unknown]}, "key-b"),
    )
    # The engine is asked in both cases, so that the time it takes tells nothing either.
    assert len(served.engine.sent) == 4
    assert {event.scope for event in served.engine.events} == {"-"}


async def test_an_event_does_not_reach_a_foreign_session_by_its_other_name(serve: Serve) -> None:
    served = await two_tenants(serve)
    await served.chat({"session_id": "mine"}, key="key-b")
    mixed = {"event": "end", "session_id": "mine", "request_id": "chatcmpl-1"}
    assert (await served.post(mixed, "key-b")).json()["status"] == "unknown"


async def test_a_reply_id_that_two_keys_used_names_nobodys_session(serve: Serve) -> None:
    """The id is the client's to choose, and the engine knows the last session that used it."""
    served = await two_tenants(serve)
    served.model.reply = chat_reply(call("bash", command="make"))
    await served.chat({"session_id": "t"}, key="key-b")
    assert served.engine.sent == [], "the pause of one must not become the other's"
    by_reply = {"event": "end", "request_id": "chatcmpl-1"}
    for key in ("key-a", "key-b"):
        assert (await served.post(by_reply, key)).json()["status"] == "unknown"
    assert (await served.post(END, "key-a")).json()["status"] == "accepted"


async def test_a_reply_id_that_two_salts_used_names_a_session_of_each(serve: Serve) -> None:
    served = await serve(FakeEngine(), *KEYS)
    served.model.reply = chat_reply(call("bash", command="make"))
    for salt, key in (("red", "key-a"), ("blue", "key-b")):
        await served.chat({"cache_salt": salt}, key=key)
    scopes = [scope_of_salt("red"), scope_of_salt("blue")]
    assert [event.scope for event in served.engine.events] == scopes
    served.engine.sent.clear()
    for salt in ("red", "blue"):
        by_reply = {"event": "end", "request_id": "chatcmpl-1", "cache_salt": salt}
        await served.post(by_reply, "key-b")
    assert [event.scope for event in served.engine.events] == ["-", scope_of_salt("blue")]


async def test_another_key_can_neither_see_nor_list_a_session(serve: Serve) -> None:
    served = await two_tenants(serve)
    foreign = await served.get("sessions/s", "key-b")
    assert foreign.status_code == 404
    assert same(foreign, await served.get("sessions/none", "key-b"))
    assert (await served.get("sessions", "key-b")).json() == {"sessions": []}


async def test_another_key_cannot_read_a_ledger(serve: Serve) -> None:
    record = {"kind": "pause", "t": 1.0}
    served = await two_tenants(serve)
    served.engine.ledgers = {scoped(None, "s"): [record], scoped(None, "none"): [record]}
    assert (await served.get("ledger/s", "key-a")).json()["records"] == [record]
    foreign = await served.get("ledger/s", "key-b")
    assert foreign.status_code == 404
    assert same(foreign, await served.get("ledger/none", "key-b"))
    assert {message.ledger.scope for _, message in served.engine.sent[1:] if message.ledger} == {
        "-"
    }


async def test_another_salt_cannot_read_a_ledger(serve: Serve) -> None:
    record = {"kind": "pause", "t": 1.0}
    served = await serve(FakeEngine(ledgers={scoped("red", "s"): [record]}))
    assert (await served.get("ledger/s", **{"X-Cache-Salt": "red"})).status_code == 200
    assert (await served.get("ledger/s", **{"X-Cache-Salt": "blue"})).status_code == 404
    assert (await served.get("ledger/s")).status_code == 404


async def test_a_session_cannot_be_taken_over_by_using_its_name(serve: Serve) -> None:
    served = await two_tenants(serve)
    await served.chat({"session_id": "s"}, key="key-b")
    assert (await served.post(END, "key-b")).json()["status"] == "unknown"
    assert (await served.post(END, "key-a")).json()["status"] == "accepted"


async def test_a_failed_request_claims_nothing(serve: Serve) -> None:
    served = await serve(FakeEngine(sessions={scoped(None, "s")}), *KEYS)

    async def refuse(request: Any) -> httpx.Response:
        from fastapi import Response

        return Response("{}", 400, media_type="application/json")  # type: ignore[return-value]

    served.model.reply = refuse  # type: ignore[assignment]
    await served.chat({"session_id": "s"}, key="key-b")
    assert (await served.post(END, "key-b")).json()["status"] == "unknown"


async def test_with_one_key_all_callers_are_one(serve: Serve) -> None:
    served = await serve(FakeEngine(sessions={scoped(None, "s")}), "--api-key", "key-a")
    assert (await served.post(END, "key-a")).json()["status"] == "accepted"
    assert len((await served.get("sessions", "key-a")).json()["sessions"]) == 1


async def test_the_cache_salt_parts_sessions_of_one_name(serve: Serve) -> None:
    served = await serve(FakeEngine(sessions={scoped("red", "s"), scoped("blue", "t")}))
    assert (await served.post({**END, "cache_salt": "red"})).json()["status"] == "accepted"
    for wrong in ({}, {"cache_salt": "blue"}):
        assert (await served.post({**END, **wrong})).json()["status"] == "unknown"
    assert (await served.get("sessions")).json() == {"sessions": []}
    headers = {"X-Cache-Salt": "blue"}
    listed = (await served.get("sessions", **headers)).json()["sessions"]
    assert [session["session_id"] for session in listed] == ["t"]
    assert (await served.get("sessions/s", **headers)).status_code == 404
    assert (await served.get("sessions/t", **headers)).status_code == 200


async def test_the_salt_itself_never_goes_to_the_engine(serve: Serve) -> None:
    served = await serve()
    await served.post({**END, "cache_salt": "a secret"})
    (event,) = served.engine.events
    assert event.scope == scope_of_salt("a secret")
    assert "a secret" not in event.model_dump_json()


def test_the_scope_is_the_one_of_the_engine_side() -> None:
    from types import SimpleNamespace

    from agentkv.connectors.translate import scope_of

    for salt in (None, "", "salt", "ünïcode"):
        assert scope_of(SimpleNamespace(cache_salt=salt)) == scope_of_salt(salt)  # type: ignore[arg-type]


@pytest.mark.parametrize("flags", [(), ("--api-key", "key-a")])
async def test_nothing_is_remembered_where_nobody_asks_for_it(
    serve: Serve, flags: tuple[str, ...]
) -> None:
    served = await serve(FakeEngine(), *flags)
    assert (await served.chat({"session_id": "s"}, key="key-a")).status_code == 200
    endpoint = served.plugin._endpoint
    assert endpoint is not None and len(endpoint.sessions) == len(endpoint.replies) == 0


def test_claims_are_bounded_and_those_in_use_stay() -> None:
    claims = Claims(max_claims=3)
    names = [Name("", str(number)) for number in range(5)]
    for name in names[:3]:
        claims.claim(name, "a", None)
    claims.claim(names[0], "a", None)
    claims.claim(names[3], "a", None)
    claims.claim(names[4], "a", None)
    assert [claims.of(name) is not None for name in names] == [True, False, False, True, True]


def test_a_rank_is_remembered_until_another_is_named() -> None:
    claims = Claims(max_claims=3)
    name = Name("", "s")
    found: list[Claim | None] = []
    for rank in (2, None, 1):
        claims.claim(name, "a", rank)
        found.append(claims.of(name))
    assert found == [Claim("a", 2), Claim("a", 2), Claim("a", 1)]


def test_callers_are_digests_that_mean_nothing_elsewhere() -> None:
    callers = Callers(num_keys=2)
    one, other = ({"authorization": f"Bearer {key}"} for key in ("key-a", "key-b"))
    assert callers.caller_of(one) == callers.caller_of(one) != callers.caller_of(other)
    assert "key-a" not in callers.caller_of(one)
    assert callers.caller_of(one) != Callers(num_keys=2).caller_of(one)
    assert Callers(num_keys=1).caller_of(one) == ANYONE
