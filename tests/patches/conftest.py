"""A vLLM with the plugin registered, as every process of vLLM has it."""

import json
from pathlib import Path

import pytest

from agentkv.patches import register

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(autouse=True, scope="session")
def registered() -> None:
    """The plugin, registered twice, as it may be."""
    register()
    register()


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder that holds a model's config and nothing else: no weights are read here."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return str(folder)


@pytest.fixture
def small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own KV pool of 1 GiB on the CPU platform."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
