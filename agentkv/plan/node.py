"""What a node has for KV: its memory less weights and runtime, split over devices.

Formulas (documents' "From context tokens to KV state"): weights per device N·b/(TP·PP); pool =
HBM - weights - runtime. Replicas: devices / (TP·PP), each with weights of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.errors import ConfigError
from agentkv.passport.accelerators import Accelerator
from agentkv.passport.text import size_text


@dataclass(frozen=True, slots=True)
class Node:
    """`hbm_bytes`, `runtime_bytes`: of one device; `weights_bytes`: of one replica."""

    accelerator: Accelerator
    num_devices: int
    tensor_parallel: int
    pipeline_parallel: int
    hbm_bytes: float
    runtime_bytes: float
    weights_bytes: float

    @property
    def replica_devices(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def num_replicas(self) -> int:
        return self.num_devices // self.replica_devices

    @property
    def device_weights_bytes(self) -> float:
        """N_params·b_w / (TP·PP)."""
        return self.weights_bytes / self.replica_devices

    @property
    def device_pool_bytes(self) -> float:
        """What a device has left for KV; negative where the weights do not fit."""
        return self.hbm_bytes - self.device_weights_bytes - self.runtime_bytes

    @property
    def pool_bytes(self) -> float:
        """The pools of all devices."""
        return self.device_pool_bytes * self.num_devices

    @property
    def replica_flops_per_s(self) -> float:
        return self.accelerator.flops_per_s * self.replica_devices

    @property
    def replica_bytes_per_s(self) -> float:
        return self.accelerator.bytes_per_s * self.replica_devices


def check_node(node: Node) -> Node:
    """The node itself. Raises ConfigError where devices do not divide or weights do not fit."""
    each = node.replica_devices
    if node.num_devices % each:
        nearest = max(each, node.num_devices // each * each)
        raise ConfigError(
            f"--count {node.num_devices}: no multiple of --tp {node.tensor_parallel} x --pp"
            f" {node.pipeline_parallel}; give {nearest}"
        )
    if node.device_pool_bytes > 0:
        return node
    room = node.hbm_bytes - node.runtime_bytes
    if room <= 0:
        raise ConfigError(
            f"--runtime {size_text(node.runtime_bytes)}: not less than the"
            f" {size_text(node.hbm_bytes)} of a device; give less"
        )
    needed = int(node.weights_bytes // room) + 1
    degree = 1 << (needed - 1).bit_length()
    raise ConfigError(
        f"--tp {node.tensor_parallel}: {size_text(node.device_weights_bytes)} of weights on a"
        f" device do not fit beside {size_text(node.runtime_bytes)} of runtime in"
        f" {size_text(node.hbm_bytes)}; give --tp x --pp of {degree} and --count to match"
    )
