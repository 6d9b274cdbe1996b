"""How many bytes and operations a context costs: closed formulas, no measurement.

What: KV bytes per token, sessions per pool, paging waste, prefill and decode work of a transformer.
Why: every later price (reload, recompute, break-even) starts from these, and they can be checked by
hand. Where: `cost_model` turns them into seconds; the connector fills `KvFootprint` from the
engine's own cache layout, so that it is right for MLA, sliding windows and hybrid models too.

Sources of the formulas: Kwon et al. 2023 (PagedAttention: blocks, tail waste, fragmentation);
DeepSeek-V2 2024 (MLA latents); Beltagy et al. 2020 (sliding window); Williams et al. 2009
(roofline: the decode ceiling). A multiply-add counts as two FLOPs; softmax and norms are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dimensions of a dense transformer with grouped-query attention (MHA when heads agree)."""

    num_params: float
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    bytes_per_element: float = 2

    @property
    def kv_bytes_per_token(self) -> float:
        """2·L·H_kv·d_head·b: a key and a value per layer and KV head."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.bytes_per_element

    @property
    def flops_per_pair(self) -> float:
        """4·L·H_q·d_head: QK and AV for one query token and one attended position."""
        return 4.0 * self.num_layers * self.num_query_heads * self.head_dim


def mla_bytes_per_token(
    num_layers: int, latent_dim: int, rope_dim: int, bytes_per_element: float = 2
) -> float:
    """L·(d_c + d_r)·b: multi-head latent attention keeps one latent and one rotary key a layer."""
    return num_layers * (latent_dim + rope_dim) * bytes_per_element


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share one KV layout. `window_tokens` bounds the positions they keep."""

    bytes_per_token: float
    window_tokens: int | None = None

    def positions(self, context_tokens: int) -> int:
        """min(N, w) positions of a sliding window, N of full attention."""
        if self.window_tokens is None:
            return context_tokens
        return min(context_tokens, self.window_tokens)


@dataclass(frozen=True, slots=True)
class KvFootprint:
    """Bytes one session keeps: a fixed recurrent state plus what each KV group keeps per token."""

    groups: tuple[KvGroup, ...]
    fixed_bytes: int = 0

    def bytes_for(self, context_tokens: int) -> int:
        """Bytes of a context of that many tokens; 0 for an empty one."""
        if context_tokens <= 0:
            return 0
        kept = 0.0
        for group in self.groups:  # Asked thousands of times a second: no generator.
            kept += group.bytes_per_token * group.positions(context_tokens)
        return self.fixed_bytes + math.ceil(kept)

    @property
    def unbounded_bytes_per_token(self) -> float:
        """Bytes per token of the full-attention groups: the growth that no window stops."""
        return sum(g.bytes_per_token for g in self.groups if g.window_tokens is None)


def weights_bytes_per_device(
    num_params: float, bytes_per_weight: float, tensor_parallel: int = 1, pipeline_parallel: int = 1
) -> float:
    """N_params·b_w / (TP·PP)."""
    return num_params * bytes_per_weight / (tensor_parallel * pipeline_parallel)


def token_capacity(pool_bytes: float, bytes_per_token: float) -> int:
    """Whole tokens that fit in a pool."""
    return int(pool_bytes // bytes_per_token)


def kv_demand_bytes(
    num_sessions: int,
    bytes_per_token: float,
    *,
    context_tokens: float,
    output_tokens: float = 0,
    shared_tokens: float = 0,
) -> float:
    """(S_shared + B·(M - S_shared + K))·m: the shared prefix is kept once."""
    private_tokens = context_tokens - shared_tokens + output_tokens
    return (shared_tokens + num_sessions * private_tokens) * bytes_per_token


def max_sessions(
    pool_bytes: float,
    bytes_per_token: float,
    *,
    context_tokens: float,
    output_tokens: float = 0,
    shared_tokens: float = 0,
    headroom_fraction: float = 0.0,
) -> int:
    """B_max: the most sessions whose `kv_demand_bytes` fit in the pool less its headroom.

    `pool_bytes` is what weights and runtime leave. Raises ValueError where a session needs nothing.
    """
    private_tokens = context_tokens - shared_tokens + output_tokens
    if private_tokens <= 0 or bytes_per_token <= 0:
        raise ValueError("a session must need at least one private token")
    usable = pool_bytes * (1 - headroom_fraction) - shared_tokens * bytes_per_token
    return max(0, math.floor(usable / (private_tokens * bytes_per_token)))


def allocation_efficiency(used: float, allocated: float) -> float:
    """η = Σs_i / ΣA_i: the share of reserved memory that holds tokens; E[S]/S_max when static.

    Against a whole pool (M_useful / M_pool) the same ratio is the effective fill.
    """
    return used / allocated


def external_fragmentation(hole_bytes: Iterable[float], request_bytes: float) -> float:
    """Φ_ext = 1 - Σ_{H_k ≥ R} H_k / M_free: the share of free memory in holes below the request."""
    holes = list(hole_bytes)
    free = sum(holes)
    return 1 - sum(h for h in holes if h >= request_bytes) / free if free else 0.0


def block_bytes(bytes_per_token: float, block_tokens: int) -> float:
    """Bytes of one KV block."""
    return bytes_per_token * block_tokens


def tail_waste_tokens(num_tokens: int, block_tokens: int) -> int:
    """(B - S mod B) mod B: empty positions in the last block of a sequence."""
    return -num_tokens % block_tokens


def expected_tail_waste_tokens(block_tokens: int) -> float:
    """(B - 1)/2: the mean tail for lengths spread evenly over a block."""
    return (block_tokens - 1) / 2


def expected_waste_ratio(mean_tokens: float, block_tokens: int) -> float:
    """((B-1)/2) / (S̄ + (B-1)/2): empty positions over allocated positions."""
    waste = expected_tail_waste_tokens(block_tokens)
    return waste / (mean_tokens + waste)


def usable_prefix_tokens(matched_tokens: int, block_tokens: int) -> int:
    """floor(S_match / B)·B: only whole blocks can be shared."""
    return matched_tokens // block_tokens * block_tokens


def prefix_share(matched_tokens: float, prompt_tokens: float) -> float:
    """S_match / S: the share of a prompt that is cached; summed over a session, its hit rate."""
    return matched_tokens / prompt_tokens if prompt_tokens else 0.0


def attended_pairs(new_tokens: float, cached_tokens: float = 0) -> float:
    """C·S + S(S+1)/2: (query, position) pairs of S new tokens on C cached ones, causal."""
    return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2


def prefill_flops(
    shape: ModelShape, new_tokens: int, cached_tokens: int = 0, *, is_causal: bool = True
) -> float:
    """2·P·S + 2·L·H_q·d_h·[(C+S)(C+S+1) - C(C+1)]: projections plus attention.

    `is_causal=False` counts the full square 4·L·d_model·S·(C+S), an upper bound.
    """
    linear = 2 * shape.num_params * new_tokens
    if is_causal:
        pairs = attended_pairs(new_tokens, cached_tokens)
    else:
        pairs = float(new_tokens * (cached_tokens + new_tokens))
    return linear + shape.flops_per_pair * pairs


def recompute_linear_s(num_params: float, context_tokens: float, flops_per_s: float) -> float:
    """T_recomp ≈ 2·P·S / R_prefill: the projections alone; attention comes on top."""
    return 2 * num_params * context_tokens / flops_per_s


def decode_flops(shape: ModelShape, batch: int, context_tokens: int) -> float:
    """B·(2P + 4·L·H_q·d_h·N) of one decode step."""
    return batch * (2 * shape.num_params + shape.flops_per_pair * context_tokens)


def decode_read_bytes(
    weights_bytes: float, batch: int, context_tokens: int, bytes_per_token: float
) -> float:
    """W + B·N·m: what one decode step must read."""
    return weights_bytes + batch * context_tokens * bytes_per_token


def decode_ceiling_tokens_per_s(
    bytes_per_s: float, weights_bytes: float, batch: int, kv_bytes_per_session: float
) -> float:
    """Q ≤ B·BW / (W + B·N·m): memory bandwidth bounds the whole batch's tokens per second."""
    return batch * bytes_per_s / (weights_bytes + batch * kv_bytes_per_session)


def decode_balance_batch(weights_bytes: float, kv_bytes_per_session: float) -> float:
    """B* = W / (N·m): the batch from which reading KV outweighs reading weights."""
    return weights_bytes / kv_bytes_per_session
