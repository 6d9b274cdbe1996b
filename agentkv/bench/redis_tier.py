"""The Redis tier against a loop over bare sockets, and against LMCache's client.

What: the same bytes to one server, over as many connections; the tier is called as the connector
calls it, from as many threads. Why all of them over one server: what a server gives is its own, and
only the rest is the client's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentkv.bench.lmcache_peer import LMCACHE, LmcacheClient, why_no_lmcache
from agentkv.bench.memory import BlockMemory
from agentkv.bench.order import batches, names_of
from agentkv.bench.raw_redis import RawRedis
from agentkv.bench.rounds import BenchError, Contest, Mover, PeerError
from agentkv.bench.settings import BenchSettings
from agentkv.tiers.base import Entry
from agentkv.tiers.namespace import Namespace
from agentkv.tiers.redis.store import RedisStore
from agentkv.tiers.redis.url import Address, RedisAccess, parse_address

RAW = "raw"
_TTL_S = 3600.0  # If the bench is killed, the server forgets its values.
_CALL_TIMEOUT_S = 60.0


def redis_contest(
    settings: BenchSettings, block_bytes: int, url: str, password: str | None
) -> Contest:
    """Raises BenchError if the server cannot be used, ConfigError for a URL that is none."""
    address = parse_address(url)
    access = RedisAccess(settings.redis_username, password)
    num_blocks = settings.num_blocks(block_bytes)
    source = BlockMemory.random(num_blocks, block_bytes, settings.seed)
    target = BlockMemory(num_blocks, block_bytes)
    contest = Contest(_Redis(url, access, settings, source, target))
    prefix = f"agentkv:bench:{secrets.token_hex(8)}"
    if (reason := _why_not_bare(address)) is not None:
        contest.missing[RAW] = contest.missing[LMCACHE] = reason
        return contest
    count = settings.redis_connections

    def raw() -> Mover:
        return RawRedis(address, access, source, target, num_connections=count, prefix=prefix)

    def lmcache() -> Mover:
        return LmcacheClient(address, access, source, target, num_threads=count, prefix=prefix)

    _add(contest, RAW, raw)
    if (reason := why_no_lmcache(address)) is None:
        _add(contest, LMCACHE, lmcache)
    else:
        contest.missing[LMCACHE] = reason
    return contest


def _add(contest: Contest, name: str, connect: Callable[[], Mover]) -> None:
    try:
        contest.peers.append(connect())
    except PeerError as error:
        contest.missing[name] = str(error)


def _why_not_bare(address: Address) -> str | None:
    if address.is_tls or address.kind not in ("single", "unix"):
        return "only measured on a single server without TLS"
    return None


class _Redis:
    name = "agentkv"

    def __init__(
        self,
        url: str,
        access: RedisAccess,
        settings: BenchSettings,
        source: BlockMemory,
        target: BlockMemory,
    ) -> None:
        self._seed = settings.seed
        self._source, self._target = source, target
        self._count = settings.redis_connections
        self._store = RedisStore(
            url,
            block_bytes=source.block_bytes,
            namespace=Namespace({"bench": secrets.token_hex(8)}),
            username=access.username,
            password=access.password,
            ttl_s=_TTL_S,
            num_connections=settings.redis_connections,
            timeout_s=_CALL_TIMEOUT_S,
            call_timeout_s=_CALL_TIMEOUT_S,
            max_in_flight_bytes=max(256 << 20, source.num_bytes),
        )
        if not self._store.is_available:
            reason = self._store.state.reason
            self._store.close()
            raise BenchError(f"the Redis server cannot be used: {reason}")
        self._threads = ThreadPoolExecutor(self._count, "bench-redis-tier")
        self._round = 0
        self._keys: list[bytes] = []

    def store(self) -> float:
        self._store.delete(self._keys)
        self._round += 1
        names = names_of(self._seed, self._round, self._source.num_blocks)
        self._keys = [bytes.fromhex(name) for name in names]
        return self._run(self._store.store, self._source, "take")

    def load(self) -> float:
        self._target.wipe()
        seconds = self._run(self._store.load, self._target, "give")
        if not self._target.equals(self._source):
            raise BenchError("the Redis tier gave other bytes back")
        return seconds

    def facts(self) -> Mapping[str, Any]:
        return {"connections": self._count, "threads": self._count}

    def close(self) -> None:
        self._store.clear()
        self._store.close()
        self._threads.shutdown()

    def _run(
        self,
        move: Callable[[Sequence[Entry]], list[bool]],
        memory: BlockMemory,
        what: str,
    ) -> float:
        views = memory.views()
        parts = [
            [Entry(self._keys[i], views[i]) for i in part]
            for part in batches(range(memory.num_blocks), self._count)
        ]
        began_s = time.perf_counter()
        answers = list(self._threads.map(move, parts))
        seconds = time.perf_counter() - began_s
        if not all(all(answer) for answer in answers):
            failures = dict(self._store.take_failures())
            raise BenchError(f"the Redis tier did not {what} all blocks: {failures}")
        return seconds
