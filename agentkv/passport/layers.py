"""What a layer of a model keeps of a sequence: per token, within a window, or of fixed size.

Formulas: K and V are 2·H_kv·d_head elements a token; a latent (MLA) d_c + d_r; a window keeps
min(N, w) positions; a recurrent or convolution state has a fixed size (`agentkv.geometry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from agentkv.errors import ConfigError
from agentkv.geometry import KvFootprint, KvGroup

DTYPE_BYTES: Final = {
    **{"float32": 4, "float16": 2, "bfloat16": 2},
    **{"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1},
}


class Kind(str, Enum):
    """How the state of a layer behaves as the context grows."""

    FULL = "full attention"
    LATENT = "latent attention (MLA)"
    SPARSE_LATENT = "sparse latent attention (MLA + indexer)"
    WINDOW = "sliding window"
    CHUNK = "chunked local attention"
    STATE = "recurrent state"


@dataclass(frozen=True, slots=True)
class State:
    """A tensor of fixed size. `dtype`: "kv" (the model's type), "ssm", or a name."""

    elements: int
    shards: int
    dtype: str = "kv"


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Types of what is cached: `kv` of keys, values and latents, `conv` and `ssm` of states."""

    kv: str
    conv: str
    ssm: str

    def bytes_of(self, state: State) -> int:
        name = {"kv": self.conv, "ssm": self.ssm}.get(state.dtype, state.dtype)
        return state.elements * DTYPE_BYTES[name]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. `shards`: the most devices its heads can be split over (tensor parallelism).

    `pair_flops`, `decode_pair_flops`: operations for one query token and one attended position, in
    prefill and in decode, which differ for MLA. `raw_bytes`: per token, whatever the KV dtype is.
    """

    kind: Kind
    shape: str
    shards: int
    elements: int = 0
    raw_bytes: int = 0
    window_tokens: int | None = None
    states: tuple[State, ...] = ()
    pair_flops: float = 0.0
    decode_pair_flops: float = 0.0

    def token_bytes(self, dtypes: Dtypes) -> int:
        """Bytes that one token takes."""
        return self.elements * DTYPE_BYTES[dtypes.kv] + self.raw_bytes

    def state_bytes(self, dtypes: Dtypes) -> int:
        """Bytes of fixed size per sequence."""
        return sum(dtypes.bytes_of(state) for state in self.states)


def attention(
    num_kv_heads: int,
    head_dim: int,
    num_query_heads: int,
    *,
    window_tokens: int | None = None,
    kind: Kind = Kind.FULL,
) -> Layer:
    """MHA, GQA or MQA: K and V of each KV head."""
    flops = 4.0 * num_query_heads * head_dim
    sort = "MHA" if num_kv_heads == num_query_heads else "MQA" if num_kv_heads == 1 else "GQA"
    return Layer(
        kind=kind,
        shape=f"{sort}, K and V of {num_kv_heads} x {head_dim}",
        shards=num_kv_heads,
        elements=2 * num_kv_heads * head_dim,
        window_tokens=window_tokens,
        pair_flops=flops,
        decode_pair_flops=flops,
    )


def device_share(shards: int, tensor_parallel: int) -> float:
    """The part of a layer's cache on one device: split while heads last, then repeated.

    Raises ConfigError where vLLM would refuse the split.
    """
    if shards % tensor_parallel == 0:
        return 1 / tensor_parallel
    if tensor_parallel % shards == 0:
        return 1 / shards
    nearest = max(n for n in range(1, tensor_parallel + 1) if shards % n == 0 or n % shards == 0)
    raise ConfigError(f"--tp {tensor_parallel}: {shards} heads cannot be split so; give {nearest}")


@dataclass(frozen=True, slots=True)
class Group:
    """Layers of one kind and shape. Bytes are those of all its layers, on all devices or on one."""

    kind: Kind
    shape: str
    num_layers: int
    bytes_per_token: float
    window_tokens: int | None
    fixed_bytes: float
    window_bytes: float

    @property
    def grows(self) -> bool:
        """Whether each further token takes more memory, however long the context is."""
        return self.bytes_per_token > 0 and self.window_tokens is None


def group_layers(
    layers: Sequence[Layer], dtypes: Dtypes, tensor_parallel: int | None = None
) -> tuple[Group, ...]:
    """Equal layers together. With `tensor_parallel`: what one of so many devices keeps.

    Pipeline stages are not told apart: what a stage keeps depends on which layers it has.
    """
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(_group(layer, n, dtypes, tensor_parallel) for layer, n in counts.items())


def _group(layer: Layer, count: int, dtypes: Dtypes, tensor_parallel: int | None) -> Group:
    share = device_share(layer.shards, tensor_parallel) if tensor_parallel else 1.0
    per_token = layer.token_bytes(dtypes) * count * share
    fixed = sum(
        dtypes.bytes_of(state)
        * (device_share(state.shards, tensor_parallel) if tensor_parallel else 1.0)
        for state in layer.states
    )
    return Group(
        kind=layer.kind,
        shape=layer.shape,
        num_layers=count,
        bytes_per_token=per_token,
        window_tokens=layer.window_tokens,
        fixed_bytes=fixed * count,
        window_bytes=per_token * (layer.window_tokens or 0),
    )


def footprint(groups: Sequence[Group]) -> KvFootprint:
    """The same as `geometry.KvFootprint`, which answers how many bytes a context takes."""
    kept = tuple(
        KvGroup(group.bytes_per_token, group.window_tokens)
        for group in groups
        if group.bytes_per_token > 0
    )
    return KvFootprint(kept, round(sum(group.fixed_bytes for group in groups)))


def with_window(layer: Layer, window_tokens: int | None, kind: Kind = Kind.WINDOW) -> Layer:
    """The same layer over a window; unchanged without one."""
    if window_tokens is None:
        return layer
    return replace(layer, kind=kind, window_tokens=window_tokens)
