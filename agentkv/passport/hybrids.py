"""Models of attention layers and recurrent ones: what of them grows, and what stays as it is.

A recurrent layer keeps a state and the last inputs of its short convolution, both of fixed size:
Mamba 1 and 2 (Gu and Dao 2023, 2024), gated delta net (Yang et al. 2024), Kimi Delta Attention
(2025). The state's shape is the one vLLM allocates (`MambaStateShapeCalculator`).
"""

from __future__ import annotations

from dataclasses import replace

from agentkv.passport.blueprint import (
    Blueprint,
    Heads,
    is_tied,
    named_kinds,
    read_heads,
    unknown_layer,
)
from agentkv.passport.experts import Names, in_layers, qwen2_experts
from agentkv.passport.fields import Config
from agentkv.passport.latent import latent_layer, latent_matrices
from agentkv.passport.layers import Layer
from agentkv.passport.parameters import Parameters, attention_matrices, embedding, gated_mlp
from agentkv.passport.states import (
    Count,
    delta_net,
    kimi_delta,
    mamba1,
    mamba2,
    read_mamba2,
)


def build_qwen3_next(config: Config) -> Blueprint:
    """Qwen 3 Next: three gated delta nets, then one attention with an output gate."""
    num_layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    heads = read_heads(config)
    if config.has("layer_types"):
        kinds = named_kinds(config, num_layers)
    else:
        period = config.assumed_integer("full_attention_interval", 4, least=1)
        kinds = [
            "linear_attention" if (i + 1) % period else "full_attention" for i in range(num_layers)
        ]
    state, recurrent = delta_net(config, hidden)
    matrices = attention_matrices(hidden, heads.num_heads, heads.num_kv_heads, heads.head_dim)
    gate = hidden * heads.num_heads * heads.head_dim
    full = Count(matrices + gate, 2 * heads.head_dim)
    layers, parameters = _assemble(
        config,
        kinds,
        {"linear_attention": (state, recurrent), "full_attention": (heads.layer, full)},
        is_tied_by_default=False,
    )
    experts = qwen2_experts(config)
    dense = num_layers - experts.num_layers
    if dense:
        width = config.integer("intermediate_size")
        parameters = parameters.plus(matrices=dense * gated_mlp(hidden, width))
    return Blueprint(layers, experts.added_to(parameters), assumed=config.assumed)


def build_jamba(config: Config) -> Blueprint:
    """Jamba: an attention layer in every `attn_layer_period`, Mamba 1 in the others."""
    num_layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    period, offset = (
        config.integer("attn_layer_period"),
        config.integer("attn_layer_offset", least=0),
    )
    kinds = ["attention" if i % period == offset else "mamba" for i in range(num_layers)]
    state, recurrent = mamba1(config, hidden)
    layers, parameters = _assemble(
        config,
        kinds,
        {"mamba": (state, recurrent), "attention": _plain_attention(config)},
        is_tied_by_default=False,
    )
    every, first = (
        config.integer("expert_layer_period"),
        config.integer("expert_layer_offset", least=0),
    )
    num_experts = config.integer("num_experts")
    sparse = sum(i % every == first for i in range(num_layers)) if num_experts > 1 else 0
    experts = in_layers(config, Names("num_experts", width="intermediate_size"), sparse)
    dense = (num_layers - sparse) * gated_mlp(hidden, config.integer("intermediate_size"))
    return Blueprint(layers, experts.added_to(parameters.plus(matrices=dense)))


def build_bamba(config: Config) -> Blueprint:
    """Bamba: Mamba 2 but in the layers of `attn_layer_indices`, each with an MLP."""
    num_layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    full = config.sequence("attn_layer_indices")
    kinds = ["attention" if i in full else "mamba" for i in range(num_layers)]
    state, recurrent = mamba2(hidden, read_mamba2(config, hidden, "mamba"))
    layers, parameters = _assemble(
        config,
        kinds,
        {"mamba": (state, recurrent), "attention": _plain_attention(config)},
        is_tied_by_default=False,
    )
    mlp = num_layers * gated_mlp(hidden, config.integer("intermediate_size"))
    return Blueprint(layers, parameters.plus(matrices=mlp))


def build_granite_hybrid(config: Config) -> Blueprint:
    """Granite 4: Mamba 2 and attention by `layer_types`, a shared MLP, experts where it has any."""
    num_layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    same = {"linear_attention": "mamba", "full_attention": "attention"}
    kinds = [same.get(kind, kind) for kind in named_kinds(config, num_layers)]
    state, recurrent = mamba2(hidden, read_mamba2(config, hidden, "mamba"))
    layers, parameters = _assemble(
        config,
        kinds,
        {"mamba": (state, recurrent), "attention": _plain_attention(config)},
        is_tied_by_default=False,
    )
    shared = gated_mlp(hidden, config.integer("shared_intermediate_size"))
    parameters = parameters.plus(matrices=num_layers * shared)
    if config.integer("num_local_experts", least=0):
        names = Names("num_local_experts", width="intermediate_size")
        parameters = in_layers(config, names, num_layers).added_to(parameters)
    return Blueprint(layers, parameters)


def build_falcon_h1(config: Config) -> Blueprint:
    """Falcon H1: attention and Mamba 2 side by side in every layer."""
    num_layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    inner = config.integer("mamba_d_ssm") if config.has("mamba_d_ssm") else None
    shape = read_mamba2(config, hidden, "mamba", inner=inner)
    gate_norm = config.flag("mamba_rms_norm")
    state, recurrent = mamba2(hidden, shape, has_norm=gate_norm)
    layer, attention = _plain_attention(config)
    mlp = gated_mlp(hidden, config.integer("intermediate_size"))
    parameters = embedding(
        config.integer("vocab_size"), hidden, is_tied=is_tied(config, False)
    ).plus(
        matrices=num_layers * (recurrent.matrices + attention.matrices + mlp),
        vectors=num_layers * (recurrent.vectors + attention.vectors + 2 * hidden),
    )
    return Blueprint((layer, state) * num_layers, parameters)


def build_kimi_linear(config: Config) -> Blueprint:
    """Kimi Linear: three Kimi Delta Attention layers, then one MLA, counted from 1."""
    num_layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    linear = config.section("linear_attn_config")
    full = set(linear.sequence("full_attn_layers"))
    recurrent_layers = set(linear.sequence("kda_layers"))
    if full | recurrent_layers != set(range(1, num_layers + 1)) or full & recurrent_layers:
        raise config.refuse(
            "`linear_attn_config` must name each layer once, in `full_attn_layers` or in"
            f" `kda_layers`, counted from 1 to {num_layers}"
        )
    kinds = ["full_attention" if i in full else "kda" for i in range(1, num_layers + 1)]
    num_heads = config.integer("num_attention_heads")
    latent = Count(*latent_matrices(config, num_heads=num_heads))
    layers, parameters = _assemble(
        config,
        kinds,
        {
            "kda": kimi_delta(linear, hidden),
            "full_attention": (latent_layer(config, num_heads=num_heads), latent),
        },
        is_tied_by_default=False,
    )
    return Blueprint(layers, _kimi_experts(config, parameters, num_layers))


def _kimi_experts(config: Config, parameters: Parameters, num_layers: int) -> Parameters:
    hidden, first = config.integer("hidden_size"), config.integer("first_k_dense_replace", least=0)
    sparse = max(0, num_layers - first)
    dense = (num_layers - sparse) * gated_mlp(hidden, config.integer("intermediate_size"))
    experts = in_layers(config, Names("num_experts", "num_experts_per_token"), sparse)
    width = config.integer("moe_intermediate_size") * config.integer("num_shared_experts", least=0)
    experts = replace(
        experts,
        matrices=experts.matrices + sparse * gated_mlp(hidden, width),
        vectors=sparse * experts.num_experts,  # corrections that choose them
    )
    return experts.added_to(parameters.plus(matrices=dense))


def _plain_attention(config: Config) -> tuple[Layer, Count]:
    heads: Heads = read_heads(config)
    hidden = config.integer("hidden_size")
    matrices = attention_matrices(hidden, heads.num_heads, heads.num_kv_heads, heads.head_dim)
    has_bias = config.flag("attention_bias", False)
    wide = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim + hidden
    return heads.layer, Count(matrices, wide if has_bias else 0)


def _assemble(
    config: Config,
    kinds: list[str],
    parts: dict[str, tuple[Layer, Count]],
    *,
    is_tied_by_default: bool,
) -> tuple[tuple[Layer, ...], Parameters]:
    """Layers by name, with the parameters of their mixers, two norms each, and the embedding."""
    hidden = config.integer("hidden_size")
    parameters = embedding(
        config.integer("vocab_size"), hidden, is_tied=is_tied(config, is_tied_by_default)
    )
    layers = []
    for kind in kinds:
        if kind not in parts:
            raise unknown_layer(config, kind, list(parts))
        layer, count = parts[kind]
        layers.append(layer)
        parameters = parameters.plus(matrices=count.matrices, vectors=count.vectors + 2 * hidden)
    return tuple(layers), parameters
