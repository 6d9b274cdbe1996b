"""The model of a replay: one that is made here with random weights, or a folder of the user's.

Why more than one of ours: what agentkv saves is the time between computing KV and loading it, and
that depends on the model. `tiny` is the demo's; `bench` computes four times as long for each token,
so that KV which was lost costs about what it costs on a large model. The ratio of both is measured
in every run (`replay_calibrate`), none is assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from agentkv import geometry
from agentkv.demo.checkpoint import ModelShape, write_checkpoint
from agentkv.demo.text import recorded_sessions, training_texts
from agentkv.errors import ConfigError

MODELS: Final[Mapping[str, ModelShape]] = {
    "tiny": ModelShape(),
    "bench": ModelShape(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        initializer_range=0.06,
    ),
}
_HALF_BYTES: Final = 2  # of the types that such models are served in


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A checkpoint on disk. `is_ours`: made here, in float32; else vLLM chooses the type."""

    folder: Path
    tokenizer: Tokenizer
    kv_bytes_per_token: int
    is_ours: bool
    facts: Mapping[str, Any]


def check_model(name: str) -> None:
    """Raises ConfigError for what is neither one of ours nor a checkpoint on disk."""
    if name not in MODELS:
        _config_of(Path(name))


def open_model(name: str, folder: Path) -> BenchModel:
    """Makes one of ours below `folder`, or opens the user's. Raises ConfigError."""
    if name in MODELS:
        shape = MODELS[name]
        texts = training_texts(recorded_sessions())
        tokenizer = write_checkpoint(folder / "model", texts, seed=0, shape=shape)
        facts = {"weights": "random, seed 0", "dtype": "float32", **asdict(shape)}
        return BenchModel(folder / "model", tokenizer, shape.kv_bytes_per_token, True, facts)
    config = _config_of(Path(name))
    tokenizer = Tokenizer.from_file(str(Path(name) / "tokenizer.json"))
    return BenchModel(Path(name), tokenizer, _kv_bytes_per_token(config), False, config)


def _config_of(folder: Path) -> dict[str, Any]:
    """The checkpoint's config.json, of a dense transformer."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        _kv_bytes_per_token(config)
        (folder / "tokenizer.json").stat()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"--model {folder}: neither one of {', '.join(MODELS)} nor a folder with the config."
            f"json and tokenizer.json of a dense transformer ({type(error).__name__}: {error})"
        ) from None
    return config


def _kv_bytes_per_token(config: Mapping[str, Any]) -> int:
    heads = int(config["num_attention_heads"])
    shape = geometry.ModelShape(
        num_params=0,
        num_layers=int(config["num_hidden_layers"]),
        num_query_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        bytes_per_element=_HALF_BYTES,
    )
    return int(shape.kv_bytes_per_token)
