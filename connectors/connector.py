"""`AgentKVConnector`: vLLM's offloading connector plus pauses. A façade: it only dispatches.

Inherited: storing full blocks to DRAM behind the compute, asynchronous loads, their fences, hybrid
groups, TP. Added: what a pause does to the GPU pool and the DRAM tier (`scheduler_side`), link
speeds measured at start and refused loads (`worker_side`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any, cast

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_events import KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from agentkv.capacity import total_memory_bytes
from agentkv.config import config_from_extra, resolve_extra_config
from agentkv.metrics import Recorder

from .assembly import build_scheduler_side
from .control import is_control, without_replies
from .cpu_worker import CpuCopyWorker
from .metrics import AgentKVPromMetrics, StatsPace, to_stats, unregister_metrics
from .pool_load import REQUEST_PREFIX, PoolLoader, without_prefetches
from .probe import check_vllm
from .refused_loads import RefusedLoads
from .scheduler_side import SchedulerSide
from .worker_side import AgentKVWorkerMetadata, LinkSpeeds, measure_links, slowest

logger = init_logger("vllm.agentkv")


class AgentKVConnector(OffloadingConnector):
    """The connector vLLM loads for `--kv-connector agentkv`.

    Raises at construction (and only there):
        ConfigError: a setting is wrong; one line says which and how to mend it.
        UnsupportedVllmError: this vLLM was not tested or lacks something we build on.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        check_vllm()
        transfer = vllm_config.kv_transfer_config
        transfer.kv_connector_extra_config = resolve_extra_config(
            transfer.kv_connector_extra_config, free_memory=total_memory_bytes
        )
        self.config = config_from_extra(transfer.kv_connector_extra_config)
        super().__init__(vllm_config, role, kv_cache_config, *args, **kwargs)
        num_groups = len(kv_cache_config.kv_cache_groups)
        self._num_gpu_blocks = int(kv_cache_config.num_blocks)
        self._recorder = Recorder()
        self._pace = StatsPace()
        self._links: LinkSpeeds | None = None
        self._refused = RefusedLoads(num_groups, self._recorder)
        self._side: SchedulerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._side = build_scheduler_side(
                self.config, vllm_config, kv_cache_config, self.scheduler, self._recorder
            )

    # --- scheduler role ---

    @property
    def scheduler_side(self) -> SchedulerSide | None:
        return self._side

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        super().bind_gpu_block_pool(gpu_block_pool)
        if self._side is not None:
            self._side.attach_pool(gpu_block_pool, self.scheduler)

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._side is not None:
            self._side.below.attach(PoolLoader(kv_cache_manager, self.scheduler), self.scheduler)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        speeds = [speed for speed in metadata.values() if isinstance(speed, LinkSpeeds)]
        if self._side is not None and speeds:
            links = slowest(speeds)
            self._side.set_links(links)
            logger.info(
                "agentkv: measured at start: store %.2f GB/s, load %.2f GB/s",
                links.store_bytes_per_s / 1e9,
                links.load_bytes_per_s / 1e9,
            )

    def on_new_request(self, request: Request) -> None:
        assert self._side is not None
        if request.abort_immediately:  # Nothing will run: a message, or what vLLM refused.
            if is_control(request):
                self._side.returns.on_control(request)
            return
        super().on_new_request(request)
        self._pace.note_arrived(request.request_id)
        self._side.on_new_request(request)
        self._side.gate.arrived(request)
        if self._side.is_last_turn(request.request_id):
            # Nothing will come back for it: do not store what it computes.
            self.scheduler._req_status[request.request_id].max_offload_tokens = 0

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self._side is not None
        if self._side.gate.is_held(request) or self._side.is_preemption_new(request):
            return None, False
        self._side.before_match()
        num_hit, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if self._side.returns.has_waited_enough(
            request.request_id, is_told_to_wait=num_hit is None
        ):
            num_hit, is_async = 0, False
        is_short = bool(num_hit and self._side.is_short_hit(num_hit))
        self._side.on_matched(request, num_computed_tokens, is_short=is_short)
        return (0, False) if is_short else (num_hit, is_async)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        assert self._side is not None
        self._side.on_allocated(request, num_external_tokens)
        self._side.gate.started(request)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        assert self._side is not None
        self._side.returns.before_meta()
        output = self._side.exclusive.added_to(scheduler_output) or scheduler_output
        meta = super().build_connector_meta(output)
        self._side.on_scheduled(scheduler_output)
        self._side.gate.scheduled(scheduler_output)
        return meta

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        assert self._side is not None
        meta = connector_output.kv_connector_worker_meta
        failed: Collection[str] = ()
        if meta is not None:
            self._side.on_transfers(meta)
        received = connector_output.finished_recving or set()
        self._side.on_received(received)
        super().update_connector_output(connector_output)
        if isinstance(meta, AgentKVWorkerMetadata):
            self._side.on_refused(meta.refused_chunks)
            failed = meta.failed_prefetches
        self._side.returns.receive(received, failed, connector_output.failed_recving or ())
        # vLLM looks for a request of each that is received; a prefetch has none.
        if received:
            connector_output.finished_recving = without_prefetches(received)

    def has_pending_push_work(self) -> bool:
        has_work, side = bool(super().has_pending_push_work()), self._side
        return has_work or (side is not None and (side.returns.has_work or side.exclusive.has_work))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        if request.abort_immediately:
            return False, None
        result: tuple[bool, dict[str, Any] | None] = super().request_finished_all_groups(
            request, block_ids
        )
        assert self._side is not None
        self._side.on_finished(request)
        self._side.gate.finished(request)
        self._pace.note_finished(request.request_id)
        return result

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        # For a MultiConnector with a part that does not know hybrid groups.
        return self.request_finished_all_groups(request, (block_ids,))

    def take_events(self) -> Iterable[KVCacheEvent]:
        # vLLM asks for events at the end of every step, after the step's blocks were freed: the one
        # hook at which the free queue can be put in order before the next allocation.
        if self._side is not None:
            self._side.on_step_end()
            self._side.gate.review()
        return cast(Iterable[KVCacheEvent], super().take_events())

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        side = self._side
        has_replies = side is not None and side.returns.has_replies
        if side is not None and not has_replies and not self._pace.is_due(time.monotonic()):
            return None
        stats: KVConnectorStats | None = super().get_kv_connector_stats()
        if self._recorder.is_empty() and not has_replies:
            return stats
        ours = to_stats(self._recorder)
        if side is not None:
            side.returns.add_replies(ours)
        return ours if stats is None else stats.aggregate(ours)

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        # For vLLM's log, which shows every counter there is.
        shown = None if data is None else without_replies(data)
        stats: KVConnectorStats | None = super().build_kv_connector_stats(shown)
        return stats

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> KVConnectorPromMetrics:
        # A second engine in the process: vLLM unregisters the first one's metrics, not ours.
        unregister_metrics()
        return AgentKVPromMetrics(*args, **kwargs)

    def reset_cache(self) -> bool | None:
        # vLLM expects a step between two resets; what the first one must flush is still to be sent.
        to_flush = self.scheduler._current_batch_jobs_to_flush
        self.scheduler._current_batch_jobs_to_flush = set()
        result: bool | None = super().reset_cache()
        self.scheduler._current_batch_jobs_to_flush |= to_flush
        if self._side is not None:
            self._side.on_reset()
        return result

    def shutdown(self) -> None:
        super().shutdown()
        if self._side is not None:
            self._side.controller.close()

    # --- worker role ---

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        super().register_kv_caches(kv_caches)
        assert self.connector_worker is not None
        worker, spec = self.connector_worker.worker, self.connector_worker.spec
        assert worker is not None
        self._links = measure_links(
            worker,
            num_groups=len(spec.config.groups),
            num_blocks=self._num_gpu_blocks,
            num_chunks=spec.num_chunks,
            blocks_per_chunk=spec.blocks_per_chunk,
        )
        if isinstance(worker, CpuCopyWorker):
            worker.take_refused()  # Of the measurement: no request waits for those.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self.connector_worker is not None
        worker = self.connector_worker.worker
        if isinstance(worker, CpuCopyWorker):
            jobs = self._connector_metadata.load_jobs.items()
            worker.note_prefetches(i for i, job in jobs if job.req_id.startswith(REQUEST_PREFIX))
            worker.is_step_idle = forward_context.attn_metadata is None
        super().start_load_kv(forward_context, **kwargs)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._links

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        assert self.connector_worker is not None
        # Taken before the jobs are drained: afterwards vLLM no longer knows whose load a job was.
        owners = dict(self.connector_worker._load_jobs)
        results = super().get_transfer_results(finished_req_ids)
        worker = self.connector_worker.worker
        if isinstance(worker, CpuCopyWorker):
            self._refused.note(worker.take_refused(), owners)
        results.failed_recving = self._refused.take_requests(results.finished_recving)
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._refused.take_block_ids()

    def build_connector_worker_meta(self) -> AgentKVWorkerMetadata | None:
        meta = super().build_connector_worker_meta()
        if meta is None:
            return None
        # Ours even without refusals: the first rank's kind is what all reports are merged by.
        return AgentKVWorkerMetadata(
            completed_jobs=meta.completed_jobs,
            transfer_stats=meta.transfer_stats,
            refused_chunks=self._refused.take_chunks(),
            failed_prefetches=self._refused.take_prefetches(),
        )
