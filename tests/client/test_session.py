"""What a session tells the server about an agent's tools, and that it never disturbs the agent."""

import asyncio
import logging
import subprocess
import threading
import time
from typing import Any

import anthropic
import openai
import pytest

from agentkv.client import AgentSession, AsyncAgentSession, Limits
from agentkv.signals import MAX_SECONDS, MAX_TEXT_CHARS, Event

from .recorder import Recorder, wait_until


def session_to(server: Recorder, session_id: str | None = "s", **options: Any) -> AgentSession:
    return AgentSession(server.url, session_id=session_id, **options)


def without_seq(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "seq"}


def assert_well_formed(events: list[dict[str, Any]]) -> None:
    for event in events:
        Event.model_validate(event)
    seqs = [event["seq"] for event in events]
    assert seqs == sorted(set(seqs)), "seq must grow in the order of arrival"


def test_a_tool_is_a_pause_and_a_resume_and_the_session_ends(server: Recorder) -> None:
    details: Any = {"command": "pytest -q", "timeout_s": 120, "expected_wait_s": 40}
    with session_to(server) as session, session.tool("bash", **details):
        pass
    assert [without_seq(event) for event in server.wait_for(3)] == [
        {
            "event": "pause",
            "session_id": "s",
            "tool": "bash",
            "command": "pytest -q",
            "timeout_s": 120,
            "expected_wait_s": 40,
            "waits_for": "tool",
        },
        {"event": "resume", "session_id": "s"},
        {"event": "end", "session_id": "s"},
    ]
    assert_well_formed(server.events)
    assert session.delivery.sent == 3 and session.delivery.dropped == 0


def test_the_pause_is_told_while_the_tool_runs(server: Recorder) -> None:
    with session_to(server) as session, session.tool("bash"):
        server.wait_for(1)
        assert server.kinds() == ["pause"]


def test_a_tool_that_raises_resumes_and_its_exception_goes_through(server: Recorder) -> None:
    with (
        pytest.raises(subprocess.TimeoutExpired),
        session_to(server) as session,
        session.tool("bash"),
    ):
        raise subprocess.TimeoutExpired("pytest", 1)
    assert [e["event"] for e in server.wait_for(3)] == ["pause", "resume", "end"]


def test_the_pause_of_parallel_tools_ends_with_the_last(server: Recorder) -> None:
    session = session_to(server)
    first, second = session.tool("bash", command="a"), session.tool("read", timeout_s=3)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert [e["event"] for e in server.wait_for(3)] == ["pause", "pause", "resume"]
    assert server.events[1]["calls"] == [
        {"tool": "bash", "command": "a"},
        {"tool": "read", "timeout_s": 3},
    ]
    assert_well_formed(server.events)


def test_a_long_tool_sends_heartbeats_and_a_short_one_none(server: Recorder) -> None:
    session = session_to(server, limits=Limits(heartbeat_s=0.5))
    with session.tool("short"):
        pass
    with session.tool("long"):
        wait_until(lambda: server.kinds().count("heartbeat") >= 2)
    session.close()
    kinds = server.kinds()
    assert kinds[:3] == ["pause", "resume", "pause"] and kinds[-2:] == ["resume", "end"]
    assert set(kinds[3:-2]) == {"heartbeat"}
    assert_well_formed(server.events)


def test_a_tool_that_never_ends_is_given_up(server: Recorder) -> None:
    session = session_to(server, limits=Limits(heartbeat_s=0.05, max_tool_s=1.0, idle_s=0.05))
    session.tool_started("lost", "bash")
    wait_until(lambda: "heartbeat" in server.kinds())
    # A tool that runs would keep the thread that tells of it.
    wait_until(lambda: session._channel._thread is None)
    num_events = len(server.events)
    time.sleep(0.3)
    assert len(server.events) == num_events


def test_a_person_is_waited_for_until_the_next_run_starts(server: Recorder) -> None:
    session = session_to(server)
    session.run_started()  # Nothing is open: nothing to tell.
    session.wait_for_human()
    session.run_started()
    session.run_started()
    session.close()
    assert [e["event"] for e in server.wait_for(3)] == ["pause", "resume", "end"]
    assert server.events[0]["waits_for"] == "human"


def test_a_run_that_starts_ends_what_a_broken_one_left_open(server: Recorder) -> None:
    session = session_to(server)
    session.tool_started("lost", "bash")
    session.run_started()
    session.tool_ended("lost")
    session.close()
    assert [e["event"] for e in server.wait_for(3)] == ["pause", "resume", "end"]


def test_single_steps_tell_the_same(server: Recorder) -> None:
    session = session_to(server)
    session.pause("bash", command="make", expected_wait_s=3)
    session.heartbeat()
    session.resume()
    session.end()
    kinds = [e["event"] for e in server.wait_for(4)]
    assert kinds == ["pause", "heartbeat", "resume", "end"]
    assert server.events[0]["command"] == "make" and server.events[0]["expected_wait_s"] == 3


def test_the_cache_salt_and_the_key_go_along(server: Recorder) -> None:
    with AgentSession(server.url + "/v1/", "secret", "s", "tenant-a") as session:
        assert session.extra_body == {"session_id": "s", "cache_salt": "tenant-a"}
        assert session.headers == {"X-Session-ID": "s"}
    (end,) = server.wait_for(1)
    assert end["cache_salt"] == "tenant-a"
    assert server.keys == ["Bearer secret"]
    assert "secret" not in repr(session._channel.address)


def test_an_agent_that_starts_again_counts_on(server: Recorder) -> None:
    for _ in range(2):
        with session_to(server) as session, session.tool("bash"):
            pass
        del session
    assert_well_formed(server.wait_for(6))


@pytest.mark.parametrize("name", ["größe", "two\nlines", " padded", "", "x" * 300])
def test_a_name_that_cannot_be_a_header_is_replaced_by_the_same_one_each_time(name: str) -> None:
    made = {AgentSession("http://localhost:1", session_id=name).session_id for _ in range(2)}
    (session_id,) = made
    assert session_id.isascii() and session_id.startswith("agent-") and len(session_id) < 50


def test_sessions_without_a_name_get_one_each() -> None:
    made = {AgentSession("http://localhost:1").session_id for _ in range(3)}
    assert len(made) == 3


def test_values_that_do_not_fit_are_made_to_fit_or_left_out(server: Recorder) -> None:
    session = session_to(server)
    bad: Any = {"command": "x" * 10_000, "timeout_s": float("inf"), "expected_wait_s": -3}
    with session.tool("t" * 10_000, **bad):
        pass
    with session.tool("", command="", timeout_s=1e12):
        pass
    session.pause("caf\ud800")
    first, _, second, _, third = server.wait_for(5)
    assert len(first["tool"]) == len(first["command"]) == MAX_TEXT_CHARS
    assert not first.keys() & {"timeout_s", "expected_wait_s"}
    assert second["tool"] == "unknown" and second["timeout_s"] == MAX_SECONDS
    assert third["tool"] == "caf?", "half a character is not text"
    assert_well_formed(server.events)


def test_a_fault_of_ours_is_logged_once_and_never_raised(
    server: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    session = session_to(server, cache_salt="x" * 300)  # Longer than an event may carry.
    for _ in range(3):
        with session.tool("bash"):
            pass
    session.close()
    assert not server.events
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 3, "one each for start and end of a tool, and the session's end"


def test_many_threads_share_a_session(server: Recorder) -> None:
    session = session_to(server)

    def work() -> None:
        for _ in range(20):
            with session.tool("bash"):
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.close()
    wait_until(lambda: "end" in server.kinds())
    kinds = server.kinds()
    assert kinds.count("pause") == 160 and kinds[-2:] == ["resume", "end"]
    assert_well_formed(server.events)


# --- asyncio ---


async def test_an_async_agent_tells_the_same(server: Recorder) -> None:
    async with AsyncAgentSession(server.url, session_id="s") as session:
        async with session.tool("bash", command="make"):
            await asyncio.sleep(0.01)
        with session.tool("plain with"):
            pass
    assert [e["event"] for e in server.events] == ["pause", "resume", "pause", "resume", "end"]
    assert_well_formed(server.events)


async def test_the_pause_of_gathered_tools_ends_with_the_last(server: Recorder) -> None:
    async def run(session: AsyncAgentSession, delay_s: float) -> None:
        async with session.tool("bash"):
            await asyncio.sleep(delay_s)

    async with AsyncAgentSession(server.url, session_id="s") as session:
        await asyncio.gather(run(session, 0.01), run(session, 0.03), run(session, 0.02))
    assert server.kinds() == ["pause"] * 3 + ["resume", "end"]


async def test_a_tool_that_blocks_the_event_loop_is_told_in_time(server: Recorder) -> None:
    async with AsyncAgentSession(server.url) as session, session.tool("bash"):
        wait_until(lambda: server.kinds() == ["pause"])  # Blocks, as a careless tool does.


async def test_a_cancelled_tool_resumes(server: Recorder) -> None:
    is_running = asyncio.Event()

    async def run(session: AsyncAgentSession) -> None:
        async with session.tool("bash"):
            is_running.set()
            await asyncio.sleep(600)

    async with AsyncAgentSession(server.url) as session:
        task = asyncio.create_task(run(session))
        await is_running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert server.kinds() == ["pause", "resume", "end"]


# --- wrapped clients ---

OPTIONS: dict[str, Any] = {
    "api_key": "secret",
    "timeout": 7.0,
    "max_retries": 5,
    "default_headers": {"X-Mine": "1"},
    "default_query": {"q": "1"},
}
QUESTION: list[Any] = [{"role": "user", "content": "hi"}]


def assert_carried(server: Recorder) -> None:
    (headers,) = server.chats
    assert headers["x-session-id"] == "s" and headers["x-mine"] == "1"
    assert headers["authorization"] == "Bearer secret"


def test_a_wrapped_client_keeps_its_options_and_names_the_session(server: Recorder) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", organization="org", **OPTIONS) as client:
        wrapped = session_to(server).wrap(client)
        assert isinstance(wrapped, openai.OpenAI) and wrapped is not client
        assert (wrapped.timeout, wrapped.max_retries, wrapped.organization) == (7.0, 5, "org")
        assert wrapped.base_url == client.base_url and wrapped.default_query == {"q": "1"}
        wrapped.chat.completions.create(model="m", messages=QUESTION)
        assert "X-Session-ID" not in client.default_headers
    assert_carried(server)


async def test_async_clients_are_wrapped_too(server: Recorder) -> None:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", **OPTIONS) as client:
        wrapped = AsyncAgentSession(server.url, session_id="s").wrap(client)
        await wrapped.chat.completions.create(model="m", messages=QUESTION)
    assert_carried(server)


def test_clients_of_anthropics_library_are_wrapped_too(server: Recorder) -> None:
    with anthropic.Anthropic(base_url=server.url, **OPTIONS) as client:
        wrapped = session_to(server).wrap(client)
        wrapped.messages.create(model="m", max_tokens=5, messages=QUESTION)
    assert_carried(server)


def test_a_client_that_takes_no_headers_is_left_as_it_is() -> None:
    client: Any = object()
    assert AgentSession("http://localhost:1").wrap(client) is client
