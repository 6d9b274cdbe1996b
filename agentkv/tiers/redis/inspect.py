"""What lies on a Redis server, and the deletion of whole namespaces from it.

What: namespaces with their manifests, counted by the names of their keys: these say how many bytes
each value holds, so no value is read. Why engines are not told: a server does not know who shares
a namespace. Where: `agentkv store`; connects as the tier does, clusters and Sentinels included.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from agentkv.errors import AgentKVError
from agentkv.tiers.namespace import Namespace
from agentkv.tiers.redis.calls import Calls
from agentkv.tiers.redis.commands import Command
from agentkv.tiers.redis.options import RedisOptions
from agentkv.tiers.redis.replies import ErrorReply, LinkLost, Reply
from agentkv.tiers.redis.sweep import sweep
from agentkv.tiers.redis.url import RedisAccess, parse_address
from agentkv.tiers.redis.values import DEFAULT_VALUE_BYTES, NAMESPACES_KEY, manifest_key

_T = TypeVar("_T")
_DEADLINE_S = 600.0
_KEYS_PER_SCAN = 1000
_PATTERN = b"agentkv:1:*"
_ENTRY_KEY = re.compile(rb"agentkv:1:([0-9a-f]{32}):\{[0-9a-f]+\}:(\d+)-(\d+)")
_MANIFEST_KEY = re.compile(rb"agentkv:1:manifest:([0-9a-f]{32})")
_MEMORY_FIELDS = ("used_memory", "maxmemory", "maxmemory_policy")


class StoreError(AgentKVError):
    """A server cannot be used; the text says why, without secrets."""


@dataclass(slots=True)
class RedisNamespace:
    """One model's and layout's entries, as the keys on the server tell."""

    digest: str
    manifest: Namespace | None = None
    num_entries: int = 0
    entry_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Of one server: bytes used and allowed (0: no limit), and what it evicts then."""

    server: str
    used_bytes: int
    max_bytes: int
    policy: str


class RedisView:
    """An open connection. Its calls block and raise StoreError."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def namespaces(self) -> list[RedisNamespace]:
        """Goes over all keys of the servers, in steps that hold nobody up."""
        found: dict[str, RedisNamespace] = {}
        for key in self._keys():
            if match := _ENTRY_KEY.fullmatch(key):
                digest, start, stop = match[1].decode(), int(match[2]), int(match[3])
                namespace = found.setdefault(digest, RedisNamespace(digest))
                namespace.num_entries += start == 0
                namespace.entry_bytes += stop - start
            elif match := _MANIFEST_KEY.fullmatch(key):
                found.setdefault(match[1].decode(), RedisNamespace(match[1].decode()))
        for namespace in found.values():
            namespace.manifest = self._manifest(namespace.digest)
        return sorted(found.values(), key=lambda each: each.digest)

    def memory(self) -> list[ServerMemory]:
        """What each server says of its memory."""
        return [self._memory(server) for server in _guarded(self._calls.servers)]

    def delete(self, digests: Collection[str]) -> None:
        """Drops all entries of these namespaces, and their manifests."""
        for digest in digests:
            pattern = b"agentkv:1:%s:*" % digest.encode()
            _guarded(functools.partial(sweep, self._calls, pattern, _end_s()))
            key = manifest_key(digest)
            self._ask(Command("UNLINK", key, key=key))
            self._ask(Command("SREM", NAMESPACES_KEY, digest, key=NAMESPACES_KEY))

    def _keys(self) -> Iterator[bytes]:
        """SCAN may name a key twice; each is given once."""
        seen: set[bytes] = set()
        for server in _guarded(self._calls.servers):
            cursor = b"0"
            while True:
                scan = Command("SCAN", cursor, "MATCH", _PATTERN, "COUNT", _KEYS_PER_SCAN)
                cursor, keys = _scanned(self._ask(scan, server))
                new = [key for key in keys if key not in seen]
                seen.update(new)
                yield from new
                if cursor == b"0":
                    break

    def _manifest(self, digest: str) -> Namespace | None:
        key = manifest_key(digest)
        content = self._ask(Command("GET", key, key=key))
        return Namespace.from_manifest(content) if isinstance(content, bytes) else None

    def _memory(self, server: str) -> ServerMemory:
        reply = self._ask(Command("INFO", "memory"), server)
        text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""
        facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        used, limit, policy = (facts.get(name, "0") for name in _MEMORY_FIELDS)
        return ServerMemory(server, int(used), int(limit), policy)

    def _ask(self, command: Command, server: str | None = None) -> Reply:
        if server is None:
            _guarded(lambda: self._calls.run([command], _end_s()))
        else:
            _guarded(lambda: self._calls.run_on(server, [command], _end_s()))
        if isinstance(command.reply, ErrorReply):
            raise StoreError(f"the Redis server refuses: {command.reply.trouble.text}")
        return command.reply


@contextmanager
def redis_view(url: str, access: RedisAccess) -> Iterator[RedisView]:
    """Raises ConfigError for a URL that is none, StoreError if the server cannot be used."""
    options = RedisOptions(
        ttl_s=1.0,
        value_bytes=DEFAULT_VALUE_BYTES,
        connect_timeout_s=5.0,
        timeout_s=30.0,
        call_timeout_s=_DEADLINE_S,
        num_connections=1,
        max_in_flight_bytes=1,
        first_retry_s=1.0,
        max_retry_s=1.0,
    )
    calls = Calls(parse_address(url), access, options)
    try:
        trouble = calls.check(_end_s())
        if trouble is not None:
            raise StoreError(f"the Redis server cannot be used: {trouble.text}")
        yield RedisView(calls)
    finally:
        calls.close()


def _end_s() -> float:
    return time.monotonic() + _DEADLINE_S


def _guarded(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except LinkLost as error:
        raise StoreError(f"the Redis server cannot be used: {error.trouble.text}") from None


def _scanned(reply: Reply) -> tuple[bytes, list[bytes]]:
    if isinstance(reply, list) and len(reply) == 2:
        cursor, keys = reply
        if isinstance(cursor, bytes) and isinstance(keys, list):
            return cursor, [key for key in keys if isinstance(key, bytes)]
    return b"0", []
