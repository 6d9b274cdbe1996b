"""Loads KV from DRAM into the GPU pool without a request, by the steps vLLM takes for one.

    look up what pool and DRAM have → allocate → load job → (received) → cache → free

A stand-in request that is never scheduled goes through vLLM's own look-up, allocation and load job,
so every KV cache group is treated as it would be for a turn. When the load is done its blocks are
cached and freed: the next turn then finds them as a local hit. Until then they are in use; nothing
waits for them but a turn that wants the same blocks. A reset of the pool, which vLLM refuses while
blocks are in use and of which it tells nobody before, gets them back at once (`_let_go`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request

from .kept_prefix import KeptPrefix

REQUEST_PREFIX = "agentkv-prefetch-"
"""How the ids of stand-in requests begin; those of clients begin otherwise."""


def without_prefetches(request_ids: Iterable[str]) -> set[str]:
    """The ids that clients know."""
    return {request_id for request_id in request_ids if not request_id.startswith(REQUEST_PREFIX)}


class NoLoad(Enum):
    """Why no load began: DRAM has nothing more of it, or cannot tell or give it room yet."""

    NOTHING = "nothing"
    LATER = "later"


NOTHING, LATER = NoLoad.NOTHING, NoLoad.LATER


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """A load under way. `start_tokens` were in the pool already, up to `end_tokens` will be."""

    request: Request
    start_tokens: int
    end_tokens: int

    @property
    def request_id(self) -> str:
        return str(self.request.request_id)


class PoolLoader:
    """Owned by the scheduler thread; `start` only while a step's metadata is put together."""

    def __init__(self, manager: KVCacheManager, offloading: OffloadingConnectorScheduler) -> None:
        self._manager = manager
        self._offloading = offloading
        self._num_started = 0
        self._loads: dict[str, PoolLoad] = {}
        self._without_blocks: set[str] = set()
        self.after_reset: Callable[[], None] = lambda: None
        reset: Callable[[], bool] = manager.reset_prefix_cache

        @functools.wraps(reset)
        def reset_prefix_cache() -> bool:
            self._let_go()
            is_reset = reset()
            if is_reset:
                self.after_reset()
            return is_reset

        manager.reset_prefix_cache = reset_prefix_cache

    def __len__(self) -> int:
        return len(self._loads)

    def start(self, prefix: KeptPrefix, *, max_tokens: int) -> PoolLoad | NoLoad:
        """Begins to load what the pool lacks of the prefix, at most `max_tokens`."""
        self._num_started += 1
        request = prefix.make_request(f"{REQUEST_PREFIX}{self._num_started}")
        self._offloading.on_new_request(request)
        load = self._allocate(request, max_tokens)
        if isinstance(load, PoolLoad):
            self._loads[load.request_id] = load
        else:
            self._forget(request)
        return load

    def take_received(self, request_ids: Iterable[str]) -> list[PoolLoad]:
        """Those of our loads that are among the received ones; each must then be finished."""
        return [self._loads.pop(i) for i in request_ids if i in self._loads]

    def finish(self, load: PoolLoad, *, is_good: bool) -> None:
        """Hands the blocks to the pool: cached if their content is good, else empty."""
        request = load.request
        if load.request_id in self._without_blocks:
            self._without_blocks.discard(load.request_id)
            self._forget(request)
            return
        if is_good:
            request.num_computed_tokens = load.end_tokens
            self._manager.cache_blocks(request, load.end_tokens)
        self._manager.free(request)
        self._forget(request)

    def _let_go(self) -> None:
        """Frees the blocks of loads under way; the next step first waits for the copies to end."""
        for request_id, load in self._loads.items():
            status = self._offloading._req_status.get(request_id)
            if request_id in self._without_blocks or status is None:
                continue
            self._offloading._current_batch_jobs_to_flush.update(status.transfer_jobs)
            self._manager.free(load.request)
            self._without_blocks.add(request_id)

    def _allocate(self, request: Request, max_tokens: int) -> PoolLoad | NoLoad:
        blocks, num_local, _ = self._manager.get_computed_blocks(request)
        num_found, _ = self._offloading.get_num_new_matched_tokens(request, num_local, max_tokens)
        if num_found is None:
            return LATER
        if num_found == 0:
            return NOTHING
        groups = tuple(self._manager.kv_cache_config.prefix_cacheable_group_ids)
        allocated = self._manager.allocate_slots(
            request,
            0,
            num_new_computed_tokens=num_local,
            new_computed_blocks=blocks,
            num_external_computed_tokens=num_found,
            delay_cache_blocks=True,
            skip_zeroing_group_ids=groups,
            has_scheduled_reqs=False,
        )
        if allocated is None:
            return LATER
        self._offloading.update_state_after_alloc(
            request, self._manager.get_blocks(request.request_id), num_found
        )
        return PoolLoad(request, num_local, num_local + num_found)

    def _forget(self, request: Request) -> None:
        """The offloading's own state of a request ends when it is told so and no job is left."""
        status = self._offloading._req_status.get(request.request_id)
        if status is None:
            return
        status.finished_signaled = True
        self._offloading.manager.on_request_finished(status.req_context)
        if not status.transfer_jobs:
            del self._offloading._req_status[request.request_id]
