"""Keys, parts, headers and addresses of the Redis tier, without a server."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.redis_rig import NAMESPACE
from kit.redis_server import make_certificates

from agentkv.errors import ConfigError
from agentkv.tiers.redis.store import RedisStore
from agentkv.tiers.redis.url import RedisAccess, parse_address
from agentkv.tiers.redis.values import (
    DEFAULT_VALUE_BYTES,
    HEADER_BYTES,
    KeySpace,
    Part,
    make_header,
    split,
    written_as,
)

KIB, MIB = 1 << 10, 1 << 20


@given(st.integers(1, 64 * MIB), st.integers(1024, 8 * MIB))
def test_parts_cover_an_entry_and_keep_to_the_limit(num_bytes: int, value_bytes: int) -> None:
    """A78: no value is over the limit, and none is missing a byte."""
    parts = split(num_bytes, value_bytes)
    assert parts[0].start == 0 and parts[-1].stop == num_bytes
    for before, after in pairwise(parts):
        assert before.stop == after.start
    assert [part.number for part in parts] == list(range(len(parts)))
    assert all(0 < part.num_bytes + HEADER_BYTES <= value_bytes for part in parts)


@pytest.mark.parametrize("num_bytes", [512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 3 * MIB])
def test_no_value_is_just_over_what_an_allocator_hands_out(num_bytes: int) -> None:
    for part in split(num_bytes, DEFAULT_VALUE_BYTES):
        needed = part.num_bytes + HEADER_BYTES + 64
        if needed > 256 * KIB:
            step = 1 << ((needed - 1).bit_length() - 3)
            assert -needed % step <= needed // 8
    assert len(split(num_bytes, DEFAULT_VALUE_BYTES)) <= num_bytes // (4 * MIB) + 2


def test_small_entries_are_one_value() -> None:
    assert split(64 * KIB, DEFAULT_VALUE_BYTES) == (Part(0, 0, 64 * KIB),)


def test_keys_share_a_slot_and_name_the_namespace() -> None:
    parts = split(3000, 1024)
    keys = KeySpace("d" * 32, parts).part_keys(b"\x01\xff")
    assert len(set(keys)) == len(parts) > 1
    assert {key[key.index(b"{") : key.index(b"}") + 1] for key in keys} == {b"{01ff}"}
    assert all(key.startswith(b"agentkv:1:" + b"d" * 32 + b":") for key in keys)


@settings(max_examples=200)
@given(st.integers(0, HEADER_BYTES * 8 - 1))
def test_any_flipped_bit_of_a_header_is_noticed(bit: int) -> None:
    data = memoryview(b"kv" * 50)
    header = bytearray(make_header(b"k", Part(0, 0, 100), 1, 100, 7, data))
    assert written_as(b"k", Part(0, 0, 100), 1, 100, header, data) == 7
    header[bit // 8] ^= 1 << bit % 8
    assert written_as(b"k", Part(0, 0, 100), 1, 100, header, data) is None


@given(st.integers(0, 799))
def test_any_flipped_bit_of_the_data_is_noticed(bit: int) -> None:
    data = bytearray(b"kv" * 50)
    header = bytearray(make_header(b"k", Part(0, 0, 100), 1, 100, 7, memoryview(data)))
    data[bit // 8] ^= 1 << bit % 8
    assert written_as(b"k", Part(0, 0, 100), 1, 100, header, memoryview(data)) is None


def test_a_value_belongs_to_one_key_and_part() -> None:
    data = memoryview(b"kv" * 50)
    part = Part(0, 0, 100)
    header = bytearray(make_header(b"k", part, 1, 100, 7, data))
    assert written_as(b"K", part, 1, 100, header, data) is None
    assert written_as(b"k", Part(1, 100, 200), 1, 100, header, data) is None
    assert written_as(b"k", part, 2, 100, header, data) is None
    assert written_as(b"k", part, 1, 200, header, data) is None


@pytest.mark.parametrize(
    ("url", "kind", "text"),
    [
        ("redis://h", "single", "h:6379"),
        ("valkey://h:7/3", "single", "h:7"),
        ("rediss://[::1]:7?db=3", "single", "::1:7"),
        ("unix:///run/redis.sock?db=2", "unix", "/run/redis.sock"),
        ("sentinel://a:1,b/kv/3", "sentinel", "a:1, b:26379 (kv)"),
        ("rediss+sentinel://a/kv", "sentinel", "a:26379 (kv)"),
        ("redis+cluster://a:1,b:2", "cluster", "a:1, b:2"),
    ],
)
def test_addresses(url: str, kind: str, text: str) -> None:
    address = parse_address(url)
    assert (address.kind, str(address)) == (kind, text)
    assert address.is_tls == url.startswith("rediss")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h", "scheme"),
        ("h:6379", "scheme"),
        ("", "scheme"),
        ("redis://", "host"),
        ("redis://h:x", "host"),
        ("redis://h:99999", "host"),
        ("redis://h:0", "host"),
        ("redis://a,b", "several"),
        ("redis://h/x", "number"),
        ("redis://h/1/2", "too much"),
        ("redis://h?timeout=3", "timeout"),
        ("redis://[::1", "cannot be read"),
        ("unix://run/redis.sock", "unix:///"),
        ("sentinel://h", "service"),
        ("redis+cluster://h/3", "database 0"),
        ("redis://u:hunter2@h", "apart"),
        ("redis://:hunter2@h:x", "apart"),
    ],
)
def test_a_wrong_address_is_told_without_secrets(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        RedisStore(url, block_bytes=1, namespace=NAMESPACE)
    assert "hunter2" not in str(caught.value)


def test_tls_files_that_cannot_serve(tmp_path: Path) -> None:
    """A73: told at start, with what to mend."""
    files = make_certificates(tmp_path / "files")
    for options, says in (
        ({"ca_file": str(tmp_path / "none.pem")}, "ca_file: .*none.pem.*No such file"),
        ({"ca_file": str(files.key)}, "ca_file"),
        ({"cert_file": str(files.ca), "key_file": str(files.key)}, "cert_file"),
        ({"key_file": str(files.key)}, "cert_file: missing"),
    ):
        with pytest.raises(ConfigError, match=says):
            RedisStore("rediss://127.0.0.1:1", block_bytes=1, namespace=NAMESPACE, **options)
    with pytest.raises(ConfigError, match="rediss://"):
        RedisStore("redis://127.0.0.1:1", block_bytes=1, namespace=NAMESPACE, ca_file=str(files.ca))


@pytest.mark.parametrize(
    "options",
    [
        {"ttl_s": 0},
        {"num_connections": 0},
        {"value_bytes": 10},
        {"value_bytes": 1 << 30},
        {"timeout_s": -1},
        {"max_in_flight_bytes": 0},
        {"max_retry_s": 0.1},
    ],
)
def test_wrong_numbers_are_told(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        RedisStore("redis://127.0.0.1:1", block_bytes=1, namespace=NAMESPACE, **options)  # type: ignore[arg-type]


def test_no_secret_in_a_repr() -> None:
    access = RedisAccess(username="u", password="hunter2", sentinel_password="hunter2")
    assert "hunter2" not in repr(access)
