"""What is asked of a server, and what is said where it does not answer as it should."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from agentkv.top.fetch import Look, Source, Trouble

from . import answers
from .fake_server import FakeServer, running


def look_at(url: str, **options: Any) -> Look:
    with Source(url, **options) as source:
        return source.look()


def test_one_question_brings_state_and_sessions(server: FakeServer) -> None:
    server.age_s = 30.0
    look = look_at(server.url)
    assert [urlsplit(path).path for path in server.seen] == ["/metrics", "/v1/agentkv/live"]
    assert look.sessions[0]["session_id"] == "run-1" and look.state["engines"][0]["rank"] == 0
    assert look.age_s == pytest.approx(30.0) and not look.note
    asked = parse_qs(urlsplit(server.seen[1]).query)
    assert asked["limit"] == ["1000"] and float(asked["since"][0]) > 1.7e9


def test_a_server_without_that_route_is_asked_for_both(server: FakeServer) -> None:
    server.has_live = False
    look = look_at(f"{server.url}/v1/")
    assert look.sessions[0]["session_id"] == "run-1" and look.state["engines"][0]["rank"] == 0
    assert look.age_s == 0 and not look.note


def test_of_the_metrics_only_those_shown_are_read(server: FakeServer) -> None:
    samples = look_at(server.url).samples
    assert "agentkv:decisions_total" in samples and "vllm:num_requests_waiting" in samples
    assert "vllm:something_else_total" not in samples


def test_key_and_salt_go_along(server: FakeServer) -> None:
    server.key = "secret"
    assert look_at(server.url, api_key="secret", salt="mine").sessions
    assert server.headers[-1]["X-Cache-Salt"] == "mine"


@pytest.mark.parametrize("has_live", [True, False])
def test_a_wrong_key_is_one_line(server: FakeServer, has_live: bool) -> None:
    server.key, server.has_live = "secret", has_live
    with pytest.raises(Trouble, match=r"^\S+: it wants an API key \(401\); --api-key or VLLM_"):
        look_at(server.url, api_key="wrong")


def test_a_server_without_agentkv_says_how_to_start_one(server: FakeServer) -> None:
    server.status = 404
    with pytest.raises(Trouble, match=r"^\S+: it runs without agentkv \(404\); .*agentkv serve"):
        look_at(server.url)


@pytest.mark.parametrize("has_live", [True, False])
def test_an_engine_that_does_not_answer_leaves_the_metrics(
    server: FakeServer, has_live: bool
) -> None:
    server.status, server.message, server.has_live = 503, "try \x1b[31mlater", has_live
    look = look_at(server.url)
    assert look.note == "the engine does not answer (503): try later"
    assert not look.sessions and "agentkv:decisions_total" in look.samples


def test_no_server_is_one_line() -> None:
    with running() as server:
        url = server.url
    with pytest.raises(Trouble, match=r"no answer \(ConnectError: .*; is the server up") as error:
        look_at(url)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "", "ftp://x", "http://", "http://[", "http://a b"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Trouble):
        Source(url).look()


@pytest.mark.parametrize("body", ["<html>", "[]", "null", "\udcff"])
def test_another_server_is_told_from_ours(body: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body.encode("utf-8", "surrogateescape"))

    with pytest.raises(Trouble, match="no answer"):
        look_at("http://x", transport=httpx.MockTransport(answer))


def test_odd_fields_of_an_answer_do_no_harm() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        odd = {"now_s": None, "as_of_s": "x", "sessions": [1, {"session_id": 7}], "engines": 3}
        return httpx.Response(200, json=odd)

    look = look_at("http://x", transport=httpx.MockTransport(answer))
    assert look.sessions == [{"session_id": 7}] and look.age_s == 0


@pytest.mark.parametrize("name", ["a/b", "..", "агент 🤖", "\x1b[31mred", "what?#%"])
def test_a_session_is_asked_for_by_any_name(server: FakeServer, name: str) -> None:
    server.sessions = [answers.paused(name)]
    with Source(server.url) as source:
        assert source.session(name)["kv_tokens"] == {"gpu": 3_000, "dram": 4_000}
        assert source.session("other") == {}
