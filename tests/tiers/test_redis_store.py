"""The contract of a tier, by `RedisStore` on a real server."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.redis_rig import (
    BLOCK_BYTES,
    NAMESPACE,
    blank,
    canary,
    entries,
    entry,
    key,
    loaded,
    open_store,
    proxy_to,
)
from kit.redis_server import RedisServer, running, wait_until

from agentkv.tiers.base import Entry
from agentkv.tiers.namespace import Namespace
from agentkv.tiers.redis import link as redis_link
from agentkv.tiers.redis.store import RedisStore


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    with contextlib.closing(server.client()) as client:
        client.flushall()
    with open_store(server.url) as store:
        yield store


def test_what_was_stored_is_loaded(store: RedisStore) -> None:
    assert (store.name, store.block_bytes, store.is_index_local) == ("redis", BLOCK_BYTES, False)
    assert store.contains([key(i) for i in range(9)]) == [False] * 9
    assert store.store(entries(range(9))) == [True] * 9
    assert store.contains([key(i) for i in range(10)]) == [True] * 9 + [False]
    assert loaded(store, range(9)) == [True] * 9
    assert loaded(store, [3, 99, 4]) == [True, False, True]
    assert store.take_failures() == {"missing": 1}
    assert store.take_failures() == {}


@pytest.mark.parametrize("num_bytes", [1, 1024, 65536, 524288, 9_000_000])
def test_entries_of_any_size(server: RedisServer, num_bytes: int) -> None:
    """A78, A104: entries over the size of a value are split; all bytes come back."""
    with open_store(server.url, block_bytes=num_bytes, value_bytes=1 << 20) as store:
        assert store.store(entries(range(3), num_bytes)) == [True] * 3
        assert loaded(store, [2, 0, 1]) == [True] * 3
        assert store.contains([key(0)]) == [True]
        assert store.delete([key(0)]) == 1
        assert loaded(store, [0, 1]) == [False, True]
        store.clear()


def test_more_than_may_be_on_the_way(server: RedisServer, store: RedisStore) -> None:
    """A77: what is over the bound goes in turns; one entry always may."""
    for num_bytes in (BLOCK_BYTES // 2, BLOCK_BYTES * 2):
        with open_store(server.url, max_in_flight_bytes=num_bytes) as narrow:
            store.clear()
            assert narrow.store(entries(range(9))) == [True] * 9
            assert loaded(narrow, range(10)) == [True] * 9 + [False]


def test_a_value_limit_of_the_server_is_kept(tmp_path: Path) -> None:
    """A78: an entry of 3 MiB where no value may be over 1 MiB."""
    with running(tmp_path, proto_max_bulk_len="1mb") as server:
        with open_store(server.url, block_bytes=3 << 20, value_bytes=1 << 20) as store:
            assert store.store([entry(1, 3 << 20)]) == [True]
            assert loaded(store, [1]) == [True]
        with open_store(server.url, block_bytes=3 << 20) as store:
            assert store.store([entry(2, 3 << 20)]) == [False]
            assert loaded(store, [1, 2]) == [False, False]
            assert store.take_failures()


def test_an_entry_that_is_there_is_not_sent_again(server: RedisServer, store: RedisStore) -> None:
    """A64: the same content again costs no bytes."""
    with proxy_to(server.port) as proxy, open_store(proxy.url) as other:
        assert store.store(entries(range(20))) == [True] * 20
        assert other.store(entries(range(20))) == [True] * 20
        assert proxy.num_passed_bytes < BLOCK_BYTES
        assert other.usage().num_entries == 0 and store.usage().num_entries == 20
        with open_store(server.url) as later:
            assert later.usage() == store.usage()
        assert store.usage().used_bytes == 20 * BLOCK_BYTES


def test_two_stores_share_a_namespace_and_no_other(server: RedisServer, store: RedisStore) -> None:
    """A04, A05, A06, A07, A103: any other field of the namespace is a miss, and is explained."""
    store.store(entries(range(4)))
    with open_store(server.url) as same:
        assert loaded(same, range(4)) == [True] * 4
        assert same.other_namespaces() == []
    for field, value in (("kv_dtype", "bfloat16"), ("layout", "block first"), ("world", "2")):
        other = Namespace({**NAMESPACE.fields, field: value})
        with open_store(server.url, namespace=other) as stranger:
            assert loaded(stranger, range(4)) == [False] * 4
            assert stranger.contains([key(0)]) == [False]
            assert NAMESPACE in stranger.other_namespaces()
            stranger.store([entry(50)])
            stranger.clear()
    assert loaded(store, range(4)) == [True] * 4


def test_namespaces_that_are_gone_are_forgotten(server: RedisServer, store: RedisStore) -> None:
    namespace = Namespace({"model": "old"})
    with open_store(server.url, namespace=namespace, ttl_s=1000.0) as old:
        old.store([entry(1)])
        assert [n.fields["model"] for n in store.other_namespaces()] == ["old"]
    with contextlib.closing(server.client()) as client:
        for name in client.keys(f"*{namespace.digest}*"):
            assert 0 < client.pttl(name) <= 1_000_000
            client.pexpire(name, 1)
        wait_until(lambda: store.other_namespaces() == [])
        assert client.smembers("agentkv:1:namespaces") <= {NAMESPACE.digest.encode()}


def test_entries_live_for_their_time_and_longer_if_touched(
    server: RedisServer, store: RedisStore
) -> None:
    with (
        open_store(server.url, ttl_s=1000.0) as short,
        contextlib.closing(server.client()) as client,
    ):
        short.store(entries(range(2)))
        names = [client.keys(f"agentkv:1:*{{{key(number).hex()}}}*")[0] for number in range(2)]
        for name in names:
            assert 0 < client.pttl(name) <= 1_000_000
            client.pexpire(name, 500_000)  # Half of its time is over.
        short.touch([key(0), key(0)])
        wait_until(lambda: client.pttl(names[0]) > 500_000)
        assert 0 < client.pttl(names[1]) <= 500_000
        client.pexpire(names[1], 1)
        wait_until(lambda: short.contains([key(0), key(1)]) == [True, False])


def test_storing_again_renews(server: RedisServer, store: RedisStore) -> None:
    store.store([entry(1)])
    with contextlib.closing(server.client()) as client:
        (name,) = client.keys("agentkv:1:*{*")
        client.pexpire(name, 5000)
        store.store([entry(1)])
        assert client.pttl(name) > 80_000_000


def test_touch_does_not_wait(server: RedisServer, store: RedisStore) -> None:
    server.freeze()
    try:
        store.touch([key(i) for i in range(100_000)])
        assert store.take_failures() == {"touch_dropped": 100_000 - 65536}
    finally:
        server.thaw()


def test_delete_and_clear(server: RedisServer, store: RedisStore) -> None:
    """A63: what another has removed is a miss, and removing it again is none of a problem."""
    store.store(entries(range(30)))
    assert store.delete([key(0), key(1), key(1), key(99)]) == 2
    assert store.delete([key(0)]) == 0
    with contextlib.closing(server.client()) as client:
        client.set("somebody's", "else")
        store.clear()
        assert store.usage().num_entries == 0
        assert [k for k in client.keys("*") if b"{" in k] == []
        assert client.get("somebody's") == b"else"
    assert loaded(store, range(30)) == [False] * 30
    assert store.store([entry(3)]) == [True]


def test_clear_goes_through_more_keys_than_one_scan(server: RedisServer) -> None:
    with open_store(server.url, block_bytes=10) as store:
        assert all(store.store(entries(range(5000), 10)))
        store.clear()
        assert not any(store.contains([key(i) for i in range(5000)]))


def test_no_store_lands_after_a_clear(server: RedisServer, store: RedisStore) -> None:
    """A08: a store that runs when the tier is cleared is gone too."""
    with proxy_to(server.port) as proxy, open_store(proxy.url) as slow:
        proxy.bytes_per_s = 2e6
        writer = threading.Thread(target=slow.store, args=(entries(range(30)),))
        writer.start()
        wait_until(lambda: proxy.num_passed_bytes > 2 * BLOCK_BYTES)
        slow.clear()
        writer.join()
        assert slow.store([entry(1)]) == [True]
        has = [False] * 30
        has[1] = True
        assert store.contains([key(i) for i in range(30)]) == has


def test_wrong_calls_are_misses(store: RedisStore) -> None:
    good, read_only = entry(1), Entry(key(1), memoryview(canary(1)))
    wrong = [
        Entry(b"", good.data),
        Entry(b"k" * 37, good.data),
        Entry(key(2), good.data[:-1]),
        Entry(key(2), memoryview(bytearray(BLOCK_BYTES * 2))[::2]),
    ]
    assert store.store([*wrong, good]) == [False] * 4 + [True]
    assert store.load(wrong) == [False] * 4
    assert store.take_failures() == {"bad_entry": 8}
    assert store.load([read_only]) == [False]
    assert store.contains([b"", b"k" * 37, key(1)]) == [False, False, True]
    assert store.store([]) == store.load([]) == store.contains([]) == []
    assert store.delete([]) == 0
    assert loaded(store, [1]) == [True]


def test_after_close_all_answers_are_no(server: RedisServer) -> None:
    with open_store(server.url) as store:
        store.store([entry(1)])
        store.close()
        store.close()
        assert not store.is_available
        assert store.contains([key(1)]) == store.load([blank(1)]) == [False]
        assert store.store([entry(1)]) == [False]
        assert store.delete([key(1)]) == 0
        assert store.other_namespaces() == []
        store.touch([key(1)])
        store.clear()


def test_redis_py_alone_serves_too(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A45: if redis-py keeps its socket elsewhere, its own reading and writing are used."""
    monkeypatch.setattr(redis_link, "bulk_socket", lambda connection: None)
    with open_store(server.url, value_bytes=10_000) as store:
        store.clear()
        assert store.store(entries(range(9))) == [True] * 9
        assert loaded(store, range(10)) == [True] * 9 + [False]
        with contextlib.closing(server.client()) as client:
            for name in client.keys(f"agentkv:1:{NAMESPACE.digest}:*{{{key(3).hex()}}}*"):
                client.delete(name)
                client.lpush(name, "x")
            client.setrange(client.keys(f"*{{{key(4).hex()}}}:0-*")[0], 5000, b"damage")
        assert loaded(store, [3, 4, 5]) == [False, False, True]
        assert store.contains([key(3), key(4)]) == [False, False]
        assert dict(store.take_failures()) == {"missing": 1, "wrong_type": 5, "checksum": 1}


def test_unix_sockets(tmp_path: Path) -> None:
    """The path of a socket must be short, whatever TMPDIR is."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "redis.sock"
        with running(tmp_path, unixsocket=str(path)), open_store(f"unix://{path}?db=3") as store:
            assert store.store([entry(1)]) == [True]
            assert loaded(store, [1]) == [True]


def test_many_threads_share_a_store(tmp_path: Path) -> None:
    """A67: writers of the same keys at once, over few connections.

    A load between two writes of one key may miss; afterwards each key has one valid value.
    """
    with (
        running(tmp_path) as server,
        open_store(server.url, num_connections=2, value_bytes=8192) as store,
        contextlib.closing(server.client()) as client,
    ):
        refused: list[object] = []
        num_loaded: list[int] = []

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(20):
                numbers = [int(n) for n in rng.integers(0, 20, 6)]
                if not all(store.store(entries(numbers))):
                    refused.append(numbers)
                num_loaded.append(sum(loaded(store, numbers)))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == []
        assert sum(num_loaded) > 0.9 * 6 * 20 * 6
        assert store.take_failures().keys() <= {"mixed_writes", "missing"}
        assert all(store.store(entries(range(20)))) and all(loaded(store, range(20)))
        assert store.take_failures() == {}
        wait_until(lambda: client.info("clients")["connected_clients"] <= 3)  # one is our own


def test_memory_is_not_kept(server: RedisServer, store: RedisStore) -> None:
    """A52: nothing refers to the caller's memory after a call."""
    memory = np.zeros(BLOCK_BYTES * 4, np.uint8)
    whole = weakref.ref(memory)
    parts = [
        Entry(key(i), memoryview(memory[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES])) for i in range(4)
    ]
    assert store.store(parts) == [True] * 4
    assert store.load(parts) == [True] * 4
    del memory, parts
    gc.collect()
    assert whole() is None
