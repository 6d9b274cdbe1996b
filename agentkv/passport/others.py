"""Decoders that need more than `decoders.Traits`: Llama 4, GPTBigCode (StarCoder), GLM 4.5."""

from __future__ import annotations

from dataclasses import replace

from agentkv.passport.blueprint import (
    Blueprint,
    is_tied,
    named_kinds,
    read_heads,
    scheduled_layers,
)
from agentkv.passport.decoders import Traits, build_decoder
from agentkv.passport.experts import Names, deepseek_experts, in_layers
from agentkv.passport.fields import Config
from agentkv.passport.layers import attention
from agentkv.passport.parameters import attention_matrices, embedding, gated_mlp


def build_llama4(config: Config) -> Blueprint:
    """Llama 4: three layers of four see their chunk only; experts in some layers.

    A chunk's layers keep at most `attention_chunk_size` positions and start anew after it.
    """
    num_layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    heads = read_heads(config)
    if config.has("layer_types"):
        kinds = named_kinds(config, num_layers)
    else:
        period = config.assumed_integer("no_rope_layer_interval", 4, least=1)
        kinds = [
            "chunked_attention" if (i + 1) % period else "full_attention" for i in range(num_layers)
        ]
    chunk = config.integer("attention_chunk_size") if config.has("attention_chunk_size") else None
    layers = scheduled_layers(config, heads.layer, kinds, chunk)
    step = config.integer("interleave_moe_layer_step")
    sparse = sum((i + 1) % step == 0 for i in range(num_layers))
    width = config.integer("intermediate_size")
    experts = in_layers(config, Names("num_local_experts", width="intermediate_size"), sparse)
    experts = replace(experts, matrices=experts.matrices + sparse * gated_mlp(hidden, width))
    dense = num_layers - sparse
    mlp = dense * gated_mlp(hidden, config.integer("intermediate_size_mlp")) if dense else 0
    parameters = embedding(
        config.integer("vocab_size"), hidden, is_tied=is_tied(config, False)
    ).plus(
        matrices=mlp
        + num_layers
        * attention_matrices(hidden, heads.num_heads, heads.num_kv_heads, heads.head_dim),
        vectors=2 * num_layers * hidden,
    )
    return Blueprint(layers, experts.added_to(parameters), assumed=config.assumed)


def build_gpt_bigcode(config: Config) -> Blueprint:
    """GPTBigCode: one KV head for all (`multi_query`), learned positions, biases everywhere."""
    num_layers, hidden = config.integer("n_layer"), config.integer("n_embd")
    num_heads = config.integer("n_head")
    if hidden % num_heads:
        raise config.refuse(f"`n_embd` {hidden} over `n_head` {num_heads} is not whole")
    head_dim = hidden // num_heads
    num_kv_heads = 1 if config.flag("multi_query") else num_heads
    inner = config.integer_or("n_inner", 4 * hidden, least=1)
    layer = attention(num_kv_heads, head_dim, num_heads)
    matrices = attention_matrices(hidden, num_heads, num_kv_heads, head_dim) + 2 * hidden * inner
    biases = hidden + 2 * num_kv_heads * head_dim + hidden + inner + hidden
    parameters = embedding(config.integer("vocab_size"), hidden, is_tied=is_tied(config, True))
    parameters = parameters.plus(
        matrices=num_layers * matrices,
        vectors=num_layers * (biases + 4 * hidden)
        + hidden
        + config.integer("n_positions") * hidden,
    )
    return Blueprint((layer,) * num_layers, parameters)


def build_glm4_moe(config: Config) -> Blueprint:
    """GLM 4.5: experts as in DeepSeek V3, attention as in Llama; norms of Q and K by a flag."""
    qk_norm = "head" if config.flag("use_qk_norm") else None
    has_bias = config.flag("attention_bias")
    traits = Traits(qkv_bias=has_bias, bias_flag=None, qk_norm=qk_norm, experts=deepseek_experts)
    return build_decoder(config, traits)
