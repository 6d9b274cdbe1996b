"""Decoders whose layers all have one kind of attention, over everything or over a window.

Llama, Mistral, Qwen 2 and 3, Phi-3, Granite, Gemma 1 to 3, OLMo 2 and 3, gpt-oss, and the mixtures
of experts among them. What tells them apart are biases, norms and the schedule of windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agentkv.passport.blueprint import (
    Blueprint,
    Heads,
    is_tied,
    named_kinds,
    read_heads,
    scheduled_layers,
)
from agentkv.passport.experts import Experts, no_experts
from agentkv.passport.fields import Config
from agentkv.passport.parameters import attention_matrices, embedding, gated_mlp

_DEFAULT_WINDOW_PERIOD: Final = 6  # Gemma 3: every sixth layer sees everything


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model type adds to the plain decoder of Llama.

    `qk_norm`: "head" a norm per head, "all" one over all heads; `sinks`: a number per head.
    `windows` names the layers, `experts` the feed-forward part.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    bias_flag: str | None = "attention_bias"
    mlp_bias_flag: str | None = None
    qk_norm: str | None = None
    num_norms: int = 2
    has_sinks: bool = False
    tied: bool = False
    windows: Callable[[Config, int], list[str]] | None = None
    experts: Callable[[Config], Experts] = no_experts


def build_decoder(config: Config, traits: Traits) -> Blueprint:
    """Layers and parameters of such a decoder. Raises ConfigError for what is missing."""
    num_layers = config.integer("num_hidden_layers")
    hidden = config.integer("hidden_size")
    heads = read_heads(config)
    kinds = _kinds(config, num_layers, traits)
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    vocab = config.integer("vocab_size")
    parameters = embedding(vocab, hidden, is_tied=is_tied(config, traits.tied))
    parameters = parameters.plus(
        matrices=num_layers
        * attention_matrices(hidden, heads.num_heads, heads.num_kv_heads, heads.head_dim),
        vectors=num_layers
        * (_attention_vectors(config, traits, heads) + traits.num_norms * hidden),
    )
    experts = traits.experts(config)
    dense = num_layers - experts.num_layers
    if dense:
        intermediate = config.integer("intermediate_size")
        bias = traits.mlp_bias_flag is not None and config.flag(traits.mlp_bias_flag, False)
        parameters = parameters.plus(
            matrices=dense * gated_mlp(hidden, intermediate),
            vectors=dense * (2 * intermediate + hidden) if bias else 0,
        )
    layers = scheduled_layers(config, heads.layer, kinds, window)
    return Blueprint(layers, experts.added_to(parameters), assumed=config.assumed)


def _kinds(config: Config, num_layers: int, traits: Traits) -> list[str]:
    if traits.windows is None:
        return ["full_attention"] * num_layers
    if config.has("layer_types"):
        return named_kinds(config, num_layers)
    return traits.windows(config, num_layers)


def _attention_vectors(config: Config, traits: Traits, heads: Heads) -> int:
    """Biases, norms of Q and K, and sinks of one layer."""
    count = 0
    wide, narrow = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    has_flag = traits.bias_flag is not None and config.flag(traits.bias_flag, False)
    if traits.qkv_bias or has_flag:
        count += wide + 2 * narrow
    if traits.output_bias or (has_flag and not traits.qkv_bias):
        count += config.integer("hidden_size")
    if traits.qk_norm == "head":
        count += 2 * heads.head_dim
    elif traits.qk_norm == "all":
        count += wide + narrow
    return count + (heads.num_heads if traits.has_sinks else 0)


def all_windowed(config: Config, num_layers: int) -> list[str]:
    """Every layer, where `sliding_window` is set: Mistral, and as vLLM reads it for others."""
    name = "sliding_attention" if config.has("sliding_window") else "full_attention"
    return [name] * num_layers


def windowed_as_named(config: Config, num_layers: int) -> list[str]:
    """OLMo 3: by `layer_types` alone."""
    return named_kinds(config, num_layers)


def windowed_above(config: Config, num_layers: int) -> list[str]:
    """Qwen 2 and 3: the layers from `max_window_layers` on, if `use_sliding_window`."""
    if not config.flag("use_sliding_window", False):
        return ["full_attention"] * num_layers
    first = config.integer("max_window_layers", least=0)
    return ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]


def windowed_by_turns(config: Config, num_layers: int) -> list[str]:
    """Gemma 2 and gpt-oss: the even layers."""
    config.integer("sliding_window")
    return ["full_attention" if i % 2 else "sliding_attention" for i in range(num_layers)]


def windowed_but_some(config: Config, num_layers: int) -> list[str]:
    """Gemma 3: all but every sixth, or what `sliding_window_pattern` says."""
    config.integer("sliding_window")
    period = config.assumed_integer("sliding_window_pattern", _DEFAULT_WINDOW_PERIOD, least=1)
    return [
        "full_attention" if (i + 1) % period == 0 else "sliding_attention"
        for i in range(num_layers)
    ]
