"""Bytes of the weights: parameters times the width of their type, as the config quantises them.

Quantised checkpoints keep embeddings, head and norms in the model's type; that is how the formats
below do it by default. Scales count; zero points are taken as 4 bits (AWQ, GPTQ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from agentkv.passport.fields import Config
from agentkv.passport.layers import DTYPE_BYTES
from agentkv.passport.parameters import Parameters

_FP8_BLOCK = 128 * 128
_MXFP4_BITS: Final = 4 + 8 / 32  # a shared exponent of 8 bits for 32 values (OCP MX, 2023)


@dataclass(frozen=True, slots=True)
class Weights:
    """`matrix_bits`, `expert_bits`: bits of a parameter in layers; `other_bytes`: of all others."""

    parameters: Parameters
    description: str
    matrix_bits: float
    expert_bits: float
    other_bytes: float

    @property
    def bytes(self) -> float:
        """All of them."""
        return self.read_bytes(None) + self.parameters.table * self.other_bytes * self._has_table

    @property
    def _has_table(self) -> bool:
        """Whether the table is apart from the head: a tied one is read as head."""
        return self.parameters.head > 0

    def read_bytes(self, batch: int | None = 1) -> float:
        """What a decode step of `batch` tokens reads at least; None: every expert.

        Without the embedding table, of which it reads a row for each token, unless it is the head.
        """
        p = self.parameters
        share = 1.0 if batch is None else p.expert_share_read(batch)
        head = p.head or p.table
        layers = p.matrices * self.matrix_bits + p.experts * share * self.expert_bits
        return layers / 8 + (head + p.vectors) * self.other_bytes


def read_weights(
    config: Config, parameters: Parameters, dtype: str, given_dtype: str | None
) -> Weights:
    """By the config's `quantization_config`, unless the type is given. Raises ConfigError."""
    width = DTYPE_BYTES[given_dtype or dtype]
    quantization = config.data.get("quantization_config")
    if given_dtype is not None or not quantization:
        name = given_dtype or dtype
        return Weights(parameters, name, 8 * width, 8 * width, width)
    if not isinstance(quantization, dict):
        raise config.refuse("`quantization_config` is no object; give --weights-dtype")
    matrix_bits, expert_bits, name = _bits(config, quantization, 8 * width)
    return Weights(parameters, f"{name}, the rest {dtype}", matrix_bits, expert_bits, width)


def _bits(config: Config, given: dict[str, Any], plain: float) -> tuple[float, float, str]:
    method = str(given.get("quant_method", "")).replace("-", "_")
    if method == "fp8":
        blocks = bool(given.get("weight_block_size"))
        bits = 8 + (32 / _FP8_BLOCK if blocks else 0)
        return bits, bits, "layers in fp8"
    if method == "mxfp4":
        return plain, _MXFP4_BITS, "experts in mxfp4"
    if method in ("awq", "gptq"):
        return _integers(config, given, method)
    if method == "compressed_tensors":
        groups = list((given.get("config_groups") or {}).values())
        weights = (groups[0].get("weights") or {}) if len(groups) == 1 else {}
        return _integers(config, {**weights, "bits": weights.get("num_bits")}, method)
    raise config.refuse(
        f"weights quantised by {given.get('quant_method')!r} are not known;"
        " give --weights-dtype, as fp8"
    )


def _integers(config: Config, given: dict[str, Any], method: str) -> tuple[float, float, str]:
    bits, group = given.get("bits"), given.get("group_size") or -1
    if not isinstance(bits, int) or not isinstance(group, int):
        raise config.refuse(
            "`quantization_config` does not say one number of bits and one group size for all"
            " layers; give --weights-dtype, as fp8"
        )
    scales = (16 + (4 if bits < 8 else 0)) / group if group > 0 else 0.0
    return bits + scales, bits + scales, f"layers in {bits} bits ({method})"
