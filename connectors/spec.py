"""The offloading spec: vLLM's tiering spec, a copy worker for the CPU platform, our metrics."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from agentkv.config import config_from_extra
from agentkv.errors import ConfigError

from .chunk_sums import ChunkSums
from .cpu_worker import CpuCopyWorker
from .metrics import metric_definitions
from .tiering import AgentKVTieringManager

logger = init_logger("vllm.agentkv")


class AgentKVSpec(TieringOffloadingSpec):
    """`TieringOffloadingSpec` that also works where the KV cache itself is in host memory.

    Raises:
        ConfigError: the DRAM tier is too small for a single chunk.
    """

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return {**super().build_metric_definitions(extra_config), **metric_definitions()}

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._cpu_worker: CpuCopyWorker | None = None
        self._tiering: AgentKVTieringManager | None = None
        self.agentkv_config = config_from_extra(self.extra_config)
        if self.num_chunks < 1:
            raise ConfigError(
                f"dram.size_bytes: {self.extra_config['cpu_bytes_to_use']} bytes hold 0 KV blocks "
                f"of {self.kv_bytes_per_chunk} bytes; give at least {self.kv_bytes_per_chunk}"
            )

    def get_manager(self) -> OffloadingManager:
        if self._tiering is not None:
            return self._tiering
        primary = super().get_manager().primary_tier
        sums = self._open_sums() if current_platform.is_cpu() else None
        if not self._scheduler_mmap._creator:
            _take_name_away(self._scheduler_mmap)
            if sums is not None:
                sums.take_name_away()
        self._manager = self._tiering = AgentKVTieringManager(primary, self, sums)
        return self._tiering

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not current_platform.is_cpu():
            worker = super().get_worker(kv_caches)
            region = getattr(worker, "_mmap_region", None)
            if region is not None:
                region._creator = False  # The scheduler takes the name away: see below.
            return worker
        if self._cpu_worker is None:
            self._cpu_worker = self._create_cpu_worker(kv_caches)
        return self._cpu_worker

    def _create_cpu_worker(self, kv_caches: CanonicalKVCaches) -> CpuCopyWorker:
        if self.config.canonical_layout:
            raise ConfigError("offloading.canonical_layout: not supported on the CPU platform")
        rank = 0 if self.replicated_layout else self.config.parallel.rank
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        sums = self._open_sums()
        return CpuCopyWorker(
            kv_caches,
            blocks_per_chunk=self.blocks_per_chunk,
            make_dram_view=region.create_next_worker_view,
            num_threads=self.agentkv_config.copy_threads,
            sums=sums,
            rank=rank,
            release=functools.partial(_release, region, sums),
        )

    def _open_sums(self) -> ChunkSums:
        return ChunkSums(
            num_workers=1 if self.replicated_layout else self.config.parallel.world_size,
            num_chunks=self.num_chunks,
            page_bytes=self.cpu_page_size_per_worker,
            path=f"/dev/shm/agentkv_sums_{self._engine_id}.mmap",
        )


def _take_name_away(region: SharedOffloadRegion) -> None:
    """Unlinks the DRAM tier's file in /dev/shm once every process has mapped it.

    vLLM makes the scheduler after all workers have registered their caches, so when it finds the
    file there, nobody will open it again. Without a name the memory goes back when the last process
    ends, however it ends; with one, a killed server leaves it behind for good.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(region.mmap_path)


def _release(region: SharedOffloadRegion, sums: ChunkSums) -> None:
    sums.close()
    region._creator = region._creator and os.path.exists(region.mmap_path)
    region.cleanup()
