"""All that decides whether stored KV fits this engine, taken from vLLM's configuration.

Each field is one way in which KV of equal size was once taken for right and was not: other weights
under the same name, another dtype behind "auto", another order of heads, another rank's part,
another seed of the block hashes. Equal fields on two engines mean that they may share entries.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import get_none_hash_seed
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import OffloadingSpec

from agentkv.tiers.namespace import Namespace
from agentkv.tiers.weights import weights_digest

logger = init_logger("vllm.agentkv")

_FORMAT = "1"
# Of the model's description: where it came from, not what it computes.
_NOT_THE_MODEL = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype")


def namespace_of(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, spec: OffloadingSpec
) -> Namespace:
    """The namespace of this engine's KV in all tiers that outlive it."""
    model, cache, parallel = (
        vllm_config.model_config,
        vllm_config.cache_config,
        spec.config.parallel,
    )
    groups = [
        (tuple(group.layer_names), repr(group.kv_cache_spec))
        for group in kv_cache_config.kv_cache_groups
    ]
    return Namespace(
        {
            "format": _FORMAT,
            "weights": _weights(vllm_config),
            "model_config": _digest(_description(model.hf_config)),
            "model_dtype": str(model.dtype),
            "quantization": str(model.quantization),
            "kv_dtype": str(cache.cache_dtype),
            "kv_groups": _digest(groups),
            "kv_layout": f"{spec.config.kv_cache_layout} {_device()}",
            "block_bytes": str(spec.kv_bytes_per_chunk),
            "tokens_per_hash": str(spec.config.cache.tokens_per_hash),
            "blocks_per_chunk": str(spec.blocks_per_chunk),
            "parallel": f"tp{parallel.tp_size} pp{parallel.pp_size} pcp{parallel.pcp_size} "
            f"dcp{parallel.dcp_size} world{parallel.world_size} "
            f"{'replicated' if spec.config.replicated_layout else 'per rank'} "
            f"{'canonical' if spec.config.canonical_layout else 'direct'}",
            "hash": f"{cache.prefix_caching_hash_algo} {_digest(get_none_hash_seed())}",
            "vllm": ".".join(str(vllm.__version__).split(".")[:2]),
        }
    )


def is_hash_stable(vllm_config: VllmConfig) -> bool:
    """Whether another process gives the same tokens the same keys."""
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    return not algorithm.startswith("xxhash") or os.environ.get("PYTHONHASHSEED") is not None


def _weights(vllm_config: VllmConfig) -> str:
    model = vllm_config.model_config
    load_format = str(getattr(vllm_config.load_config, "load_format", ""))
    if load_format.endswith("dummy"):
        return f"dummy {model.seed}"
    folder = _folder(str(model.model), model.revision)
    try:
        digest = None if folder is None else weights_digest(folder)
    except OSError as error:
        logger.warning("agentkv: the weights in %s cannot be read: %s", folder, error.strerror)
        digest = None
    if digest is None:
        logger.warning(
            "agentkv: no weights of %s on this machine: tiers tell models apart by its name and "
            "revision alone",
            model.model,
        )
        return f"name {model.model} {model.revision}"
    return digest


def _folder(model: str, revision: str | None) -> Path | None:
    """Where the weights lie: the path itself, or the model's snapshot in the local cache."""
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception:  # The library has many, and each means that it is not there.
        return None


def _description(hf_config: Any) -> dict[str, Any]:
    fields: dict[str, Any] = hf_config.to_dict()
    return {name: value for name, value in fields.items() if name not in _NOT_THE_MODEL}


def _device() -> str:
    """The kind of device: kernels of another one lay KV out, or round, otherwise."""
    if current_platform.is_cpu():
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return str(current_platform.get_device_name())


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
