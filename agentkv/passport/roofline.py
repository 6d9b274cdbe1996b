"""Bounds by arithmetic and by memory for prefill and decode of a model on an accelerator.

Formulas (`agentkv.geometry`): prefill 2·P·S + per pair; decode max(F/peak, (W + B·bytes)/BW)
(Williams et al. 2009). They are bounds: a real engine is slower. The scan of recurrent layers is
left out; softmax and norms too. Tensor parallelism is taken as free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.geometry import KvFootprint, attended_pairs
from agentkv.passport.accelerators import Accelerator
from agentkv.passport.layers import Layer
from agentkv.passport.weights import Weights


@dataclass(frozen=True, slots=True)
class Point:
    """What a context of so many tokens costs on the accelerator(s)."""

    context_tokens: int
    kv_bytes: int
    prefill_flops: float
    prefill_s: float
    decode_flops: float
    decode_bytes: float
    decode_s: float

    @property
    def intensity(self) -> float:
        """FLOP per byte of a decode step."""
        return self.decode_flops / self.decode_bytes

    @property
    def tokens_per_s(self) -> float:
        """The most that one session can decode."""
        return 1 / self.decode_s


@dataclass(frozen=True, slots=True)
class Roofline:
    """Points of a batch of one, on `num_devices` accelerators together."""

    accelerator: Accelerator
    num_devices: int
    points: tuple[Point, ...]


def windowed_pairs(new_tokens: int, cached_tokens: int, window_tokens: int | None) -> float:
    """(query, position) pairs of new tokens that each see at most a window: Σ min(position, w)."""
    if window_tokens is None:
        return attended_pairs(new_tokens, cached_tokens)
    growing = max(0, min(new_tokens, window_tokens - cached_tokens))
    return attended_pairs(growing, cached_tokens) + (new_tokens - growing) * window_tokens


def prefill_flops(
    layers: Sequence[Layer], active: float, new_tokens: int, cached_tokens: int = 0
) -> float:
    """2·P·S for `active` parameters, and each layer's pairs."""
    return 2 * active * new_tokens + sum(
        count * layer.pair_flops * windowed_pairs(new_tokens, cached_tokens, layer.window_tokens)
        for layer, count in _counted(layers)
    )


def decode_flops(layers: Sequence[Layer], active: float, batch: int, context_tokens: int) -> float:
    """B·(2P + what each layer attends to) of one decode step."""
    pairs = sum(
        count * layer.decode_pair_flops * min(context_tokens, layer.window_tokens or context_tokens)
        for layer, count in _counted(layers)
    )
    return batch * (2 * active + pairs)


def make_roofline(
    layers: Sequence[Layer],
    weights: Weights,
    kept: tuple[KvFootprint, KvFootprint],
    accelerator: Accelerator,
    contexts: Sequence[int],
    *,
    num_devices: int = 1,
    batch: int = 1,
) -> Roofline:
    """Bounds for each context. `kept`: what a session takes in all, and on one of the devices."""
    active = weights.parameters.active
    flops_per_s = accelerator.flops_per_s * num_devices
    points = []
    for context in contexts:
        kv_bytes, device_bytes = (each.bytes_for(context) for each in kept)
        prefill = prefill_flops(layers, active, context)
        flops = decode_flops(layers, active, batch, context)
        read = weights.read_bytes(batch) / num_devices + batch * device_bytes
        points.append(
            Point(
                context_tokens=context,
                kv_bytes=kv_bytes,
                prefill_flops=prefill,
                prefill_s=prefill / flops_per_s,
                decode_flops=flops,
                decode_bytes=read * num_devices,
                decode_s=max(flops / flops_per_s, read / accelerator.bytes_per_s),
            )
        )
    return Roofline(accelerator, num_devices, tuple(points))


def _counted(layers: Sequence[Layer]) -> Sequence[tuple[Layer, int]]:
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return list(counts.items())
