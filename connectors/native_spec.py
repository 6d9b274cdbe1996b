"""vLLM's own DRAM offloading on the CPU platform: the baseline that agentkv is measured against.

What: upstream's spec, manager and LRU as they are; only the copies are ours, for upstream's need
CUDA. Why: elsewhere `OffloadingConnector` runs as it comes, and a comparison made on a machine
without a GPU should have the same rival. Where: named in `kv_connector_extra_config` as `spec_name`
and `spec_module_path` by `agentkv bench replay`; agentkv itself never uses it.
"""

from __future__ import annotations

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from agentkv.config import AgentKVConfig
from agentkv.symbols import Symbol

from .cpu_worker import CpuCopyWorker
from .probe import check_vllm

_SPEC = "vllm.v1.kv_offload.cpu.spec:CPUOffloadingSpec"
SYMBOLS = (
    Symbol(f"{_SPEC}.__init__", ("self", "config"), ("num_chunks", "kv_bytes_per_chunk")),
    Symbol(f"{_SPEC}.get_worker", ("self", "kv_caches")),
    Symbol("vllm.v1.kv_offload.base:OffloadingSpec.__init__", mentions=("blocks_per_chunk",)),
)


class NativeOffloadingSpec(CPUOffloadingSpec):
    """`CPUOffloadingSpec` whose worker copies between host memory and host memory.

    Raises UnsupportedVllmError if this vLLM lacks something that it builds on.
    """

    def __init__(self, config: OffloadingConfig) -> None:
        check_vllm(SYMBOLS)
        super().__init__(config)
        self._host_worker: CpuCopyWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._host_worker is None:
            region = torch.empty((self.num_chunks, self.kv_bytes_per_chunk), dtype=torch.int8)
            self._host_worker = CpuCopyWorker(
                kv_caches,
                blocks_per_chunk=self.blocks_per_chunk,
                make_dram_view=_Columns(region).take,
                num_threads=int(AgentKVConfig.model_fields["copy_threads"].default),
            )
        return self._host_worker


class _Columns:
    """Hands out a chunk's row piece by piece, one for each cache tensor."""

    def __init__(self, region: torch.Tensor) -> None:
        self._region = region
        self._next = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        start, self._next = self._next, self._next + num_bytes
        return self._region[:, start : self._next]
