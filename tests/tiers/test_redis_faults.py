"""The server dies, freezes, comes back, is full, refuses or garbles: misses within bounds."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.redis_rig import blank, entries, entry, fill, key, loaded, open_store, proxy_to
from kit.redis_server import RedisServer, running, wait_until

from agentkv.clock import ManualClock

_SHORT = {"timeout_s": 0.3, "connect_timeout_s": 0.3, "call_timeout_s": 0.6}
_BOUND_S = 50.0  # far over every deadline here, under what a patient store waits


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running(tmp_path / "server") as server:
        yield server


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """What is inside must end, whatever the server does."""
    start_s = time.monotonic()
    yield
    assert time.monotonic() - start_s < _BOUND_S


def test_a_server_that_is_not_there_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A74: no error at start, one line, and it is in use as soon as it is there."""
    server = RedisServer(tmp_path)
    with caplog.at_level(logging.INFO, "agentkv"), open_store(server.url) as store:
        assert not store.is_available
        assert store.state.reason == "connect"
        assert store.store([entry(1)]) == store.contains([key(1)]) == [False]
        assert store.load([blank(1)]) == [False]
        time.sleep(0.5)
        lines = [record.getMessage() for record in caplog.records if "Redis" in record.getMessage()]
        assert len(lines) == 1 and "connection refused" in lines[0]
        try:
            server.start()
            wait_until(lambda: store.is_available)
            assert store.store([entry(1)]) == [True]
            assert loaded(store, [1]) == [True]
            wait_until(lambda: "in use again" in caplog.text)
        finally:
            server.kill()


def test_a_server_that_is_killed_and_starts_again(server: RedisServer) -> None:
    """A75, A76: with the breaker open nothing is tried; the new server is empty: misses."""
    with open_store(server.url) as store:
        assert store.store(entries(range(5))) == [True] * 5
        server.kill()
        with bounded():
            assert loaded(store, range(5)) == [False] * 5
        assert not store.is_available
        failures = store.take_failures()
        for _ in range(1000):
            assert store.contains([key(1)]) == [False]
        assert store.take_failures() == {} and failures
        server.start()
        wait_until(lambda: store.is_available)
        assert loaded(store, range(5)) == [False] * 5
        assert store.store(entries(range(5))) == [True] * 5
        assert loaded(store, range(5)) == [True] * 5
        assert not store.state.is_open and store.state.num_openings == 1


def test_a_restart_between_two_calls_costs_no_miss_of_service(server: RedisServer) -> None:
    """Connections of before are replaced within the call."""
    with open_store(server.url) as store:
        store.store(entries(range(3)))
        server.kill()
        server.start()
        assert store.store(entries(range(3))) == [True] * 3
        assert store.take_failures() == {} and store.state.num_openings == 0


def test_a_frozen_server(server: RedisServer) -> None:
    """A76: each call ends by its deadline, then none waits; late answers are never mixed up."""
    fill(server.url, range(8))
    with open_store(server.url, **_SHORT) as store:
        wait_until(lambda: store.is_available)
        server.freeze()
        store.take_failures()
        try:
            with bounded():
                for _ in range(5):
                    assert loaded(store, range(4)) == [False] * 4
                    assert store.store(entries(range(100, 104))) == [False] * 4
            assert not store.is_available
            failures = store.take_failures()
            assert failures["timeout"] > 0 and failures.total() <= 3
        finally:
            server.thaw()
        for numbers in (range(8), [7, 2]):
            wait_until(lambda numbers=numbers: all(loaded(store, numbers)))


def test_a_late_answer_is_not_the_next_ones(server: RedisServer) -> None:
    """A76: a reply delayed past the timeout, then normal."""
    fill(server.url, range(8))
    with proxy_to(server.port) as proxy, open_store(proxy.url, **_SHORT) as store:
        wait_until(lambda: store.is_available)
        proxy.may_reply.clear()
        assert loaded(store, [1, 2]) == [False, False]
        proxy.may_reply.set()
        for number in range(8):
            wait_until(lambda number=number: loaded(store, [number]) == [True])


def test_a_trickling_server_cannot_hang_a_call(server: RedisServer) -> None:
    """Bytes come all the time, but the call has a deadline of its own."""
    fill(server.url, range(20))
    with proxy_to(server.port) as proxy, open_store(proxy.url, call_timeout_s=1.0) as store:
        wait_until(lambda: store.is_available)
        store.take_failures()
        proxy.bytes_per_s = 100_000
        with bounded():
            got = loaded(store, range(20))
        assert False in got
        assert store.take_failures()["timeout"] == 1


def test_a_server_too_slow_for_data(server: RedisServer) -> None:
    """A75: it answers questions in time, but no load: it is left alone all the same."""
    fill(server.url, range(20))
    with proxy_to(server.port) as proxy, open_store(proxy.url, call_timeout_s=0.6) as store:
        wait_until(lambda: store.is_available)
        store.take_failures()
        num_openings = store.state.num_openings
        proxy.bytes_per_s = 200_000
        for _ in range(3):
            assert store.is_available
            wait_until(lambda: store.contains([key(1), key(99)]) == [True, False])
            assert False in loaded(store, range(20))
        # It answers questions: it may be in use again by now.
        assert store.state.num_openings == num_openings + 1
        assert store.take_failures()["timeout"] >= 3


def test_slow_stores_are_bounded_and_dropped(server: RedisServer) -> None:
    """A77: a server of 1 MB/s and 200 MB to store: all ends, and what is left out is counted."""
    options = {"call_timeout_s": 1.0, "max_in_flight_bytes": 8 << 20, "num_connections": 2}
    block = 1 << 20
    with (
        proxy_to(server.port) as proxy,
        open_store(proxy.url, block_bytes=block, **options) as store,
    ):
        proxy.bytes_per_s = 1e6
        results: list[bool] = []
        shared = entries(range(25), block)
        threads = [
            threading.Thread(target=lambda: results.extend(store.store(shared))) for _ in range(8)
        ]
        with bounded():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(results) == 200 and results.count(False) > 100
        failures = store.take_failures()
        assert failures["in_flight_full"] > 0 and failures["not_stored"] > 0
        assert proxy.num_passed_bytes < 30 << 20
        proxy.bytes_per_s = None
        wait_until(lambda: all(store.store(shared[:9])))


def test_connections_killed_in_the_middle_of_loads(server: RedisServer) -> None:
    """CLIENT KILL while loads run: each entry is right or a miss, and the tier goes on."""
    block = 2 << 20
    with (
        open_store(server.url, block_bytes=block) as store,
        contextlib.closing(server.client()) as client,
    ):
        store.store(entries(range(8), block))
        has_ended = threading.Event()

        def kill() -> None:
            while not has_ended.wait(0.003):
                client.client_kill_filter(_type="normal", skipme=True)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            results = [loaded(store, range(8)) for _ in range(20)]
        finally:
            has_ended.set()
            killer.join()
        assert any(False in result for result in results)
        wait_until(lambda: store.is_available)
        assert loaded(store, range(8)) == [True] * 8


def test_a_full_server_that_evicts_nothing(tmp_path: Path) -> None:
    """A78: values are refused and no more are sent for a while; loads go on."""
    clock = ManualClock()
    with (
        running(tmp_path, maxmemory="6mb") as server,
        open_store(server.url, block_bytes=100_000, clock=clock) as store,
        contextlib.closing(server.client()) as client,
    ):
        results = store.store(entries(range(100), 100_000))
        num_stored = results.count(True)
        num_refused = 100 - num_stored
        assert num_stored > 0 and num_refused > 0
        assert results == [True] * num_stored + [False] * num_refused
        failures = store.take_failures()
        assert failures["not_stored"] == num_refused
        assert 0 < failures["server_full"] < num_refused  # The rest was not even sent.
        assert store.is_available
        assert all(loaded(store, range(num_stored)))
        assert store.contains([key(0), key(99)]) == [True, False]
        assert store.store([entry(200, 100_000)]) == [False]
        assert store.take_failures() == {}
        client.config_set("maxmemory", "50mb")
        clock.advance(1.1)
        assert store.store([entry(200, 100_000)]) == [True]


def test_a_full_server_that_evicts(tmp_path: Path) -> None:
    """A56, A60: three times what fits: the server's limit holds, loads are right or misses."""
    with (
        running(tmp_path, maxmemory="8mb", maxmemory_policy="allkeys-lru") as server,
        open_store(server.url, block_bytes=100_000, value_bytes=60_000) as store,
        contextlib.closing(server.client()) as client,
    ):
        for start in range(0, 240, 8):
            assert all(store.store(entries(range(start, start + 8), 100_000)))
            assert client.info("memory")["used_memory"] < 10e6
            loaded(store, range(max(0, start - 30), start))
        assert loaded(store, range(232, 240)).count(True) > 0
        assert loaded(store, range(8)).count(False) > 0
        assert set(store.take_failures()) <= {"missing"}


def test_a_replica(server: RedisServer, tmp_path: Path) -> None:
    """READONLY: nothing is stored, loads go on."""
    with (
        running(tmp_path / "replica", replicaof=f"127.0.0.1 {server.port}") as replica,
        open_store(server.url) as store,
        contextlib.closing(replica.client()) as client,
    ):
        store.store(entries(range(3)))
        wait_until(lambda: len(client.keys("*{*")) == 3)
        with open_store(replica.url) as reader:
            assert loaded(reader, range(3)) == [True] * 3
            assert reader.store([entry(9)]) == [False]
            assert reader.take_failures()["read_only"] > 0
            assert reader.is_available


def test_a_replica_that_was_made_master_meanwhile(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READONLY is tried once more, for another server may be the master by then."""
    with open_store(server.url) as store, contextlib.closing(server.client()) as client:
        assert store.store([entry(900)]) == [True]
        client.replicaof("127.0.0.1", 1)
        topology = store._calls._topology
        monkeypatch.setattr(topology, "refresh", lambda: client.replicaof("NO", "ONE"))
        assert store.store(entries(range(150))) == [True] * 150  # more than is sent ahead
        assert store.take_failures() == {}
        assert loaded(store, range(150)) == [True] * 150


def test_flushed_in_between(server: RedisServer) -> None:
    """A63"""
    with open_store(server.url) as store, contextlib.closing(server.client()) as client:
        for _ in range(3):
            assert store.store(entries(range(5))) == [True] * 5
            client.flushall()
            assert store.contains([key(1)]) == [False]
            assert loaded(store, range(5)) == [False] * 5
        assert store.is_available


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 9000, b"$5\r\n"])
def test_what_is_no_redis_at_all(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    end, _ = listener.accept()
                    with end:
                        end.recv(100)
                        end.sendall(answer)
                        time.sleep(0.05)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
            with bounded(), open_store(url, **_SHORT) as store:
                assert not store.is_available
                assert store.store([entry(1)]) == [False]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_clear_that_cannot_be_done_is_made_up_for(server: RedisServer) -> None:
    """A08: entries of before are never found again, even if the server was away meanwhile."""
    fill(server.url, range(5))
    with open_store(server.url, **_SHORT) as store:
        wait_until(lambda: all(loaded(store, range(5))))
        server.freeze()
        try:
            with bounded():
                store.clear()
            assert not store.is_available
        finally:
            server.thaw()
        wait_until(lambda: store.is_available)
        assert loaded(store, range(5)) == [False] * 5
        wait_until(lambda: all(store.store(entries(range(5)))))


def test_a_clear_while_the_breaker_is_open(server: RedisServer) -> None:
    fill(server.url, range(5))
    with open_store(server.url, **_SHORT) as store:
        wait_until(lambda: all(loaded(store, range(5))))
        server.freeze()
        try:
            for _ in range(4):
                loaded(store, [1])
            assert not store.is_available
            store.clear()
        finally:
            server.thaw()
        wait_until(lambda: store.is_available)
        assert loaded(store, range(5)) == [False] * 5
