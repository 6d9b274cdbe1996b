"""Puts a passport together: from a config and what is known of its serving to all numbers.

Where: `agentkv passport` prints it and writes `to_json`; `agentkv.plan` asks `footprint`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from agentkv.errors import ConfigError
from agentkv.geometry import KvFootprint
from agentkv.passport.accelerators import Accelerator
from agentkv.passport.blueprint import Blueprint
from agentkv.passport.fields import Config
from agentkv.passport.layers import (
    DTYPE_BYTES,
    Dtypes,
    Group,
    Kind,
    Layer,
    footprint,
    group_layers,
)
from agentkv.passport.registry import read_blueprint
from agentkv.passport.roofline import Roofline, make_roofline
from agentkv.passport.weights import Weights, read_weights

_MODEL_DTYPES: Final = ("bfloat16", "float16", "float32")
_LATENT_ALIGNMENT: Final = 128
CONTEXTS: Final = (8192, 32_768, 131_072, 1_000_000)


@dataclass(frozen=True, slots=True)
class Serving:
    """How the model is served. None and "auto": as the config says.

    `block_tokens`: vLLM's `--block-size`; `ssm_dtype`: its `--mamba-ssm-cache-dtype`.
    """

    dtype: str | None = None
    kv_dtype: str = "auto"
    ssm_dtype: str = "auto"
    weights_dtype: str | None = None
    block_tokens: int = 16
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Passport:
    """All of one model. Bytes are of all devices together unless a name says otherwise."""

    name: str
    model_type: str
    serving: Serving
    dtype: str
    dtypes: Dtypes
    layers: tuple[Layer, ...]
    groups: tuple[Group, ...]
    device_groups: tuple[Group, ...]
    weights: Weights
    block_tokens: int
    max_context_tokens: int | None
    notes: tuple[str, ...]
    assumed: Mapping[str, Any]

    @property
    def footprint(self) -> KvFootprint:
        """Answers how many bytes a context takes."""
        return footprint(self.groups)

    @property
    def device_footprint(self) -> KvFootprint:
        """The same of one tensor-parallel device."""
        return footprint(self.device_groups)

    @property
    def bytes_per_token(self) -> float:
        """What each token takes at first, while it lies within every window."""
        return sum(group.bytes_per_token for group in self.groups)

    @property
    def growth_bytes_per_token(self) -> float:
        """What each token takes for good: the growth that no window stops."""
        return sum(group.bytes_per_token for group in self.groups if group.grows)

    @property
    def fixed_bytes(self) -> float:
        """Recurrent and convolution states of one sequence, whatever its length."""
        return sum(group.fixed_bytes for group in self.groups)

    @property
    def window_bytes(self) -> float:
        """What full windows hold, for a sequence that is longer than each of them."""
        return sum(group.window_bytes for group in self.groups)

    def roofline(self, accelerator: Accelerator, contexts: Sequence[int] | None = None) -> Roofline:
        """Bounds on so many accelerators as there are tensor-parallel ranks."""
        return make_roofline(
            self.layers,
            self.weights,
            (self.footprint, self.device_footprint),
            accelerator,
            contexts or self.contexts(),
            num_devices=self.serving.tensor_parallel,
        )

    def contexts(self) -> tuple[int, ...]:
        """The usual lengths up to the model's longest, and that one."""
        longest = self.max_context_tokens or CONTEXTS[-1]
        return (*(length for length in CONTEXTS if length < longest), longest)


def make_passport(data: Mapping[str, Any], label: str, serving: Serving) -> Passport:
    """Reads a config. Raises ConfigError for what is unknown, missing or contradictory."""
    config, blueprint = read_blueprint(data, label)
    dtype = _model_dtype(config, serving.dtype)
    dtypes = _cache_dtypes(blueprint, dtype, serving)
    _check_split(config, serving.tensor_parallel)
    weights = read_weights(config, blueprint.parameters, dtype, serving.weights_dtype)
    longest = "max_position_embeddings"
    return Passport(
        name=label,
        model_type=config.model_type,
        serving=serving,
        dtype=dtype,
        dtypes=dtypes,
        layers=blueprint.layers,
        groups=group_layers(blueprint.layers, dtypes),
        device_groups=group_layers(blueprint.layers, dtypes, serving.tensor_parallel),
        weights=weights,
        block_tokens=engine_block_tokens(
            blueprint.layers, dtypes, serving.block_tokens, serving.tensor_parallel
        ),
        max_context_tokens=config.integer(longest) if config.has(longest) else None,
        notes=(*blueprint.notes, *_dtype_notes(dtype, serving)),
        assumed=blueprint.assumed,
    )


def engine_block_tokens(
    layers: Sequence[Layer], dtypes: Dtypes, block_tokens: int, tensor_parallel: int = 1
) -> int:
    """Tokens of a block as vLLM sets them.

    In hybrids a block of an attention layer must be as large as a state, so vLLM raises the block
    size: to the next multiple of the given one (of 128 at least with MLA) that holds it.
    """
    per_device = group_layers(layers, dtypes, tensor_parallel)
    states = [group.fixed_bytes / group.num_layers for group in per_device if group.fixed_bytes]
    rows = [group for group in per_device if group.bytes_per_token]
    if not states or not rows:
        return block_tokens
    row = max(group.bytes_per_token / group.num_layers for group in rows)
    is_latent = any(group.kind is Kind.LATENT for group in rows)
    step = max(block_tokens, _LATENT_ALIGNMENT) if is_latent else block_tokens
    return step * max(1, math.ceil(max(states) / (step * row)))


def _model_dtype(config: Config, given: str | None) -> str:
    if given is not None:
        return _check_dtype("--dtype", given, _MODEL_DTYPES)
    found = config.data.get("dtype") or config.data.get("torch_dtype")
    if found is None:
        raise config.refuse("config.json lacks `torch_dtype`; give --dtype, as bfloat16")
    name = str(found).removeprefix("torch.")
    if name not in _MODEL_DTYPES:
        raise config.refuse(f"`torch_dtype` {name!r} is not known; give --dtype, as bfloat16")
    return name


def _check_split(config: Config, tensor_parallel: int) -> None:
    """vLLM splits query heads evenly or not at all."""
    heads = config.integer_or("num_attention_heads", 0)
    if heads % tensor_parallel:
        nearest = max(n for n in range(1, tensor_parallel) if heads % n == 0)
        raise ConfigError(
            f"--tp {tensor_parallel}: does not divide the {heads} attention heads; give {nearest}"
        )


def _cache_dtypes(blueprint: Blueprint, dtype: str, serving: Serving) -> Dtypes:
    kv = dtype
    if serving.kv_dtype != "auto":
        kv = _check_dtype("--kv-dtype", serving.kv_dtype, DTYPE_BYTES)
    if kv != dtype and any(layer.kind is Kind.SPARSE_LATENT for layer in blueprint.layers):
        raise ConfigError(
            f"--kv-dtype {kv}: sparse latent attention packs other types in a layout of its own,"
            f" which is not known here; give {dtype}"
        )
    ssm = blueprint.ssm_dtype or dtype
    if serving.ssm_dtype != "auto":
        ssm = _check_dtype("--ssm-dtype", serving.ssm_dtype, _MODEL_DTYPES)
    return Dtypes(kv=kv, conv=dtype, ssm=ssm)


def _check_dtype(option: str, name: str, known: Sequence[str] | Mapping[str, int]) -> str:
    if name not in known:
        raise ConfigError(f"{option} {name}: not known; give one of {', '.join(known)}")
    return name


def _dtype_notes(dtype: str, serving: Serving) -> tuple[str, ...]:
    if dtype == "float32" and serving.dtype is None:
        return ("vLLM serves a float32 model in 16 bits unless --dtype float32 is given",)
    return ()


def to_json(
    passport: Passport, roofline: Roofline | None, contexts: Sequence[int]
) -> dict[str, Any]:
    """All numbers as plain objects; `roofline` is null where no accelerator was named."""
    parameters = passport.weights.parameters
    return {
        "model": passport.name,
        "model_type": passport.model_type,
        "bytes_per_token": passport.bytes_per_token,
        "growth_bytes_per_token": passport.growth_bytes_per_token,
        "fixed_bytes": passport.fixed_bytes,
        "window_bytes": passport.window_bytes,
        "groups": [_group_json(group) for group in passport.groups],
        "device_groups": [_group_json(group) for group in passport.device_groups],
        "tensor_parallel": passport.serving.tensor_parallel,
        "kv_dtype": passport.dtypes.kv,
        "state_dtypes": {"conv": passport.dtypes.conv, "ssm": passport.dtypes.ssm},
        "block_tokens": passport.block_tokens,
        "block_bytes": passport.bytes_per_token * passport.block_tokens,
        "max_context_tokens": passport.max_context_tokens,
        "context_bytes": {str(n): passport.footprint.bytes_for(n) for n in contexts},
        "parameters": {
            **asdict(parameters),
            "total": parameters.total,
            "active": parameters.active,
        },
        "weights_bytes": passport.weights.bytes,
        "weights": passport.weights.description,
        "notes": list(passport.notes),
        "assumed": dict(passport.assumed),
        "roofline": None if roofline is None else _roofline_json(roofline),
    }


def _group_json(group: Group) -> dict[str, Any]:
    return {**asdict(group), "kind": group.kind.value, "grows": group.grows}


def _roofline_json(roofline: Roofline) -> dict[str, Any]:
    return {
        "accelerator": asdict(roofline.accelerator),
        "num_devices": roofline.num_devices,
        "ridge_flop_per_byte": roofline.accelerator.ridge,
        "points": [
            {**asdict(point), "intensity": point.intensity, "tokens_per_s": point.tokens_per_s}
            for point in roofline.points
        ],
    }
