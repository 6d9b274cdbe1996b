"""What a family of architectures says of a model: its layers and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentkv.errors import ConfigError
from agentkv.passport.fields import Config
from agentkv.passport.layers import Kind, Layer, attention, with_window
from agentkv.passport.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Blueprint:
    """`layers` in order; a layer with both attention and a state stands there twice.

    `ssm_dtype`: the type of recurrent states that the architecture prescribes, if it does.
    """

    layers: tuple[Layer, ...]
    parameters: Parameters
    ssm_dtype: str | None = None
    notes: tuple[str, ...] = ()
    assumed: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def layer(self) -> Layer:
        return attention(self.num_kv_heads, self.head_dim, self.num_heads)


def read_heads(config: Config) -> Heads:
    """Heads of the usual field names; head_dim is hidden_size / heads where it is not given."""
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise config.refuse(
            f"`num_key_value_heads` is {num_kv_heads}, which does not divide the"
            f" {num_heads} of `num_attention_heads`"
        )
    return Heads(num_heads, num_kv_heads, read_head_dim(config, num_heads))


def read_head_dim(config: Config, num_heads: int) -> int:
    """`head_dim`, or hidden_size / num_attention_heads, which must be whole."""
    if config.has("head_dim"):
        return config.integer("head_dim")
    hidden = config.integer("hidden_size")
    if hidden % num_heads:
        raise config.refuse(
            f"`hidden_size` {hidden} over `num_attention_heads` {num_heads} is not whole, and"
            " `head_dim` is not given; add it"
        )
    return hidden // num_heads


_LAYER_NAMES = {
    "full_attention": Kind.FULL,
    "sliding_attention": Kind.WINDOW,
    "chunked_attention": Kind.CHUNK,
}


def named_kinds(config: Config, num_layers: int) -> list[str]:
    """`layer_types`, one name for each layer. Raises ConfigError for another number of names."""
    names = [str(name) for name in config.sequence("layer_types")]
    if len(names) != num_layers:
        raise config.refuse(
            f"`layer_types` names {len(names)} layers, `num_hidden_layers` {num_layers};"
            " they must agree"
        )
    return names


def scheduled_layers(
    config: Config, layer: Layer, kinds: Sequence[str], window_tokens: int | None
) -> tuple[Layer, ...]:
    """The layers by their names; what is not attention is refused."""
    return tuple(with_window(layer, *_window(config, kind, window_tokens)) for kind in kinds)


def _window(config: Config, name: str, window_tokens: int | None) -> tuple[int | None, Kind]:
    kind = _LAYER_NAMES.get(name)
    if kind is None:
        raise unknown_layer(config, name, _LAYER_NAMES)
    if kind is Kind.FULL:
        return None, kind
    if window_tokens is None:
        field_name = "sliding_window" if kind is Kind.WINDOW else "attention_chunk_size"
        raise config.refuse(f"has {name} layers but no `{field_name}`; add it")
    return window_tokens, kind


def unknown_layer(config: Config, name: str, known: Sequence[str] | dict[str, Any]) -> ConfigError:
    """The error for a layer type that a family does not have."""
    return config.refuse(
        f"`layer_types` has {name!r}, which {config.model_type} is not known to have"
        f" ({', '.join(known)}); its cache cannot be told"
    )


def is_tied(config: Config, default: bool) -> bool:
    """Whether input and output embedding are one; `default`: the architecture's."""
    return config.flag("tie_word_embeddings", default)
