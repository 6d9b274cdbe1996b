"""What lies on the server is changed: each wrong byte is a miss, counted, and dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import redis
from kit.redis_rig import NAMESPACE, entries, entry, key, loaded, open_store
from kit.redis_server import RedisServer, running

from agentkv.tiers.namespace import Namespace
from agentkv.tiers.redis import commands as redis_commands
from agentkv.tiers.redis.store import RedisStore
from agentkv.tiers.redis.values import HEADER_BYTES

_VALUE_BYTES = 16_000  # so that an entry has three parts


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with contextlib.closing(server.client()) as client:
        client.flushall()
        yield client


@pytest.fixture
def store(server: RedisServer, client: redis.Redis) -> Iterator[RedisStore]:
    with open_store(server.url, value_bytes=_VALUE_BYTES) as store:
        assert store.store(entries(range(4))) == [True] * 4
        yield store


def names(client: redis.Redis, number: int) -> list[bytes]:
    """An entry's keys, in the order of its parts."""
    found = client.keys(f"agentkv:1:{NAMESPACE.digest}:{{{key(number).hex()}}}:*")
    return sorted(found, key=lambda name: int(name.rsplit(b":", 1)[1].split(b"-")[0]))


def flip(client: redis.Redis, name: bytes, at: int) -> None:
    byte = client.getrange(name, at, at)
    client.setrange(name, at, bytes([byte[0] ^ 1]))


def swap(client: redis.Redis, name: bytes, other: bytes) -> None:
    values = client.get(name), client.get(other)
    client.set(name, values[1])
    client.set(other, values[0])


_DAMAGES: dict[str, tuple[Callable[[redis.Redis, list[bytes]], object], str]] = {
    "first byte of the data": (lambda c, n: flip(c, n[0], HEADER_BYTES), "checksum"),
    "last byte": (lambda c, n: flip(c, n[2], c.strlen(n[2]) - 1), "checksum"),
    "magic": (lambda c, n: flip(c, n[1], 0), "checksum"),
    "number of the write": (lambda c, n: flip(c, n[1], 16), "checksum"),
    "checksum": (lambda c, n: flip(c, n[1], 24), "checksum"),
    "empty": (lambda c, n: c.set(n[0], b""), "wrong_length"),
    "header only": (lambda c, n: c.set(n[1], c.getrange(n[1], 0, 31)), "wrong_length"),
    "half": (lambda c, n: c.set(n[1], c.getrange(n[1], 0, 8000)), "wrong_length"),
    "one byte short": (lambda c, n: c.set(n[2], c.get(n[2])[:-1]), "wrong_length"),
    "one byte long": (lambda c, n: c.append(n[0], b"x"), "wrong_length"),
    "much too long": (lambda c, n: c.set(n[0], bytes(3 << 20)), "wrong_length"),
    "zeros": (lambda c, n: c.set(n[1], bytes(c.strlen(n[1]))), "checksum"),
    "a list": (lambda c, n: (c.delete(n[1]), c.lpush(n[1], "x")), "wrong_type"),
    "parts exchanged": (lambda c, n: swap(c, n[0], n[1]), "checksum"),
    "part gone": (lambda c, n: c.delete(n[1]), "missing"),
    "first part gone": (lambda c, n: c.delete(n[0]), "missing"),
}


@pytest.mark.parametrize("what", _DAMAGES)
def test_damage_is_a_miss_and_dropped(store: RedisStore, client: redis.Redis, what: str) -> None:
    """A65, A66: cut, lengthened, flipped, of another type: a miss, and the neighbours are right."""
    damage, reason = _DAMAGES[what]
    damage(client, names(client, 1))
    assert loaded(store, range(4)) == [True, False, True, True]
    assert store.take_failures() == {reason: 1}
    if reason != "missing":
        assert names(client, 1) == []
    assert store.contains([key(1)]) == [False]
    assert store.store([entry(1)]) == [True]
    assert loaded(store, range(4)) == [True] * 4
    assert store.is_available


def test_an_enormous_value(store: RedisStore, client: redis.Redis) -> None:
    """It is not read to its end: the connection goes, the value too, and the rest is there."""
    client.set(names(client, 1)[0], bytes(20 << 20))
    assert loaded(store, [0, 1]) == [True, False]
    assert store.take_failures() == {"oversized": 1, "wrong_length": 1}
    assert names(client, 1) == []
    assert loaded(store, range(4)) == [True, False, True, True]
    assert store.is_available


def test_a_value_under_anothers_key(store: RedisStore, client: redis.Redis) -> None:
    """Sound in itself, but not what was asked for."""
    for mine, other in zip(names(client, 1), names(client, 2), strict=True):
        swap(client, mine, other)
    assert loaded(store, range(4)) == [True, False, False, True]
    assert store.take_failures() == {"checksum": 2}


def test_a_value_of_another_namespace(
    server: RedisServer, store: RedisStore, client: redis.Redis
) -> None:
    for name in names(client, 1):
        client.rename(name, name.replace(NAMESPACE.digest.encode(), b"0" * 32))
    assert loaded(store, [1]) == [False]
    for name in client.keys("*" + "0" * 32 + "*"):
        client.rename(name, name.replace(b"0" * 32, NAMESPACE.digest.encode()))
    assert loaded(store, [1]) == [True]


def test_parts_of_two_writes_are_not_mixed(store: RedisStore, client: redis.Redis) -> None:
    """Two engines may compute the same block with other rounding."""
    first = {name: client.get(name) for name in names(client, 1)}
    store.delete([key(1)])
    store.store([entry(1)])
    middle = names(client, 1)[1]
    client.set(middle, first[middle])
    assert loaded(store, [1]) == [False]
    assert store.take_failures() == {"mixed_writes": 1}
    assert names(client, 1) == []


def test_what_was_evicted_between_question_and_load(store: RedisStore, client: redis.Redis) -> None:
    """A34, A62, A79: promised, then gone: misses, counted; asked again, not promised."""
    keys = [key(number) for number in range(4)]
    assert store.contains(keys) == [True] * 4
    client.delete(*names(client, 0), names(client, 2)[1])
    assert loaded(store, range(4)) == [False, True, False, True]
    assert store.take_failures() == {"missing": 2}
    assert store.contains(keys) == [False, True, False, True]


def test_shards_of_four_ranks(server: RedisServer, client: redis.Redis) -> None:
    """A35: each rank tells what it has itself; the least of them counts."""
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(open_store(server.url, namespace=Namespace({"rank": str(rank)})))
            for rank in range(4)
        ]
        keys = [key(number) for number in range(5)]
        for rank in ranks:
            rank.store(entries(range(5)))
        ranks[2].delete([key(3)])
        assert [rank.contains(keys).count(True) for rank in ranks] == [5, 5, 4, 5]
        matched = min([*rank.contains(keys), False].index(False) for rank in ranks)
        assert matched == 3
        assert all(loaded(rank, range(matched)) == [True] * 3 for rank in ranks)


def test_a_miss_is_not_remembered(server: RedisServer, store: RedisStore) -> None:
    """A67: what another process writes after a miss is found."""
    assert store.contains([key(77)]) == [False]
    with open_store(server.url, value_bytes=_VALUE_BYTES) as other:
        other.store([entry(77)])
    assert store.contains([key(77)]) == [True]
    assert loaded(store, [77]) == [True]


def test_without_verification_these_tests_would_fail(
    store: RedisStore, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the canary notices what the checksum would have stopped."""
    monkeypatch.setattr(redis_commands, "written_as", lambda *args: 7)
    flip(client, names(client, 1)[1], HEADER_BYTES + 5)
    with pytest.raises(AssertionError, match="wrong bytes: 1"):
        loaded(store, range(4))


def test_a_failed_store_is_not_counted_as_stored(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A105: whatever raises inside, the answer is no, and the store goes on."""

    def broken(*args: object) -> bytes:
        raise RuntimeError("broken")

    before = store.usage()
    monkeypatch.setattr(redis_commands, "make_header", broken)
    assert store.store(entries(range(10, 13))) == [False] * 3
    assert store.usage() == before
    assert store.take_failures() == {"internal": 1}
    assert store.contains([key(number) for number in range(10, 13)]) == [False] * 3
    monkeypatch.undo()
    assert store.store(entries(range(10, 13))) == [True] * 3
    assert loaded(store, range(10, 13)) == [True] * 3
