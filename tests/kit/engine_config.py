"""vLLM's config for a rig: a tiny model without weights and a pool of a given number of blocks."""

from __future__ import annotations

import copy
import functools
import json
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from vllm.config import KVTransferConfig, VllmConfig
from vllm.config.kv_events import KVEventsConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)

from agentkv.config import resolve_extra_config
from agentkv.patches import register

BLOCK_TOKENS = 16
HEAD_SIZE = 16
WINDOW_TOKENS = 40
PAGE_BYTES = BLOCK_TOKENS * HEAD_SIZE * 2 * 4
"""One layer's share of a KV block: K and V of one head in float32."""

CHUNK_BYTES = 2 * PAGE_BYTES
"""One block in the DRAM tier: both layers of a group; vLLM aligns it to 4 KiB, which it is."""

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD_SIZE,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


class Kind(Enum):
    """Whose connector the scheduler gets."""

    AGENTKV = "agentkv"
    LRU = "lru"  # vLLM's own offloading with its LRU
    NONE = "none"


@dataclass(frozen=True)
class RigConfig:
    """`pool_blocks` counts usable blocks; vLLM's null block comes on top."""

    pool_blocks: int = 64
    dram_blocks: int = 256
    max_num_seqs: int = 4
    max_step_tokens: int = 2048
    scheduling: str = "fcfs"
    kind: Kind = Kind.AGENTKV
    is_hybrid: bool = False
    is_async: bool = False
    is_ordered: bool = False  # with our scheduler
    policy: str = "break_even"
    publishes_events: bool = False  # vLLM's KV events; see kit.kv_events
    extra: dict[str, Any] = field(default_factory=dict)


def vllm_config(config: RigConfig) -> VllmConfig:
    """A fresh config; only the first one of a process is slow."""
    built = copy.deepcopy(_base_config())
    built.cache_config.num_gpu_blocks = config.pool_blocks + 1
    scheduler = built.scheduler_config
    scheduler.max_num_seqs = config.max_num_seqs
    scheduler.max_num_batched_tokens = config.max_step_tokens
    scheduler.max_num_scheduled_tokens = None
    scheduler.policy = config.scheduling
    scheduler.async_scheduling = config.is_async
    if config.is_ordered:
        name = "AsyncAgentScheduler" if config.is_async else "AgentScheduler"
        scheduler.scheduler_cls = f"agentkv.connectors.scheduler.{name}"
    built.kv_transfer_config = _transfer_config(config)
    if config.publishes_events:
        built.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    return built


def kv_cache_config(config: RigConfig) -> KVCacheConfig:
    """Two layers of full attention; hybrid: two more with a sliding window in the same memory."""
    num_blocks = config.pool_blocks + 1
    shape = {"block_size": BLOCK_TOKENS, "num_kv_heads": 1, "head_size": HEAD_SIZE}
    full = FullAttentionSpec(**shape, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["full.0", "full.1"], full)]
    if config.is_hybrid:
        window = SlidingWindowSpec(**shape, dtype=torch.float32, sliding_window=WINDOW_TOKENS)
        groups.append(KVCacheGroupSpec(["window.0", "window.1"], window))
    tensors = [
        KVCacheTensor(
            size=num_blocks * CHUNK_BYTES,
            layers=list(group.layer_names),
            layer_stride=num_blocks * PAGE_BYTES,
            block_stride=PAGE_BYTES,
        )
        for group in groups
    ]
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)


@functools.cache
def _base_config() -> VllmConfig:
    register()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
        return EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=2048,
            max_num_seqs=4,
            max_num_batched_tokens=2048,
            block_size=BLOCK_TOKENS,
            dtype="float32",
        ).create_engine_config()


def _transfer_config(config: RigConfig) -> KVTransferConfig | None:
    if config.kind is Kind.NONE:
        return None
    engine_id = f"agentkv-test-{uuid.uuid4().hex[:12]}"
    user_extra = {"dram": {"size_bytes": "1MiB"}, "policy": config.policy, **config.extra}
    extra = resolve(user_extra, config)
    name = "agentkv"
    if config.kind is Kind.LRU:
        name = "OffloadingConnector"  # with our spec, but only for its copies on a CPU
        extra["eviction_policy"] = "lru"
        del extra["cache_policy_module_path"]
    return KVTransferConfig(
        kv_connector=name,
        kv_role="kv_both",
        engine_id=engine_id,
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=extra,
    )


def resolve(user_extra: Mapping[str, Any], config: RigConfig) -> dict[str, Any]:
    """What the connector makes of a user's keys, but with a tier of just `dram_blocks`.

    A user may set no less than 1 MiB: more blocks than a test wants to fill.
    """
    extra = resolve_extra_config(user_extra, free_memory=lambda: 1 << 30)
    chunk_blocks = extra.get("blocks_per_chunk", 1)
    extra["cpu_bytes_to_use"] = config.dram_blocks // chunk_blocks * chunk_blocks * CHUNK_BYTES
    return extra
