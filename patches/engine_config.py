"""Settles agentkv's settings before vLLM builds its config, and hands them to every process.

Symbol: `EngineArgs.create_engine_config`, wrapped: settings are resolved, then the original runs.
Why: "auto" depends on the memory that is free at that moment. Resolved in each worker by itself it
would give each another size for one shared region. vLLM has no hook between parsing and building.
Delete when: vLLM lets a connector class rewrite its own `kv_connector_extra_config` at the start.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.logger import init_logger

from agentkv.config import config_from_extra, is_resolved, resolve_extra_config
from agentkv.config_values import AUTO, format_size
from agentkv.symbols import Symbol, find_problems

from . import endpoint_plugins, problems, vllm_settings
from .multi_connector import our_extra, our_part, with_our_extra

SYMBOLS = (
    Symbol("vllm.engine.arg_utils:EngineArgs.create_engine_config", ("self",)),
    Symbol(
        "vllm.engine.arg_utils:EngineArgs",
        (
            "data_parallel_size",
            "data_parallel_size_local",
            "enable_prefix_caching",
            "gpu_memory_utilization",
            "kv_cache_memory_bytes",
            "kv_offloading_size",
            "kv_transfer_config",
            "nnodes",
            "pipeline_parallel_size",
            "tensor_parallel_size",
        ),
    ),
    Symbol(
        "vllm.config:KVTransferConfig",
        ("kv_connector", "kv_role", "kv_load_failure_policy", "kv_connector_extra_config"),
    ),
    Symbol("vllm.platforms:current_platform.is_cpu"),
    *endpoint_plugins.SYMBOLS,
)

logger = init_logger("vllm.agentkv")


def apply() -> str | None:
    """Wrap `create_engine_config` once; returns what does not fit, or None."""
    if found := find_problems(SYMBOLS):
        return found[0]
    original: Callable[..., Any] = EngineArgs.create_engine_config
    if getattr(original, "_is_agentkv", False):
        return None

    @functools.wraps(original)
    def create_engine_config(self: EngineArgs, *args: Any, **kwargs: Any) -> Any:
        if not is_selected(self.kv_transfer_config):
            return original(self, *args, **kwargs)
        is_first = settle(self)
        config = original(self, *args, **kwargs)
        if is_first:  # Only now: the original sets up vLLM's logging.
            _state(self)
        return config

    create_engine_config._is_agentkv = True  # type: ignore[attr-defined]
    EngineArgs.create_engine_config = create_engine_config
    return None


def is_selected(transfer: object) -> bool:
    """Whether a KV transfer config asks for agentkv, alone or inside a MultiConnector."""
    return our_part(transfer) is not None


def settle(engine_args: EngineArgs) -> bool:
    """Replace `engine_args.kv_transfer_config` by one with everything that vLLM needs.

    Returns whether there was something to settle, False when it was done before.

    Raises UnsupportedVllmError when a patch does not fit, ConfigError for a wrong setting. The
    user's own object stays as it was.
    """
    problems.raise_if_any()
    transfer = engine_args.kv_transfer_config
    if isinstance(transfer, Mapping):
        transfer = KVTransferConfig(**transfer)
    vllm_settings.refuse(engine_args, transfer)
    vllm_settings.give_cores_to_compute(engine_args)
    endpoint_plugins.let_through()
    user_extra = our_extra(transfer)
    is_auto = config_from_extra(user_extra).dram.size_bytes == AUTO
    extra = resolve_extra_config(
        user_extra,
        free_memory=lambda: vllm_settings.free_memory_bytes(engine_args, is_auto=is_auto),
    )
    engine_args.kv_transfer_config = dataclasses.replace(
        transfer,
        kv_connector_extra_config=with_our_extra(transfer, extra),
        kv_load_failure_policy="recompute",  # vLLM's default fails the request instead.
    )
    return not is_resolved(user_extra)


def _state(engine_args: EngineArgs) -> None:
    """Log what will be done, and which of vLLM's settings stand against it."""
    extra = our_extra(engine_args.kv_transfer_config)
    config = config_from_extra(extra)
    size_bytes = extra["cpu_bytes_to_use"]
    logger.info(
        "agentkv: policy %s, DRAM tier of %s (%d bytes) per engine, storing the KV of %s",
        config.policy,
        format_size(size_bytes),
        size_bytes,
        "prompts and answers" if config.store_decode_blocks else "prompts only",
    )
    for warning in vllm_settings.warnings(engine_args):
        logger.warning("agentkv: %s", warning)
