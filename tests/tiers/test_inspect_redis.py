"""What lies on a real Redis server or cluster, and the deletion of namespaces from it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from kit.redis_rig import BLOCK_BYTES, NAMESPACE, entries, loaded, open_store
from kit.redis_server import cluster, running

from agentkv.errors import ConfigError
from agentkv.tiers.namespace import Namespace
from agentkv.tiers.redis.inspect import StoreError, redis_view
from agentkv.tiers.redis.url import RedisAccess

OTHER = Namespace({"model": "other", "kv_dtype": "float16"})
ANYBODY = RedisAccess()


def test_namespaces_are_told_with_entries_and_bytes(tmp_path: Path) -> None:
    with (
        running(tmp_path) as server,
        open_store(server.url, value_bytes=8192) as store,
        open_store(server.url, namespace=OTHER, is_inner=True) as other,
        contextlib.closing(server.client()) as client,
    ):
        assert all(store.store(entries(range(1200)[:30])))
        assert all(other.store(entries(range(5))))
        client.set("mine", "x")
        client.set("agentkv:1:nonsense", "x")
        with redis_view(server.url, ANYBODY) as view:
            found = {each.digest: each for each in view.namespaces()}
            (memory,) = view.memory()
        assert {d: (n.num_entries, n.entry_bytes) for d, n in found.items()} == {
            NAMESPACE.digest: (30, 30 * BLOCK_BYTES),
            OTHER.digest: (5, 5 * BLOCK_BYTES),
        }
        assert found[OTHER.digest].manifest == OTHER
        assert memory.used_bytes > 35 * BLOCK_BYTES and memory.max_bytes == 0


def test_a_deleted_namespace_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    with (
        running(tmp_path) as server,
        open_store(server.url) as store,
        open_store(server.url, namespace=OTHER, is_inner=True) as other,
        contextlib.closing(server.client()) as client,
    ):
        assert all(store.store(entries(range(4)))) and all(other.store(entries(range(4))))
        client.set("mine", "x")
        with redis_view(server.url, ANYBODY) as view:
            view.delete([OTHER.digest])
            assert [each.digest for each in view.namespaces()] == [NAMESPACE.digest]
        assert loaded(store, range(4)) == [True] * 4
        assert loaded(other, range(4)) == [False] * 4
        assert client.get("mine") == b"x"
        assert client.smembers("agentkv:1:namespaces") == {NAMESPACE.digest.encode()}


def test_a_clusters_servers_are_all_looked_at(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers, open_store(servers[0].url) as store:
        assert all(store.store(entries(range(20))))
        with redis_view(servers[1].url, ANYBODY) as view:
            (namespace,) = view.namespaces()
            assert (namespace.num_entries, namespace.manifest) == (20, NAMESPACE)
            assert len(view.memory()) == 3
            view.delete([NAMESPACE.digest])
            assert view.namespaces() == []


def test_a_server_that_cannot_be_used_is_one_line_without_secrets(tmp_path: Path) -> None:
    with running(tmp_path, requirepass="right-one") as server:
        with (
            pytest.raises(StoreError, match=r"wants a password|refuses the user") as caught,
            redis_view(server.url, RedisAccess(password="wrong-secret")),
        ):
            pass
        assert "wrong-secret" not in str(caught.value)
        with redis_view(server.url, RedisAccess(password="right-one")) as view:
            assert view.namespaces() == []
    with pytest.raises(StoreError, match="cannot be used"), redis_view(server.url, ANYBODY):
        pass


def test_a_url_that_is_none_is_a_config_error() -> None:
    with pytest.raises(ConfigError), redis_view("http://host", ANYBODY):
        pass
