"""Models with multi-head latent attention: DeepSeek V2, V3 and V3.2, Kimi K2.

A layer keeps one latent of `kv_lora_rank` and one rotary key of `qk_rope_head_dim` per token,
whatever the number of heads (DeepSeek-V2, 2024). Every tensor-parallel device keeps all of it.
V3.2's indexer keeps a key of `index_head_dim` bytes in fp8 and a scale of 4 per 128 beside it.
"""

from __future__ import annotations

from dataclasses import replace

from agentkv.passport.blueprint import Blueprint, is_tied
from agentkv.passport.experts import Experts, deepseek_experts, no_experts
from agentkv.passport.fields import Config
from agentkv.passport.layers import Kind, Layer
from agentkv.passport.parameters import embedding, gated_mlp

_SCALE_BYTES = 4
_SCALE_GROUP = 128


def latent_layer(config: Config, *, num_heads: int) -> Layer:
    """One layer of MLA.

    In prefill keys and values are spelled out, 2·H·(d_qk + d_v) per pair; decode works on the
    latents, 2·H·(2·d_c + d_r).
    """
    rank, rope = config.integer("kv_lora_rank"), config.integer("qk_rope_head_dim")
    nope, value = config.integer("qk_nope_head_dim"), config.integer("v_head_dim")
    return Layer(
        kind=Kind.LATENT,
        shape=f"latent of {rank} and rotary key of {rope}",
        shards=1,
        elements=rank + rope,
        pair_flops=2.0 * num_heads * (nope + rope + value),
        decode_pair_flops=2.0 * num_heads * (2 * rank + rope),
    )


def latent_matrices(config: Config, *, num_heads: int) -> tuple[int, int]:
    """Matrices and norms of one layer of MLA."""
    hidden, rank = config.integer("hidden_size"), config.integer("kv_lora_rank")
    rope, nope = config.integer("qk_rope_head_dim"), config.integer("qk_nope_head_dim")
    value = config.integer("v_head_dim")
    query_width = num_heads * (nope + rope)
    matrices = hidden * (rank + rope) + rank * num_heads * (nope + value)
    matrices += num_heads * value * hidden
    if config.has("q_lora_rank"):
        query_rank = config.integer("q_lora_rank")
        return matrices + hidden * query_rank + query_rank * query_width, rank + query_rank
    return matrices + hidden * query_width, rank


def build_latent(config: Config) -> Blueprint:
    """DeepSeek V2 and V3, and what is built like them."""
    num_layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    layer = latent_layer(config, num_heads=num_heads)
    matrices, norms = latent_matrices(config, num_heads=num_heads)
    parameters = embedding(config.integer("vocab_size"), hidden, is_tied=is_tied(config, False))
    parameters = parameters.plus(
        matrices=num_layers * matrices, vectors=num_layers * (norms + 2 * hidden)
    )
    experts = deepseek_experts(config) if config.has("n_routed_experts") else no_experts(config)
    parameters = parameters.plus(matrices=_dense(config, num_layers, experts))
    return Blueprint((layer,) * num_layers, experts.added_to(parameters), notes=_notes(config))


def _dense(config: Config, num_layers: int, experts: Experts) -> int:
    count = num_layers - experts.num_layers
    if not count:
        return 0
    return count * gated_mlp(config.integer("hidden_size"), config.integer("intermediate_size"))


def _notes(config: Config) -> tuple[str, ...]:
    count = config.integer_or("num_nextn_predict_layers", 0)
    return (f"{count} multi-token-prediction layer(s) are not counted",) if count else ()


def build_sparse_latent(config: Config) -> Blueprint:
    """DeepSeek V3.2: V3 and an indexer in each layer, which picks the positions to attend to.

    The attended positions are at most `index_topk`; the indexer itself scores all of them.
    """
    plain = build_latent(config)
    index_dim, num_index = config.integer("index_head_dim"), config.integer("index_n_heads")
    top = config.integer("index_topk")
    scales = -(-index_dim // _SCALE_GROUP) * _SCALE_BYTES
    layer = replace(
        plain.layers[0],
        kind=Kind.SPARSE_LATENT,
        shape=f"{plain.layers[0].shape}, indexer key of {index_dim} in fp8",
        raw_bytes=index_dim + scales,
        pair_flops=2.0 * num_index * index_dim,
        decode_pair_flops=2.0 * num_index * index_dim,
    )
    hidden, query_rank = config.integer("hidden_size"), config.integer("q_lora_rank")
    matrices = query_rank * num_index * index_dim + hidden * index_dim + hidden * num_index
    num_layers = len(plain.layers)
    parameters = plain.parameters.plus(
        matrices=num_layers * matrices, vectors=num_layers * 2 * index_dim
    )
    note = f"attention to the {top:,} positions that the indexer picks is left out of the roofline"
    return Blueprint((layer,) * num_layers, parameters, notes=(*plain.notes, note))
