"""A small Llama checkpoint with random weights and a tokenizer trained on the shipped text.

Written with numpy, safetensors and tokenizers alone: the demo needs no download and no torch here.
Why random and not vLLM's `--load-format dummy`: dummy weights make the attention almost flat, so a
damaged KV block would not change the output and the token comparison of the demo could not fail.
First step of `agentkv demo`: both servers load what `write_checkpoint` leaves in a folder.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

Weights = npt.NDArray[np.float32]

BOS, EOS, TURN_START, TURN_END = "<s>", "</s>", "<|im_start|>", "<|im_end|>"

# Every message is rendered on its own, so the prompt of a turn is a prefix of the next one.
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def render_prompt(messages: Iterable[Mapping[str, str]]) -> str:
    """What the chat template makes of `messages`, for counting tokens without a server."""
    turns = "".join(f"{TURN_START}{m['role']}\n{m['content']}{TURN_END}\n" for m in messages)
    return f"{turns}{TURN_START}assistant\n"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of the model, in the names of transformers' `LlamaConfig`."""

    vocab_size: int = 4096
    hidden_size: int = 128
    intermediate_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 16384
    initializer_range: float = 0.08

    @property
    def kv_bytes_per_token(self) -> int:
        """`2 * layers * kv_heads * head_dim * 4`: keys and values of one token in float32."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * 4


def write_checkpoint(
    folder: Path, texts: Iterable[str], *, seed: int, shape: ModelShape | None = None
) -> Tokenizer:
    """Writes config, weights and tokenizer to `folder`; the same arguments give the same bytes.

    Returns the tokenizer, whose vocabulary may be smaller than `shape.vocab_size` when `texts` are
    short; the model keeps `shape.vocab_size` rows, and rows past the vocabulary decode to nothing.
    """
    shape = shape or ModelShape()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(texts, vocab_size=shape.vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(shape))
    _write_json(folder / "config.json", _model_config(shape, tokenizer))
    _write_json(folder / "generation_config.json", _generation_config(tokenizer))
    save_file(dict(random_weights(shape, seed=seed)), str(folder / "model.safetensors"))
    return tokenizer


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Trains a byte-level BPE tokenizer; every text can be encoded and decoded without loss."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def random_weights(shape: ModelShape, *, seed: int) -> Iterator[tuple[str, Weights]]:
    """Yields (name, float32 array): normal with `initializer_range`, norms at one."""
    rng = np.random.default_rng(seed)

    def normal(rows: int, columns: int) -> Weights:
        drawn: Weights = rng.standard_normal((rows, columns), dtype=np.float32)
        drawn *= np.float32(shape.initializer_range)
        return drawn

    hidden, inner = shape.hidden_size, shape.intermediate_size
    query = shape.num_attention_heads * shape.head_dim
    key = shape.num_key_value_heads * shape.head_dim
    matrices = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    norm = np.ones(hidden, dtype=np.float32)
    yield "model.embed_tokens.weight", normal(shape.vocab_size, hidden)
    for layer in range(shape.num_hidden_layers):
        for name, (rows, columns) in matrices.items():
            yield f"model.layers.{layer}.{name}.weight", normal(rows, columns)
        yield f"model.layers.{layer}.input_layernorm.weight", norm
        yield f"model.layers.{layer}.post_attention_layernorm.weight", norm
    yield "model.norm.weight", norm
    yield "lm_head.weight", normal(shape.vocab_size, hidden)


def _model_config(shape: ModelShape, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "torch_dtype": "float32",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        **asdict(shape),
    }


def _tokenizer_config(shape: ModelShape) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "additional_special_tokens": [TURN_START, TURN_END],
        "model_max_length": shape.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "do_sample": False,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
