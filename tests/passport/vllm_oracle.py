"""What vLLM itself says of models: the KV cache of each layer and the number of parameters.

Run as a program with a file of configs; writes what it found to a second one. The models are built
by vLLM's own code from config.json at full size, on torch's meta device, without a byte of weights.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import (
    ensure_model_parallel_initialized,
    init_distributed_environment,
    parallel_state,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.kv_cache_interface import MambaSpec

registry._run_in_subprocess = lambda inspect: inspect()  # seconds less for each architecture

_DEGREES = (1, 2, 4, 8, 16)


def main(source: Path, target: Path) -> None:
    """Answers for every config in the file."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, data in json.loads(source.read_text()).items():
            model = Path(folder) / name
            model.mkdir()
            (model / "config.json").write_text(json.dumps(data))
            found[name] = _describe(_engine_config(model))
    found["shapes"] = _shapes()
    target.write_text(json.dumps(found))


def _engine_config(model: Path) -> VllmConfig:
    return EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=1024,
        enable_prefix_caching=True,
        block_size=32,
    ).create_engine_config()


def _describe(config: VllmConfig) -> dict[str, Any]:
    with set_current_vllm_config(config):
        _start_one_process()
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
            model = initialize_model(config, model_config=config.model_config)
        layers = config.compilation_config.static_forward_context.values()
        specs = [
            layer.get_kv_cache_spec(config)
            for layer in layers
            if isinstance(layer, AttentionLayerBase)
        ]
        current_platform.update_block_size_for_backend(config)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "layers": sorted(Counter(map(_layer, specs)).items(), key=str),
        "block_tokens": config.cache_config.block_size,
    }


def _start_one_process() -> None:
    """A world of one; expert parallelism is made by dense models too."""
    if not torch.distributed.is_initialized():
        with tempfile.NamedTemporaryFile() as rendezvous:
            init_distributed_environment(1, 0, f"file://{rendezvous.name}_", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        parallel_state._EP = parallel_state._EP or parallel_state._TP


def _layer(spec: Any) -> tuple[str, float, int | None]:
    """Kind, bytes (of a state, or of a token) and window."""
    if isinstance(spec, MambaSpec):
        return "state", spec.real_page_size_bytes, None
    window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    return "tokens", spec.real_page_size_bytes / spec.block_size, window


def _shapes() -> dict[str, Any]:
    """Elements per device of the states of Kimi Linear and of two Mamba 2 by parallel degree."""
    calculate = MambaStateShapeCalculator
    return {
        str(degree): {
            "kda": _sizes(calculate.kda_state_shape(degree, 32, 128, conv_kernel_size=4)),
            "bamba": _sizes(calculate.mamba2_state_shape(degree, 8192, 1, 128, 64, 128, 4)),
            "groups": _sizes(calculate.mamba2_state_shape(degree, 8192, 8, 128, 64, 128, 4)),
        }
        for degree in _DEGREES
    }


def _sizes(shapes: Any) -> list[int]:
    return [math.prod(each) for each in shapes]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
