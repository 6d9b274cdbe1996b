"""The LMCache tier when LMCache's server goes, hangs, returns, or is none; that server's memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.lmcache_server import Server, Stores, blank, filled, is_same, keys_of
from kit.redis_server import running

from agentkv.clock import ManualClock


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One that a test may stop."""
    server = Server(tmp_path / "server.log")
    server.start()
    yield server
    server.thaw()
    server.kill()


@pytest.fixture
def make() -> Iterator[Stores]:
    stores = Stores()
    yield stores
    for store in stores.made:
        store.close()


def test_room_made_is_memory_of_the_server(own_server: Server, make: Stores) -> None:
    num_bytes, num_entries = 1 << 20, 8
    store = make(own_server, block_bytes=num_bytes, capacity_bytes=num_entries * 2 * num_bytes)
    store.store(filled(keys_of(num_entries), num_bytes))
    before = own_server.memory_bytes()
    for _ in range(20):
        assert all(store.store(filled(keys_of(num_entries), num_bytes)))
    assert own_server.memory_bytes() - before < 5 * num_entries * num_bytes


def test_a_server_that_is_gone_is_left_alone_and_found_again(
    own_server: Server, make: Stores
) -> None:
    clock = ManualClock()
    store = make(own_server, clock=clock)
    keys = keys_of(2)
    entries = filled(keys)
    assert all(store.store(entries))
    own_server.kill()
    assert store.load(blank(keys)) == [False, False]
    assert not store.is_available
    assert store.take_failures() == {"connect": 1}
    assert store.store(entries) == store.contains(keys) == [False, False]
    assert store.delete(keys) == 0
    assert store.take_failures() == {}, "it asked a server that it leaves alone"
    clock.advance(1.0)
    assert store.contains(keys) == [False, False]
    clock.advance(1.0)
    assert not store.is_available, "the pauses do not grow"
    own_server.start()
    clock.advance(1.0)
    assert store.is_available
    assert store.load(blank(keys)) == [False, False], "the new server is empty"
    assert all(store.store(entries))
    loaded = blank(keys)
    assert all(store.load(loaded)) and is_same(entries, loaded)


def test_a_restart_between_two_calls_goes_unnoticed(own_server: Server, make: Stores) -> None:
    store = make(own_server)
    keys = keys_of(2)
    store.store(filled(keys))
    own_server.kill()
    own_server.start()
    assert store.contains(keys) == [False, False]
    assert store.usage().num_entries == 0
    assert all(store.store(filled(keys)))
    assert store.take_failures() == {}


def test_a_server_that_hangs_is_a_miss(own_server: Server, make: Stores) -> None:
    keys = keys_of(40)
    assert all(make(own_server).store(filled(keys)))
    store = make(own_server, timeout_s=0.3, call_timeout_s=0.6)
    own_server.freeze()
    assert not any(store.load(blank(keys)))
    assert not store.is_available
    assert store.take_failures() == {"timeout": 1}
    own_server.thaw()


def test_a_server_of_another_kind_is_not_used(make: Stores, tmp_path: Path) -> None:
    with running(tmp_path / "redis") as redis:
        other = Server(tmp_path / "log")
        other.port = redis.port
        store = make(other, timeout_s=0.3)
        assert store.store(filled(keys_of(1))) == [False]
        assert not store.is_available
        assert sum(store.take_failures().values()) == 1


def test_after_close_all_answers_are_no(own_server: Server, make: Stores) -> None:
    store = make(own_server)
    keys = keys_of(2)
    store.store(filled(keys))
    store.close()
    store.close()
    assert store.load(blank(keys)) == store.contains(keys) == [False, False]
    assert store.store(filled(keys)) == [False, False]
    assert store.delete(keys) == 0
    assert not store.is_available
    store.clear()
    store.touch(keys)
    assert store.take_failures() == {}
