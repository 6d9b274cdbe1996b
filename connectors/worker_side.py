"""The worker half's additions: link speeds measured at start, and refused loads reported.

vLLM's offloading worker does the transfers and knows no failed job; a page that our CPU worker
refuses (checksum) is reported here in vLLM's own terms, so that the engine recomputes it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadingWorker
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

logger = init_logger("vllm.agentkv")

_PROBE_ROUNDS = 5
_PROBE_BLOCKS = 16
_PROBE_TIMEOUT_S = 5.0


@dataclass
class LinkSpeeds(KVConnectorHandshakeMetadata):
    """Bytes per second between GPU pool and DRAM, measured on this worker at start."""

    store_bytes_per_s: float
    load_bytes_per_s: float


@dataclass
class AgentKVWorkerMetadata(OffloadingWorkerMetadata):
    """vLLM's report of finished jobs, with the DRAM chunks whose content was refused.

    `failed_prefetches` are stand-in requests of which a block was: those have nobody to recompute.
    """

    refused_chunks: list[int] = field(default_factory=list)
    failed_prefetches: list[str] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> AgentKVWorkerMetadata:
        merged = super().aggregate(other)
        return AgentKVWorkerMetadata(
            completed_jobs=merged.completed_jobs,
            transfer_stats=merged.transfer_stats,
            refused_chunks=[*self.refused_chunks, *getattr(other, "refused_chunks", ())],
            failed_prefetches=[*self.failed_prefetches, *getattr(other, "failed_prefetches", ())],
        )


def measure_links(
    worker: OffloadingWorker,
    *,
    num_groups: int,
    num_blocks: int,
    num_chunks: int,
    blocks_per_chunk: int,
) -> LinkSpeeds | None:
    """Times real copies through the worker before the engine serves; None if they do not finish.

    Both sides hold nothing yet. The first round warms up and does not count; medians of the rest.
    """
    count = min(_PROBE_BLOCKS, num_blocks - 1, num_chunks * blocks_per_chunk)
    if count < 1:
        return None
    group_sizes = [count] + [0] * (num_groups - 1)
    gpu = GPULoadStoreSpec(list(range(1, count + 1)), group_sizes, [0] * num_groups)
    dram = CPULoadStoreSpec(list(range(-(-count // blocks_per_chunk))))
    speeds: dict[str, list[float]] = {"store": [], "load": []}
    for round_ in range(_PROBE_ROUNDS + 1):
        # Negative ids: the scheduler's own jobs count from zero.
        worker.submit_store(-2 * round_ - 1, gpu, dram)
        store_speed = _speed_of(worker, -2 * round_ - 1)
        worker.submit_load(-2 * round_ - 2, dram, gpu)
        load_speed = _speed_of(worker, -2 * round_ - 2)
        if store_speed is None or load_speed is None:
            return None
        if round_:
            speeds["store"].append(store_speed)
            speeds["load"].append(load_speed)
    return LinkSpeeds(statistics.median(speeds["store"]), statistics.median(speeds["load"]))


def slowest(speeds: Sequence[LinkSpeeds]) -> LinkSpeeds:
    """A transfer is done when its last rank is: the minimum over ranks."""
    return LinkSpeeds(
        min(speed.store_bytes_per_s for speed in speeds),
        min(speed.load_bytes_per_s for speed in speeds),
    )


def _speed_of(worker: OffloadingWorker, job_id: int) -> float | None:
    started_s = time.perf_counter()
    worker.wait({job_id})
    deadline_s = started_s + _PROBE_TIMEOUT_S
    while time.perf_counter() < deadline_s:
        for result in worker.get_finished():
            if result.job_id == job_id:
                seconds = result.transfer_time or (time.perf_counter() - started_s)
                num_bytes = float(result.transfer_size or 0)
                # A job whose pages all failed moved nothing: that is no speed.
                return num_bytes / seconds if num_bytes > 0 and seconds > 0 else None
        time.sleep(0.0005)
    logger.warning("agentkv: a copy did not finish within %.0f s at start", _PROBE_TIMEOUT_S)
    return None
