"""Copies KV from the GPU pool to DRAM without a request, just before the pool may reuse it.

    blocks given up ─► those DRAM lacks? a stand-in for the turn that computed them, as if it had
    just finished ─► vLLM's own store job, and its fence: whoever gets the blocks waits for the copy

So DRAM need not hold a second copy of what the pool has (`exclusive`): the room goes to KV that is
nowhere else. The stand-in is never scheduled; it lives until its copy is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from .kept_prefix import KeptPrefix
from .layout import Group, Layout
from .pool_order import PoolOrder

STORE_PREFIX = "agentkv-store-"
"""How the ids of these stand-ins begin; those of clients begin otherwise."""


class PoolStore:
    """Owned by the scheduler thread; its length is the number of stand-ins not yet handed over."""

    def __init__(self, offloading: OffloadingConnectorScheduler, layout: Layout) -> None:
        self._offloading = offloading
        self._layout = layout
        self._num_started = 0
        self._wanted: list[Request] = []

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, prefix: KeptPrefix, order: PoolOrder, *, start: int = 0) -> None:
        """Stores, with the next step, what the pool has of the prefix and DRAM has not.

        Without its first `start` hash blocks.
        To be called while the pool still has it; what happens to the blocks then does not matter.
        """
        self._num_started += 1
        request = prefix.make_request(f"{STORE_PREFIX}{self._num_started}")
        request.status = RequestStatus.FINISHED_STOPPED
        self._offloading.on_new_request(request)
        status = self._offloading._req_status[request.request_id]
        status.update_offload_keys()
        status.update_block_id_groups(self._block_ids(prefix.block_hashes, order, start))
        self._wanted.append(request)

    def added_to(self, output: SchedulerOutput) -> SchedulerOutput:
        """The step's output with our stand-ins among the finished requests; the argument stays."""
        if not self._wanted:
            return output
        ids = {request.request_id for request in self._wanted}
        self._wanted.clear()
        return dataclasses.replace(output, finished_req_ids=output.finished_req_ids | ids)

    def clear(self) -> None:
        """The engine dropped its caches: nothing is left to copy."""
        for request in self._wanted:
            status = self._offloading._req_status.pop(request.request_id, None)
            if status is not None:
                self._offloading.manager.on_request_finished(status.req_context)
        self._wanted.clear()

    def _block_ids(
        self, hashes: Sequence[bytes], order: PoolOrder, start: int
    ) -> tuple[list[int], ...]:
        """For each of vLLM's groups the blocks from the root on; 0 for those not to be stored."""
        by_group: dict[int, list[int]] = {
            group.group_id: list(self._ids_of(group, hashes, order, start))
            for group in self._layout.groups
        }
        return tuple(by_group.get(i, []) for i in range(max(by_group) + 1))

    def _ids_of(
        self, group: Group, hashes: Sequence[bytes], order: PoolOrder, first: int = 0
    ) -> Iterable[int]:
        """A chunk of which a block is missing is left out whole: vLLM would store its rest."""
        per_chunk = group.per_chunk // group.per_block
        ids: list[int] = []
        for end in range(group.per_block, len(hashes) + 1, group.per_block):
            ids.append(order.block_id(group, hashes[end - 1]) if end > first else 0)
        for start in range(0, len(ids), per_chunk):
            chunk = ids[start : start + per_chunk]
            yield from chunk if all(chunk) else [0] * len(chunk)
