"""The LMCache tier against LMCache's own server."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.lmcache_server import (
    BLOCK_BYTES,
    Server,
    Stores,
    blank,
    filled,
    is_same,
    keys_of,
    lmcache_python,
    own_namespace,
)

from agentkv.errors import ConfigError
from agentkv.tiers.base import TierStore
from agentkv.tiers.lmcache import wire as lmcache_wire
from agentkv.tiers.lmcache.store import HEADER_BYTES, LMCacheStore
from agentkv.tiers.lmcache.wire import Command, KeySpace, Link, request


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("lmcache") / "server.log")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def make() -> Iterator[Stores]:
    stores = Stores()
    yield stores
    for store in stores.made:
        store.close()


@pytest.fixture
def store(server: Server, make: Stores) -> LMCacheStore:
    return make(server)


def raw_link(server: Server) -> Link:
    return Link("127.0.0.1", server.port, 60.0, time.monotonic() + 60.0)


def raw_value(link: Link, name: bytes) -> bytearray:
    link.send([request(Command.GET, name)])
    value = bytearray(link.reply() or 0)
    link.fill(memoryview(value))
    return value


def overwrite(server: Server, name: bytes, value: bytes) -> None:
    """As anybody who reaches the server may do."""
    link = raw_link(server)
    link.send([request(Command.PUT, name, len(value)), value, request(Command.EXIST, name)])
    assert link.reply() is not None
    link.close()


def name_of(store: LMCacheStore, key: bytes) -> bytes:
    return store._keys.name(key)


# --- what it keeps ---


@pytest.mark.parametrize("num_bytes", [1, 17, 4096, BLOCK_BYTES, 3 << 20])
def test_bytes_come_back_as_they_were(server: Server, make: Stores, num_bytes: int) -> None:
    store: TierStore = make(server, block_bytes=num_bytes)
    keys = [*keys_of(5), b"", b"\0", b"\0\0", bytes(36), b"\xff" * 36]
    entries = filled(keys, num_bytes)
    assert not any(store.contains(keys))
    assert store.load(blank(keys, num_bytes)) == [False] * len(keys)
    assert store.store(entries) == [True] * len(keys)
    assert store.contains(keys) == [True] * len(keys)
    loaded = blank(keys, num_bytes)
    assert store.load(loaded) == [True] * len(keys)
    assert is_same(entries, loaded)
    assert store.take_failures() == {}


def test_more_than_fits_one_window(store: LMCacheStore) -> None:
    keys = keys_of(300)
    entries = filled(keys)
    assert all(store.store(entries))
    others = keys_of(300)
    mixed = [key for pair in zip(keys, others, strict=True) for key in pair]
    assert store.contains(mixed) == [True, False] * 300
    loaded = blank(mixed)
    assert store.load(loaded) == [True, False] * 300
    assert is_same(entries, loaded[::2])
    usage = store.usage()
    assert (usage.num_entries, usage.used_bytes) == (300, 300 * (BLOCK_BYTES + HEADER_BYTES))


def test_engines_of_one_namespace_share_and_others_do_not(server: Server, make: Stores) -> None:
    keys = keys_of(3)
    entries = filled(keys)
    assert all(make(server).store(entries))
    loaded = blank(keys)
    assert all(make(server).load(loaded))
    assert is_same(entries, loaded)
    other = make(server, namespace=own_namespace())
    assert not any(other.contains(keys)) and not any(other.load(blank(keys)))


def test_what_is_there_is_not_written_again(store: LMCacheStore) -> None:
    keys = keys_of(2)
    first = filled(keys)
    assert all(store.store(first))
    assert all(store.store(filled(keys)))
    loaded = blank(keys)
    assert all(store.load(loaded)) and is_same(first, loaded)


def test_an_entry_of_another_size_is_refused(store: LMCacheStore) -> None:
    good, short = filled(keys_of(1))[0], filled(keys_of(1), BLOCK_BYTES - 1)[0]
    assert store.store([short, good]) == [False, True]
    assert store.load([short, blank([good.key])[0]]) == [False, True]
    assert store.take_failures() == {"wrong_size": 2}


def test_many_threads_at_once(store: LMCacheStore) -> None:
    wrong: list[bytes] = []

    def work() -> None:
        for _ in range(10):
            keys = keys_of(8)
            entries, loaded = filled(keys), blank(keys)
            if not (all(store.store(entries)) and all(store.load(loaded))):
                wrong.append(b"missing")
            elif not is_same(entries, loaded):
                wrong.append(b"other bytes")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.take_failures() == {}


# --- what it gives up ---


def test_deleted_entries_are_gone_and_can_be_stored_again(store: LMCacheStore) -> None:
    keys = keys_of(4)
    entries = filled(keys)
    store.store(entries)
    assert store.delete([keys[0], keys[2], os.urandom(36)]) == 2
    assert store.delete([keys[0]]) == 0
    assert store.contains(keys) == [False, True, False, True]
    assert store.load(blank(keys)) == [False, True, False, True]
    assert store.usage().num_entries == 2
    assert all(store.store(entries))
    loaded = blank(keys)
    assert all(store.load(loaded)) and is_same(entries, loaded)


def test_what_another_engine_deleted_is_a_miss_and_can_be_stored_again(
    server: Server, make: Stores
) -> None:
    first, second = make(server), make(server)
    keys = keys_of(2)
    first.store(filled(keys))
    second.delete(keys)
    assert first.load(blank(keys)) == [False, False]
    assert first.contains(keys) == [False, False]
    entries, loaded = filled(keys), blank(keys)
    assert all(first.store(entries)) and all(first.load(loaded)) and is_same(entries, loaded)
    assert first.take_failures() == {}


def test_the_oldest_make_room(server: Server, make: Stores) -> None:
    store = make(server, capacity_bytes=4 * (BLOCK_BYTES + HEADER_BYTES) + 100)
    keys = keys_of(6)
    assert all(store.store(filled(keys[:4])))
    store.touch([keys[0]])
    assert all(store.load(blank([keys[1]])))
    assert all(store.store(filled(keys[4:])))
    assert store.contains(keys) == [True, True, False, False, True, True]
    assert store.usage().num_entries == 4
    many = keys_of(9)
    answers = store.store(filled(many))
    assert sum(answers) == 4 == sum(store.contains(many))
    assert answers == store.contains(many)


def test_after_clear_nothing_from_before_is_found(server: Server, make: Stores) -> None:
    first, second = make(server), make(server)
    keys = keys_of(4)
    first.store(filled(keys[:2]))
    second.store(filled(keys[2:]))
    first.clear()
    assert first.usage().num_entries == 0
    assert not any(first.contains(keys)) and not any(first.load(blank(keys)))
    assert second.load(blank(keys)) == [False, False, True, True], "memory was not given back"
    entries, loaded = filled(keys), blank(keys)
    assert all(first.store(entries)) and all(first.load(loaded)) and is_same(entries, loaded)


# --- what it refuses ---


@pytest.mark.parametrize("place", [0, 8, 16, 24, HEADER_BYTES, HEADER_BYTES + 77, -1])
def test_a_changed_byte_is_refused_and_the_entry_dropped(
    server: Server, store: LMCacheStore, place: int
) -> None:
    key, other = keys_of(2)
    store.store(filled([key, other]))
    link = raw_link(server)
    value = raw_value(link, name_of(store, key))
    link.close()
    overwrite(server, name_of(store, key), value)
    assert store.load(blank([key])) == [True], "unchanged, it must be taken"
    value[place] ^= 1
    overwrite(server, name_of(store, key), value)
    assert store.load(blank([key, other])) == [False, True]
    assert store.take_failures() == {"damaged": 1}
    assert store.contains([key, other]) == [False, True]
    assert store.load(blank([key])) == [False]
    assert store.take_failures() == {}, "the damaged entry is still there"


def test_another_keys_value_is_refused(server: Server, store: LMCacheStore) -> None:
    keys = keys_of(2)
    store.store(filled(keys))
    link = raw_link(server)
    value = raw_value(link, name_of(store, keys[0]))
    link.close()
    overwrite(server, name_of(store, keys[1]), value)
    assert store.load(blank(keys)) == [True, False]
    assert store.take_failures() == {"damaged": 1}


@pytest.mark.parametrize("num_bytes", [1, HEADER_BYTES + BLOCK_BYTES - 1, 3_000_000])
def test_a_value_of_another_length_is_refused(
    server: Server, store: LMCacheStore, num_bytes: int
) -> None:
    key, other = keys_of(2)
    store.store(filled([key, other]))
    overwrite(server, name_of(store, key), os.urandom(num_bytes))
    assert store.load(blank([key, other])) == [False, True]
    assert store.take_failures() == {"damaged": 1}


def test_what_does_not_fit_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="hold 0 KV blocks"):
        LMCacheStore("h", 1, block_bytes=100, namespace=own_namespace(), capacity_bytes=131)
    with pytest.raises(ConfigError, match="do not fit its protocol"):
        LMCacheStore("h", 1, block_bytes=1 << 31, namespace=own_namespace())


# --- whether LMCache means the same by it ---

READ_WITH_LMCACHE = """
import socket, sys
import torch
from lmcache.utils import parse_cache_key
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.protocol import ClientCommand, ClientMetaMessage, ServerMetaMessage
port, name, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
message = ClientMetaMessage(
    ClientCommand.GET, parse_cache_key(name), 0, MemoryFormat.BINARY, torch.uint8, torch.Size([0])
)
with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rb") as replies:
    link.sendall(message.serialize())
    reply = ServerMetaMessage.deserialize(replies.read(ServerMetaMessage.packlength()))
    open(path, "wb").write(replies.read(reply.length))
print(ClientMetaMessage.packlength(), ServerMetaMessage.packlength())
print(reply.fmt.name, reply.dtype, list(reply.shape))
"""


def test_lmcaches_own_messages_read_what_we_wrote(
    server: Server, store: LMCacheStore, tmp_path: Path
) -> None:
    [entry] = filled(keys_of(1))
    assert store.store([entry]) == [True]
    path = tmp_path / "value"
    arguments = [str(server.port), name_of(store, entry.key).decode(), str(path)]
    output = subprocess.run(
        [lmcache_python(), "-c", READ_WITH_LMCACHE, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert path.read_bytes()[HEADER_BYTES:] == entry.data
    num_bytes = HEADER_BYTES + BLOCK_BYTES
    assert output.splitlines()[-2:] == [
        f"{lmcache_wire._REQUEST.size} {lmcache_wire._REPLY.size}",
        f"BINARY torch.uint8 [{num_bytes}, 0, 0, 0]",
    ]


def test_names_of_different_keys_differ_as_numbers() -> None:
    names = KeySpace("0" * 32)
    keys = [b"", b"\0", b"\0\0", b"\1", b"\0\1", b"\1\0"]
    numbers = {int(names.name(key).split(b"@")[3], 16) for key in keys}
    assert len(numbers) == len(keys)
    assert len(KeySpace("0" * 32 + "-01234567").name(bytes(36))) <= 150
