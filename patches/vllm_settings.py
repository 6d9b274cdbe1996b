"""What vLLM's other settings mean for agentkv: which exclude it, which hurt it, what they take.

What: checks over `EngineArgs` as the user filled it.
Why: some of these combinations start without complaint and then do nothing, or something else.
Where: called by `engine_config`, once, before vLLM builds its config.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform

from agentkv import capacity
from agentkv.errors import ConfigError

from . import multi_connector

GIB = 1 << 30
RESERVED_CORES = "VLLM_CPU_NUM_OF_RESERVED_CPU"


def refuse(engine_args: EngineArgs, transfer: Any) -> None:
    """Raise ConfigError for settings under which agentkv cannot work."""
    multi_connector.refuse(transfer)
    role = multi_connector.field_of(multi_connector.our_part(transfer), "kv_role")
    if role != "kv_both":
        raise ConfigError(f'kv_role: agentkv needs "kv_both", is "{role}": it stores and loads')
    if engine_args.kv_offloading_size is not None:
        raise ConfigError(
            "--kv-offloading-size: replaces agentkv by vLLM's own offloading; "
            "remove it and set dram.size_bytes instead"
        )


def warnings(engine_args: EngineArgs) -> Iterator[str]:
    """One line for each setting that takes away from what agentkv can do."""
    if engine_args.enable_prefix_caching is False:
        yield "prefix caching is off: no pause can be held on the GPU; remove the flag that does it"
    if engine_args.data_parallel_size > 1:
        yield (
            "data parallelism does not keep a session on one engine: send the header "
            "X-data-parallel-rank, else a turn may find none of its session's KV"
        )
    if engine_args.nnodes > 1:
        yield "agentkv was not tested on more than one node"


def give_cores_to_compute(engine_args: EngineArgs) -> None:
    """On the CPU platform: no core is set aside for the connector, unless the user said how many.

    With any connector vLLM reserves one more core per worker than without, for NIXL's polling
    threads; on a small machine it then gives up and lets compute and scheduler fight for the same
    cores. Our copy threads sleep unless there is something to copy.
    """
    if current_platform.is_cpu():
        num_workers = engine_args.tensor_parallel_size * engine_args.pipeline_parallel_size
        os.environ.setdefault(RESERVED_CORES, str(num_workers))


def free_memory_bytes(engine_args: EngineArgs, *, is_auto: bool) -> int:
    """Bytes that the DRAM tier of one engine may take on this machine.

    Engines of the same machine (data parallelism) share it evenly. On the CPU platform vLLM's own
    pool lies in the same memory and is not taken yet: a size of our choosing leaves room for it,
    while a size given by the user is only held against what there is.
    """
    leaves_room = is_auto and current_platform.is_cpu()
    reserved_bytes = _cpu_pool_bytes(engine_args) if leaves_room else 0
    num_engines: int = engine_args.data_parallel_size_local or engine_args.data_parallel_size
    return capacity.free_memory_bytes(reserved_bytes=reserved_bytes) // max(1, num_engines)


def _cpu_pool_bytes(engine_args: EngineArgs, environ: Mapping[str, str] = os.environ) -> int:
    """What vLLM will take for KV on the CPU platform, by the same precedence as it has."""
    num_ranks: int = engine_args.tensor_parallel_size * engine_args.pipeline_parallel_size
    if space_gib := environ.get("VLLM_CPU_KVCACHE_SPACE"):
        return int(space_gib) * GIB * num_ranks
    if engine_args.kv_cache_memory_bytes:
        return int(engine_args.kv_cache_memory_bytes) * num_ranks
    return int(engine_args.gpu_memory_utilization * capacity.total_memory_bytes())
