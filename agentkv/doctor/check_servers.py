"""Whether the servers of the remote tiers answer, and how quickly."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator

from agentkv.config import AgentKVConfig
from agentkv.config_tiers import LMCacheConfig, RedisConfig, host_and_port
from agentkv.config_values import format_size
from agentkv.doctor.checks import Check, fail, ok, warn
from agentkv.errors import AgentKVError
from agentkv.tiers.lmcache import wire
from agentkv.tiers.redis.inspect import RedisView, redis_view
from agentkv.tiers.redis.url import RedisAccess

_NUM_PINGS = 5
_SLOW_S = 0.02
_KEEPS_ALL = ("noeviction", "")


def server_checks(config: AgentKVConfig) -> Iterator[Check]:
    """Of the tiers that are on; and whether engines would find each other's KV there."""
    if config.redis.is_on:
        yield _redis_check(config.redis)
    if config.lmcache.is_on:
        yield _lmcache_check(config.lmcache)
    yield hash_check(
        is_shared=config.redis.is_on or config.lmcache.is_on or config.ssd.is_on,
        seed=os.environ.get("PYTHONHASHSEED"),
    )


def _redis_check(config: RedisConfig) -> Check:
    assert config.url is not None
    access = RedisAccess(
        username=config.username,
        password=os.environ.get(config.password_env),
        ca_file=_text(config.ca_file),
        cert_file=_text(config.cert_file),
        key_file=_text(config.key_file),
    )
    try:
        with redis_view(config.url, access) as view:
            ping_s = _median_s(view.memory)
            return _redis_answer(view, ping_s)
    except AgentKVError as error:
        mend = f"look at redis.url, the network and ${config.password_env}"
        return fail("redis", str(error), mend)


def _redis_answer(view: RedisView, ping_s: float) -> Check:
    memory = view.memory()
    used = sum(each.used_bytes for each in memory)
    limits = [each.max_bytes for each in memory]
    room = "no limit" if 0 in limits else f"limit {format_size(sum(limits))}"
    said = f"answers in {ping_s * 1e3:.1f} ms, {format_size(used)} used, {room}"
    if ping_s > _SLOW_S:
        return warn("redis", said, "a server nearer by: each lookup of a turn waits for it")
    if 0 in limits:
        return warn("redis", said, "set maxmemory and maxmemory-policy allkeys-lru")
    if any(each.policy in _KEEPS_ALL for each in memory):
        return warn("redis", f"{said}, evicts nothing", "maxmemory-policy allkeys-lru")
    return ok("redis", said)


def _lmcache_check(config: LMCacheConfig) -> Check:
    assert config.url is not None
    host, port = host_and_port(config.url)

    def connect() -> None:
        wire.Link(host, port, config.timeout_s, time.monotonic() + config.timeout_s).close()

    try:
        ping_s = _median_s(connect)
    except wire.LinkLost as error:
        return fail("lmcache", f"{host}:{port}: {error}", "look at lmcache.url and the server")
    said = f"connects and answers in {ping_s * 1e3:.1f} ms"
    if config.capacity_bytes is None:
        return warn("lmcache", said, "set lmcache.capacity_bytes: that server evicts nothing")
    return ok("lmcache", said)


def _median_s(call: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_NUM_PINGS):
        start_s = time.monotonic()
        call()
        times_s.append(time.monotonic() - start_s)
    return statistics.median(times_s)


def hash_check(*, is_shared: bool, seed: str | None) -> Check:
    """Whether two processes give the same tokens the same key (`connectors/fingerprint.py`)."""
    if not is_shared:
        return ok("block hashes", "no tier outlives the engine: its hashes need not be stable")
    if seed is None or seed == "random":
        return warn(
            "block hashes",
            "the same in every process with vLLM's default (sha256), not with xxhash",
            "PYTHONHASHSEED=0 for all engines, if --prefix-caching-hash-algo is an xxhash",
        )
    return ok("block hashes", f"PYTHONHASHSEED={seed}; all engines need the same")


def _text(path: object) -> str | None:
    return None if path is None else str(path)
