"""Builds what a rig consists of: vLLM's scheduler, our connector in both roles, KV memory."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

from kit.copies import BYTES_PER_S, CopyScript, ScriptedCopyWorker, SteadyLink
from kit.engine_config import BLOCK_TOKENS, Kind, RigConfig, kv_cache_config, resolve, vllm_config
from kit.runner import KvMemory
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.structured_output import StructuredOutputManager

from agentkv.clock import ManualClock
from agentkv.connectors.worker_side import LinkSpeeds


class Parts(NamedTuple):
    scheduler: Scheduler
    worker: Any
    memory: KvMemory


def build(config: RigConfig, clock: ManualClock, script: CopyScript) -> Parts:
    """With our time, our copies and a small DRAM tier."""
    engine, kv_config = vllm_config(config), kv_cache_config(config)
    memory = KvMemory.allocate(kv_config)
    with _patched(config, clock, script):
        scheduler = _scheduler(engine, kv_config)
        worker = None
        if config.kind is not Kind.NONE:
            role = KVConnectorRole.WORKER
            worker = KVConnectorFactory.create_connector(engine, role, kv_config)
            worker.register_kv_caches(memory.tensors)
    if config.kind is Kind.AGENTKV:
        links = LinkSpeeds(store_bytes_per_s=BYTES_PER_S, load_bytes_per_s=BYTES_PER_S)
        scheduler.connector.set_xfer_handshake_metadata_pp_aware({(0, 0): links})
    return Parts(scheduler, worker, memory)


def watch_new_blocks(pool: BlockPool) -> set[int]:
    """Gathers the ids the pool hands out, so that their old content can be poisoned."""
    fresh: set[int] = set()
    original = pool.get_new_blocks

    def get_new_blocks(num_blocks: int) -> Any:
        new = original(num_blocks)
        fresh.update(block.block_id for block in new)
        return new

    pool.get_new_blocks = get_new_blocks
    return fresh


@contextlib.contextmanager
def _patched(config: RigConfig, clock: ManualClock, script: CopyScript) -> Iterator[None]:
    connectors = "agentkv.connectors"
    copies = functools.partial(ScriptedCopyWorker, script=script)
    with (
        mock.patch(f"{connectors}.assembly.SystemClock", lambda: clock),
        mock.patch(f"{connectors}.spec.CpuCopyWorker", copies),
        mock.patch(f"{connectors}.slow_tiers.LinkSpeed", SteadyLink),
        mock.patch(
            f"{connectors}.connector.resolve_extra_config",
            lambda extra, **_: resolve(extra, config),
        ),
    ):
        yield


def _scheduler(engine: VllmConfig, kv_config: KVCacheConfig) -> Scheduler:
    return engine.scheduler_config.get_scheduler_cls()(
        vllm_config=engine,
        kv_cache_config=kv_config,
        structured_output_manager=StructuredOutputManager(engine),
        block_size=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
        log_stats=True,
    )
