"""Opens the tiers below DRAM that the settings name, and measures what they reach here."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig

from agentkv.config import EXTRA_CONFIG, AgentKVConfig
from agentkv.config_tiers import host_and_port
from agentkv.config_values import format_size
from agentkv.cost_model import LinkSpeed
from agentkv.errors import ConfigError
from agentkv.tiers.base import Entry, TierStore
from agentkv.tiers.disk.store import DiskStore
from agentkv.tiers.lmcache.store import LMCacheStore
from agentkv.tiers.namespace import Namespace, explain_misses
from agentkv.tiers.redis.store import RedisStore

from .fingerprint import is_hash_stable, namespace_of
from .store_tier import StoreTier
from .tiering import AgentKVTieringManager

logger = init_logger("vllm.agentkv")

_MIN_PROBE_ENTRIES, _MAX_PROBE_ENTRIES = 4, 64
_PROBE_BYTES = 8 << 20
_ASSUMED_BYTES_PER_S = 1e9  # Of a tier that cannot be measured, for it is not there yet.


def open_tiers(
    config: AgentKVConfig,
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    manager: AgentKVTieringManager,
) -> list[StoreTier]:
    """The tiers, ready; [] if none is configured.

    Raises ConfigError for what the user must mend. A server that is not there is no error.
    """
    if not (config.ssd.is_on or config.redis.is_on or config.lmcache.is_on):
        return []
    _speak_as_loud_as_vllm()
    if not is_hash_stable(vllm_config):
        logger.warning(
            "agentkv: the block hashes of %s differ in each process: no KV outlives this one; set "
            "PYTHONHASHSEED to the same value everywhere, or take sha256",
            vllm_config.cache_config.prefix_caching_hash_algo,
        )
    namespace = namespace_of(vllm_config, kv_cache_config, manager.spec)
    block_bytes = int(manager.spec.kv_bytes_per_chunk)
    tiers: list[StoreTier] = []
    try:
        if config.ssd.is_on:
            store: TierStore = _open_disk(config, block_bytes, namespace)
            tiers.append(_tier(manager, store, config.ssd.threads))
        if config.redis.is_on:
            store = _open_redis(config, block_bytes, namespace)
            tiers.append(_tier(manager, store, config.redis.connections))
        if config.lmcache.is_on:
            store = _open_lmcache(config, block_bytes, namespace)
            tiers.append(_tier(manager, store, config.lmcache.connections))
    except BaseException:
        for tier in tiers:
            tier.shutdown()
        raise
    return tiers


def _speak_as_loud_as_vllm() -> None:
    """What the tiers have to say is as loud as vLLM itself, whatever others have set for all."""
    logging.getLogger("agentkv").setLevel(logging.getLogger("vllm").getEffectiveLevel())


def _open_disk(config: AgentKVConfig, block_bytes: int, namespace: Namespace) -> DiskStore:
    ssd = config.ssd
    assert ssd.path is not None
    try:
        store = DiskStore(
            ssd.path,
            size_bytes=ssd.size_bytes,
            block_bytes=block_bytes,
            namespace=namespace,
            min_free_bytes=ssd.min_free_bytes,
            max_write_bytes_per_s=ssd.max_write_bytes_per_s,
            num_threads=ssd.threads,
        )
    except ConfigError as error:
        raise ConfigError(f"{EXTRA_CONFIG}ssd: {error}") from None
    _explain(store, namespace, store.other_namespaces())
    return store


def _open_redis(config: AgentKVConfig, block_bytes: int, namespace: Namespace) -> RedisStore:
    redis = config.redis
    assert redis.url is not None
    try:
        store = RedisStore(
            redis.url,
            block_bytes=block_bytes,
            namespace=namespace,
            username=redis.username,
            password=os.environ.get(redis.password_env),
            ca_file=_text(redis.ca_file),
            cert_file=_text(redis.cert_file),
            key_file=_text(redis.key_file),
            ttl_s=redis.ttl_s,
            timeout_s=redis.timeout_s,
            num_connections=redis.connections,
        )
    except ConfigError as error:
        raise ConfigError(f"{EXTRA_CONFIG}redis: {error}") from None
    _explain(store, namespace, store.other_namespaces())
    return store


def _open_lmcache(config: AgentKVConfig, block_bytes: int, namespace: Namespace) -> LMCacheStore:
    lmcache = config.lmcache
    assert lmcache.url is not None
    host, port = host_and_port(lmcache.url)
    return LMCacheStore(
        host,
        port,
        block_bytes=block_bytes,
        namespace=namespace,
        capacity_bytes=lmcache.capacity_bytes,
        timeout_s=lmcache.timeout_s,
        connections=lmcache.connections,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser())


def _explain(store: TierStore, own: Namespace, others: list[Namespace]) -> None:
    """Why KV that lies in the tier will not be found, if that is so."""
    differing = explain_misses(own, [other for other in others if other.digest != own.digest])
    if store.usage().num_entries == 0 and differing is not None:
        logger.info(
            "agentkv: the %s tier has KV of another model or layout, which is not used here: they "
            "differ in %s",
            store.name,
            differing,
        )


def _tier(manager: AgentKVTieringManager, store: TierStore, num_threads: int) -> StoreTier:
    store_bytes_per_s, load_bytes_per_s = _measure(store)
    usage = store.usage()
    logger.info(
        "agentkv: %s tier: %d blocks kept from before, %s; measured at start: store %.2f GB/s, "
        "load %.2f GB/s",
        store.name,
        usage.num_entries,
        "size limited by the server"
        if usage.capacity_bytes is None
        else f"{format_size(usage.capacity_bytes)} at most",
        store_bytes_per_s / 1e9,
        load_bytes_per_s / 1e9,
    )
    return StoreTier(
        manager.spec,
        manager.primary_tier.get_kv_memoryview(),
        store,
        sums=manager.sums,
        num_threads=num_threads,
        load_link=LinkSpeed(load_bytes_per_s),
        store_link=LinkSpeed(store_bytes_per_s),
    )


def _measure(store: TierStore) -> tuple[float, float]:
    """Bytes per second of a store and of a load of a few blocks, which are then dropped."""
    size = store.block_bytes
    count = min(_MAX_PROBE_ENTRIES, max(_MIN_PROBE_ENTRIES, _PROBE_BYTES // size))
    memory = memoryview(bytearray(size * count))
    speeds: list[float] = []
    for _ in range(2):  # The first round opens files and connections.
        entries = [
            Entry(secrets.token_bytes(32), memory[i * size : (i + 1) * size]) for i in range(count)
        ]
        speeds = [_speed(store.store, entries), _speed(store.load, entries)]
        store.delete([entry.key for entry in entries])
    return speeds[0], speeds[1]


def _speed(move: Callable[[Sequence[Entry]], list[bool]], entries: Sequence[Entry]) -> float:
    started_s = time.perf_counter()
    is_done = all(move(entries))
    seconds = time.perf_counter() - started_s
    return sum(len(e.data) for e in entries) / seconds if is_done else _ASSUMED_BYTES_PER_S
