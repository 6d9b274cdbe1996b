"""Recurrent mixers: the shape of their state and the number of their parameters.

The convolution keeps (kernel - 1) inputs of each of its channels, in the model's type; the state
itself may be kept in a wider one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentkv.passport.fields import Config
from agentkv.passport.layers import Kind, Layer, State


@dataclass(frozen=True, slots=True)
class Count:
    """Parameters of one mixer."""

    matrices: int
    vectors: int


def mamba1(config: Config, hidden: int) -> tuple[Layer, Count]:
    """Mamba 1 as in Jamba, whose time step, B and C have a norm each."""
    inner = config.integer("mamba_expand") * hidden
    size, kernel = config.integer("mamba_d_state"), config.integer("mamba_d_conv", least=2)
    rank = _time_step_rank(config, hidden)
    layer = Layer(
        kind=Kind.STATE,
        shape=f"Mamba 1, {inner} x {size} and convolution of {kernel}",
        shards=inner,
        states=(State((kernel - 1) * inner, inner), State(inner * size, inner, "ssm")),
    )
    has_bias = config.flag("mamba_proj_bias", False)
    matrices = hidden * 2 * inner + inner * (rank + 2 * size) + rank * inner + inner * hidden
    vectors = inner * kernel + (inner if config.flag("mamba_conv_bias", True) else 0)
    vectors += inner + inner * size + inner  # bias of the time step, A, D
    vectors += rank + 2 * size + (2 * inner + hidden if has_bias else 0)
    return layer, Count(matrices, vectors)


def _time_step_rank(config: Config, hidden: int) -> int:
    """`mamba_dt_rank`, or hidden/16 where it says "auto"."""
    if config.data.get("mamba_dt_rank") == "auto":
        return math.ceil(hidden / 16)
    return config.integer("mamba_dt_rank")


@dataclass(frozen=True, slots=True)
class Mamba2Shape:
    inner: int
    num_heads: int
    head_dim: int
    num_groups: int
    size: int
    kernel: int
    conv_bias: bool
    projection_bias: bool


def read_mamba2(config: Config, hidden: int, prefix: str, inner: int | None = None) -> Mamba2Shape:
    """The fields `<prefix>_n_heads` and so on; heads x head dim must be the inner width."""
    num_heads = config.integer(f"{prefix}_n_heads")
    if inner is None:
        inner = config.integer(f"{prefix}_expand") * hidden
    head_dim = inner // num_heads
    if config.data.get(f"{prefix}_d_head") != "auto":
        head_dim = config.integer(f"{prefix}_d_head")
    if num_heads * head_dim != inner:
        raise config.refuse(
            f"`{prefix}_n_heads` x `{prefix}_d_head` is {num_heads * head_dim}, the inner width"
            f" {inner}; they must agree"
        )
    return Mamba2Shape(
        inner=inner,
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=config.integer(f"{prefix}_n_groups"),
        size=config.integer(f"{prefix}_d_state"),
        kernel=config.integer(f"{prefix}_d_conv", least=2),
        conv_bias=config.flag(f"{prefix}_conv_bias", True),
        projection_bias=config.flag(f"{prefix}_proj_bias", False),
    )


def mamba2(hidden: int, shape: Mamba2Shape, *, has_norm: bool = True) -> tuple[Layer, Count]:
    """Mamba 2: a state of heads x head dim x size; the convolution runs over x, B and C."""
    grouped = 2 * shape.num_groups * shape.size
    kept = shape.kernel - 1
    layer = Layer(
        kind=Kind.STATE,
        shape=f"Mamba 2, {shape.num_heads} x {shape.head_dim} x {shape.size}"
        f" and convolution of {shape.kernel}",
        shards=shape.num_heads,
        states=(
            State(kept * shape.inner, shape.num_heads),
            State(kept * grouped, shape.num_groups),
            State(shape.inner * shape.size, shape.num_heads, "ssm"),
        ),
    )
    channels, projected = shape.inner + grouped, 2 * shape.inner + grouped + shape.num_heads
    matrices = hidden * projected + shape.inner * hidden
    vectors = channels * (shape.kernel + shape.conv_bias) + 3 * shape.num_heads
    vectors += shape.inner if has_norm else 0
    vectors += projected + hidden if shape.projection_bias else 0
    return layer, Count(matrices, vectors)


def delta_net(config: Config, hidden: int) -> tuple[Layer, Count]:
    """Gated delta net: a state of value heads x value dim x key dim."""
    key_heads, value_heads = (
        config.integer("linear_num_key_heads"),
        config.integer("linear_num_value_heads"),
    )
    key_dim, value_dim = (
        config.integer("linear_key_head_dim"),
        config.integer("linear_value_head_dim"),
    )
    kernel = config.integer("linear_conv_kernel_dim", least=2)
    keys, values = key_heads * key_dim, value_heads * value_dim
    layer = Layer(
        kind=Kind.STATE,
        shape=f"gated delta net, {value_heads} x {value_dim} x {key_dim}"
        f" and convolution of {kernel}",
        shards=value_heads,
        states=(
            State((kernel - 1) * 2 * keys, key_heads),
            State((kernel - 1) * values, value_heads),
            State(values * key_dim, value_heads, "ssm"),
        ),
    )
    matrices = hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden
    vectors = kernel * (2 * keys + values) + 2 * value_heads + value_dim
    return layer, Count(matrices, vectors)


def kimi_delta(linear: Config, hidden: int) -> tuple[Layer, Count]:
    """Kimi Delta Attention: a state of heads x dim x dim in float32; three convolutions.

    `linear`: the config's `linear_attn_config`. The gates of forgetting and of the output go
    through a bottleneck of one head's width.
    """
    heads, dim = linear.integer("num_heads"), linear.integer("head_dim")
    kernel = linear.integer("short_conv_kernel_size", least=2)
    width = heads * dim
    layer = Layer(
        kind=Kind.STATE,
        shape=f"Kimi Delta Attention, {heads} x {dim} x {dim} and convolution of {kernel}",
        shards=heads,
        states=(
            State((kernel - 1) * 3 * width, heads),
            State(heads * dim * dim, heads, "float32"),
        ),
    )
    matrices = 4 * hidden * width + 2 * (hidden * dim + dim * width) + hidden * heads
    vectors = 3 * kernel * width + width + heads + dim
    return layer, Count(matrices, vectors)
