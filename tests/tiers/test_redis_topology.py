"""Sentinel and cluster: the tier follows the data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from kit.redis_rig import blank, entries, entry, fill, key, loaded, open_store
from kit.redis_server import RedisServer, cluster, sentinel, wait_until

from agentkv.errors import ConfigError
from agentkv.tiers.namespace import Namespace

_NUM = 40


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as masters:
        yield masters


@pytest.fixture(params=["named", "recognised"])
def url(masters: list[RedisServer], request: pytest.FixtureRequest) -> str:
    """The cluster by its own scheme, and by that of a lone server."""
    with contextlib.ExitStack() as stack:
        for master in masters:
            stack.enter_context(contextlib.closing(master.client())).flushall()
    if request.param == "named":
        return "redis+cluster://" + ",".join(f"127.0.0.1:{m.port}" for m in masters[:2])
    return masters[1].url


def num_keys(masters: list[RedisServer]) -> list[int]:
    counts = []
    for master in masters:
        with contextlib.closing(master.client()) as client:
            counts.append(client.dbsize())
    return counts


def test_entries_spread_and_come_back(masters: list[RedisServer], url: str) -> None:
    with open_store(url, value_bytes=16_000) as store:
        assert store.store(entries(range(_NUM))) == [True] * _NUM
        assert min(num_keys(masters)) >= 3
        assert store.contains([key(i) for i in range(_NUM + 1)]) == [True] * _NUM + [False]
        assert loaded(store, range(_NUM)) == [True] * _NUM
        store.touch([key(1)])
        assert store.delete([key(i) for i in range(5)]) == 5
        with open_store(url, namespace=Namespace({"model": "other"})) as other:
            assert [n.fields["model"] for n in other.other_namespaces()] == ["tiny"]
        store.clear()
        assert sum(num_keys(masters)) <= 3  # the list of namespaces
        assert loaded(store, range(_NUM)) == [False] * _NUM
        assert store.take_failures() == {"missing": _NUM}


def test_a_slot_that_moves(masters: list[RedisServer], url: str) -> None:
    """MOVED: the topology is read again, and the call still gets its entry."""
    with open_store(url) as store, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(m.client())) for m in masters]
        ids = [client.cluster("MYID") for client in clients]
        store.store(entries(range(_NUM)))
        name = next(n for n in clients[0].keys("*{*"))
        slot = clients[0].cluster("KEYSLOT", name)
        number = next(i for i in range(_NUM) if key(i).hex().encode() in name)
        clients[1].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        clients[0].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        for moved in clients[0].execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
            clients[0].execute_command("MIGRATE", "127.0.0.1", masters[1].port, moved, 0, 5000)
        assert loaded(store, [number]) == [False]  # ASK: a miss for as long as it lasts
        assert store.take_failures()["ask"] == 1
        for client in clients:
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
        assert loaded(store, [number]) == [True]
        assert all(loaded(store, range(_NUM)))
        assert store.is_available


def test_a_node_that_dies_and_comes_back(tmp_path: Path) -> None:
    node_timeout_ms = 3000  # For so long the other two still answer.
    settings = {"cluster_require_full_coverage": "yes"}
    with cluster(tmp_path, node_timeout_ms=node_timeout_ms, **settings) as masters:
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{m.port}" for m in masters)
        options = {"timeout_s": 0.5, "connect_timeout_s": 0.5, "call_timeout_s": 1.0}
        fill(url, range(_NUM))
        with open_store(url, **options) as store:
            wait_until(lambda: all(loaded(store, range(_NUM))))
            masters[2].kill()
            result = loaded(store, range(_NUM))
            assert 0 < result.count(True) < _NUM
            wait_until(lambda: not store.is_available)
            assert store.load([blank(1)]) == [False]
            masters[2].start()
            wait_until(lambda: store.is_available)
            wait_until(lambda: all(store.store(entries(range(_NUM)))))
            wait_until(lambda: all(loaded(store, range(_NUM))))


def test_a_cluster_has_one_database() -> None:
    with pytest.raises(ConfigError, match="database 0"), open_store("redis+cluster://h/3"):
        pass


def test_a_sentinel_names_the_new_master(tmp_path: Path) -> None:
    """A78: the tier follows a fail-over, and stores go to the new master."""
    with sentinel(tmp_path, down_after_ms=1500) as (master, replica, port):
        options = {"timeout_s": 0.5, "connect_timeout_s": 0.5, "call_timeout_s": 1.0}
        url = f"redis+sentinel://127.0.0.1:{port}/kv"
        fill(url, range(5))
        with open_store(url, **options) as store:
            with contextlib.closing(replica.client()) as client:
                wait_until(lambda: len(client.keys("*{*")) == 5)
            master.kill()
            loaded(store, range(5))
            # A Sentinel that was held up itself does nothing for half a minute.
            wait_until(lambda: store.store([entry(9)]) == [True], timeout_s=120)
            wait_until(lambda: all(loaded(store, [*range(5), 9])))
            with contextlib.closing(replica.client()) as client:
                assert client.role()[0] == b"master"
                assert len(client.keys("*{*")) == 6


def test_a_master_that_became_a_replica(tmp_path: Path) -> None:
    """READONLY on a connection that still stands: the Sentinel is asked again at once."""
    with (
        sentinel(tmp_path, down_after_ms=60_000) as (master, replica, port),
        open_store(f"redis+sentinel://127.0.0.1:{port}/kv") as store,
        contextlib.closing(master.client()) as client,
    ):
        assert store.store([entry(1)]) == [True]
        with contextlib.closing(replica.client()) as other:
            wait_until(lambda: len(other.keys("*{*")) == 1)
        _ask_for_failover(port)
        wait_until(lambda: client.role()[0] == b"slave", timeout_s=120)
        assert store.store(entries(range(2, 5))) == [True] * 3
        assert loaded(store, range(1, 5)) == [True] * 4
        assert store.take_failures() == {}


def _ask_for_failover(port: int) -> None:
    """As soon as the Sentinel knows the replica well enough."""

    def is_begun() -> bool:
        with contextlib.suppress(redis.ResponseError):
            watcher.execute_command("SENTINEL FAILOVER", "kv")
            return True
        return False

    with contextlib.closing(redis.Redis("127.0.0.1", port)) as watcher:
        wait_until(is_begun)


def test_no_sentinel_there(tmp_path: Path) -> None:
    with open_store("sentinel://127.0.0.1:1/kv") as store:
        assert not store.is_available
        assert store.state.reason == "no_master"
