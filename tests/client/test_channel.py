"""Events on their way to a server that is gone, hangs, knows no agentkv or refuses the key."""

import gc
import logging
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentkv.client import AgentSession, Limits, channel

from .recorder import WAIT_S, Recorder, recording, wait_until

QUICK = Limits(request_timeout_s=60, flush_s=0.3, recheck_s=300, max_backoff_s=0.2)


@pytest.fixture
def dead_url() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def use_tools(session: AgentSession, num_tools: int) -> list[float]:
    """Seconds that each start and end of a tool took the agent."""
    costs_s = []
    for index in range(num_tools):
        begin_s = time.perf_counter()
        with session.tool("bash", command=f"step {index}"):
            pass
        costs_s.append(time.perf_counter() - begin_s)
    return costs_s


def has_thread(session: AgentSession) -> bool:
    return session._channel._thread is not None


def settled(session: AgentSession) -> None:
    wait_until(session._channel.is_settled)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [r for r in caplog.records if r.name.startswith("agentkv.")]
    return [r.getMessage() for r in records if r.levelno >= logging.WARNING]


def test_a_hanging_server_costs_the_agent_no_time(server: Recorder) -> None:
    server.hangs = True
    session = AgentSession(server.url, limits=Limits(request_timeout_s=60, flush_s=0.2))
    costs_s = use_tools(session, 500)
    assert statistics.median(costs_s) < 0.005
    begin_s = time.monotonic()
    session.close()
    assert time.monotonic() - begin_s < 50, "it must not wait for the answer"


def test_the_queue_of_a_hanging_server_is_bounded_and_keeps_the_newest(server: Recorder) -> None:
    server.hangs = True
    limits = Limits(max_queued=10, max_batch=1, request_timeout_s=30)
    session = AgentSession(server.url, limits=limits)
    session.pause("first")
    wait_until(lambda: server.num_requests == 1)
    for index in range(200):
        session.pause(f"step {index}")
    assert len(session._channel._queue) == 10
    assert session.delivery.dropped == 200 - 10
    server.hangs = False
    tools = [event["tool"] for event in server.wait_for(11)]
    assert tools == ["first", *(f"step {index}" for index in range(190, 200))]


def test_a_server_that_is_gone_costs_no_time_and_one_warning(
    dead_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with AgentSession(dead_url, limits=QUICK) as session:
        costs_s = use_tools(session, 200)
        time.sleep(0.5)  # Some retries.
        use_tools(session, 10)
    assert statistics.median(costs_s) < 0.005
    assert len(warnings_in(caplog)) == 1 and "the agent goes on" in warnings_in(caplog)[0]
    assert session.delivery.sent == 0 and session.delivery.problem is not None


@pytest.mark.parametrize("url", ["", "localhost", "ftp://x", "http://[bad", "http://x:port"])
def test_an_address_that_is_none_is_a_log_line(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with AgentSession(url, limits=QUICK) as session:
        use_tools(session, 2)
    wait_until(lambda: warnings_in(caplog))


@pytest.mark.parametrize("status", [404, 405, 200])
def test_a_server_without_agentkv_is_asked_once(
    server: Recorder, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    server.status = status
    server.result = "unsupported"
    limits = Limits()
    with AgentSession(server.url, limits=limits) as session:
        for _ in range(5):
            use_tools(session, 5)
            time.sleep(0.02)
        with AgentSession(server.url, limits=limits) as another:
            use_tools(another, 5)
        settled(session)
    assert server.num_requests == 1
    assert not warnings_in(caplog), "it is no fault to have no agentkv"


def test_a_server_without_agentkv_is_asked_again_after_a_while(
    server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.status = 404
    session = AgentSession(server.url, limits=QUICK)
    use_tools(session, 1)
    settled(session)
    server.status = 200
    use_tools(session, 5)
    time.sleep(0.05)
    assert server.num_requests == 1
    later_s = time.monotonic() + QUICK.recheck_s
    clock = SimpleNamespace(monotonic=lambda: later_s, time_ns=time.time_ns)
    monkeypatch.setattr("agentkv.client.channel.time", clock)
    with session.tool("later"):
        pass
    assert [e["event"] for e in server.wait_for(2)] == ["pause", "resume"]
    wait_until(lambda: session.delivery.problem is None)


def test_a_wrong_key_is_logged_once_and_not_tried_again(
    server: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    server.status = 401
    with AgentSession(server.url, "wrong") as session:
        for _ in range(5):
            use_tools(session, 5)
            time.sleep(0.02)
    assert server.num_requests == 1
    (warning,) = warnings_in(caplog)
    assert "API key" in warning and "wrong" not in warning


def test_a_server_that_recovers_gets_what_waited_in_order(server: Recorder) -> None:
    server.status = 503
    sessions = [AgentSession(server.url, session_id=name, limits=QUICK) for name in "abcd"]
    sessions[0].pause("bash")
    wait_until(lambda: server.num_requests >= 1)
    for session in sessions[1:]:
        session.pause("bash")
    wait_until(lambda: server.num_requests >= 2)
    server.status = 200
    assert [event["session_id"] for event in server.wait_for(4)] == ["a", "b", "c", "d"]
    assert sessions[0].delivery.dropped == 0


def test_a_pause_that_ended_while_the_server_was_away_is_not_told(
    server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_LATE_AFTER_S", 0.05)
    server.status = 503
    first, second = (AgentSession(server.url, session_id=n, limits=QUICK) for n in "ab")
    first.pause("bash")
    second.pause("bash")
    wait_until(lambda: server.num_requests >= 3)
    first.resume()
    server.status = 200
    assert [(e["session_id"], e["event"]) for e in server.wait_for(2)] == [
        ("b", "pause"),
        ("a", "resume"),
    ], "it would be taken for the pause after the turn that runs by now"


def test_a_pause_that_ends_before_it_could_be_told_is_told_if_that_is_not_long_ago(
    server: Recorder,
) -> None:
    server.hangs = True
    session = AgentSession(server.url, session_id="s")
    session.pause("bash")
    wait_until(lambda: server.num_requests == 1)
    use_tools(session, 2)
    server.hangs = False
    assert [e["event"] for e in server.wait_for(5)] == ["pause", *["pause", "resume"] * 2]


def test_what_is_too_old_is_not_sent_but_the_end_is(server: Recorder) -> None:
    server.status = 503
    limits = Limits(max_age_s=0.3, max_backoff_s=0.1)
    session = AgentSession(server.url, limits=limits)
    use_tools(session, 2)
    session.end()
    wait_until(lambda: server.num_requests >= 1)
    time.sleep(1.0)
    server.status = 200
    assert [e["event"] for e in server.wait_for(1)] == ["end"]
    assert session.delivery.dropped == 4


def test_a_malformed_batch_is_dropped_and_the_next_one_sent(
    server: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    server.status = 422
    session = AgentSession(server.url)
    session.pause("bash")
    settled(session)
    server.status = 200
    session.resume()
    assert [e["event"] for e in server.wait_for(1)] == ["resume"]
    assert len(warnings_in(caplog)) == 1 and session.delivery.dropped == 1


def test_the_thread_ends_when_idle_and_starts_again(server: Recorder) -> None:
    session = AgentSession(server.url, limits=Limits(idle_s=0.1))
    assert not has_thread(session), "nothing runs before there is something to tell"
    session.pause("bash")
    server.wait_for(1)
    wait_until(lambda: not has_thread(session))
    session.resume()
    assert [e["event"] for e in server.wait_for(2)] == ["pause", "resume"]


def test_a_tool_that_runs_keeps_the_thread(server: Recorder) -> None:
    session = AgentSession(server.url, limits=Limits(idle_s=0.05, heartbeat_s=0.4))
    with session.tool("bash"):
        wait_until(lambda: server.kinds()[:2] == ["pause", "heartbeat"])


def test_sessions_share_the_way_to_a_server_and_leave_nothing_behind(server: Recorder) -> None:
    limits = Limits(idle_s=0.1)
    first, second = (AgentSession(server.url, limits=limits) for _ in range(2))
    shared = weakref.ref(first._channel)
    assert second._channel is first._channel
    assert AgentSession(server.url, "other key", limits=limits)._channel is not first._channel
    server.hangs = True
    first.pause("bash")
    thread = first._channel._thread
    assert thread is not None and thread.is_alive()
    server.hangs = False
    first.close()
    second.close()
    del first, second
    thread.join(WAIT_S)
    assert not thread.is_alive()
    gc.collect()
    assert shared() is None


def forked(work: Any) -> int:
    """Runs `work` in a child made by fork; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_sends_its_own_events_and_not_its_parents(server: Recorder) -> None:
    session = AgentSession(server.url, session_id="s")
    session.pause("warm up")
    server.wait_for(1)
    server.hangs = True
    session.pause("in flight while the child is made")
    wait_until(lambda: server.num_requests == 2)
    session.heartbeat()  # In the queue while the child is made.

    def work() -> None:
        with AgentSession(server.url, session_id="child") as child:
            use_tools(child, 1)

    release = threading.Timer(0.3, setattr, (server, "hangs", False))
    release.start()
    assert forked(work) == 0
    release.join()
    session.close()
    wait_until(lambda: "end" in server.kinds("s") and "end" in server.kinds("child"))
    assert server.kinds("s") == ["pause", "pause", "heartbeat", "end"]
    assert server.kinds("child") == ["pause", "resume", "end"]


def test_the_session_of_the_parent_works_in_the_child(server: Recorder) -> None:
    session = AgentSession(server.url, session_id="s")
    session.pause("bash")
    server.wait_for(1)
    assert forked(session.close) == 0
    assert [e["event"] for e in server.wait_for(2)] == ["pause", "end"]


SCRIPT = """
from agentkv.client import AgentSession, Limits, channel
channel._LATE_AFTER_S = 60.0
session = AgentSession({url!r}, session_id="s", limits=Limits({limits}))
with session.tool("bash"):
    pass
session.end()
"""


def test_a_program_may_end_right_after_its_last_event(server: Recorder) -> None:
    script = SCRIPT.format(url=server.url, limits="flush_s=60, request_timeout_s=60")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=180)
    assert server.kinds() == ["pause", "resume", "end"]


def test_a_program_ends_although_the_server_hangs(server: Recorder) -> None:
    server.hangs = True
    script = SCRIPT.format(url=server.url, limits="")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=180)


def test_frameworks_are_imported_by_their_adapters_alone() -> None:
    script = (
        "import sys, agentkv.client; names = {'openai', 'langchain_core', 'agents', 'langgraph'};"
        "sys.exit(str(names & sys.modules.keys()) if names & sys.modules.keys() else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=180)


def test_two_servers_do_not_wait_for_each_other(server: Recorder) -> None:
    server.hangs = True
    with recording() as other:
        AgentSession(server.url, limits=QUICK).pause("bash")
        wait_until(lambda: server.num_requests == 1)
        AgentSession(other.url, limits=QUICK).pause("bash")
        other.wait_for(1)
