"""The scheduler half: tells the controller what vLLM does, and applies what it decides.

Decisions act on two orders only: that of the pool's free queue (`pool_order`) and that of the DRAM
tier's eviction (`cache_policy`). Copies, loads and their fences are vLLM's own offloading. A fault
in here is counted and logged; the request goes on as if agentkv were not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)
from vllm.logger import init_logger
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import OffloadKey, make_offload_key
from vllm.v1.request import Request, RequestStatus

from agentkv import metrics
from agentkv.clock import Clock
from agentkv.controller import Controller
from agentkv.cost_model import CostModel, LinkSpeed
from agentkv.metrics import Recorder
from agentkv.policy import Action
from agentkv.sessions import BlockRef

from .cache_policy import AgentKVCachePolicy
from .pool_order import Group, PoolOrder
from .step_timer import StepTimer
from .translate import computed_hashes, scope_of, tag_of
from .worker_side import LinkSpeeds

logger = init_logger("vllm.agentkv")

_TIDY_EVERY_S = 1.0
_STEPS_AHEAD = 2
_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Waiting:
    """A turn that has arrived: what it lacks in the pool, and its DRAM keys under protection."""

    request: Request
    protected: list[OffloadKey]
    wanted_blocks: int


class _Hit(NamedTuple):
    """What vLLM's last look-up found for a turn; `is_short`: its DRAM part is not worth a load."""

    gpu_tokens: int
    is_short: bool


def _never_raises(
    method: Callable[..., _Result | None],
) -> Callable[..., _Result | None]:
    """A fault of ours becomes a counter and a log line (once per place), never an engine error."""

    @functools.wraps(method)
    def guarded(self: SchedulerSide, *args: Any, **kwargs: Any) -> _Result | None:
        try:
            return method(self, *args, **kwargs)
        except Exception:
            self.fault(method.__name__)
            return None

    return guarded


class SchedulerSide:
    """Owned by the scheduler thread. `attach_pool` must come before the first step."""

    def __init__(
        self,
        controller: Controller,
        *,
        dram: AgentKVCachePolicy,
        drop_from_dram: Callable[[OffloadKey], bool],
        groups: Sequence[Group],
        step_tokens: int,
        costs: CostModel,
        recorder: Recorder,
        clock: Clock,
        tokens_per_hash: int,
        protect_arrived: bool,
    ) -> None:
        self.controller = controller
        self._dram = dram
        self._drop_from_dram = drop_from_dram
        self._groups = tuple(groups)
        self._costs = costs
        self._recorder = recorder
        self._clock = clock
        self._tokens_per_hash = tokens_per_hash
        self._protect_arrived = protect_arrived
        self._step_blocks = self._blocks(step_tokens)
        self._order: PoolOrder | None = None
        self._timer = StepTimer()
        self._requests: dict[str, Request] = {}
        # Turns that wait for blocks, in order of arrival.
        self._waiting: dict[str, _Waiting] = {}
        self._hits: dict[str, _Hit] = {}
        self._dead_in_use: list[BlockRef] = []
        # Died since the last step was put together; see `_discard_dead`.
        self._dead_keys: list[OffloadKey] = []
        self._damaged: set[OffloadKey] = set()
        self._order_is_stale = False
        self._has_freed_blocks = False
        self._tidied_at_s = clock.monotonic_s()
        self._faults: set[str] = set()

    def attach_pool(self, pool: BlockPool) -> None:
        self._order = PoolOrder(pool, self._groups)

    def fault(self, where: str) -> None:
        """Counts the exception being handled; the first one of each place is logged."""
        self._recorder.count(metrics.FAULTS, where)
        if where not in self._faults:
            self._faults.add(where)
            logger.exception("agentkv: fault in %s; going on without it", where)

    # --- what vLLM does ---

    @_never_raises
    def on_new_request(self, request: Request) -> None:
        tag, problems = tag_of(request)
        if tag.session_id is not None or tag.tool is not None or tag.last_turn or problems:
            self._recorder.count(metrics.TAGS)
        self._recorder.count(metrics.TAG_PROBLEMS, by=len(problems))
        self._requests[request.request_id] = request
        self.controller.turn_arrived(
            request.request_id,
            name=request.session_id or tag.session_id,
            scope=scope_of(request),
            hashes=request.block_hashes,
            prompt_tokens=request.num_prompt_tokens,
            tag=tag,
        )
        self._wait_for_blocks(request)

    @_never_raises
    def before_match(self) -> None:
        """vLLM is about to look up a turn's prefix, and perhaps to give it blocks."""
        if self._order is not None:
            self._put_arrived_last(self._order)

    @_never_raises
    def on_matched(self, request: Request, gpu_hit_tokens: int, *, is_short: bool) -> None:
        """vLLM looked up the request's prefix: so many tokens are in the pool."""
        self._hits[request.request_id] = _Hit(gpu_hit_tokens, is_short)

    @_never_raises
    def on_allocated(self, request: Request, dram_hit_tokens: int) -> None:
        hit = self._hits.pop(request.request_id, _Hit(0, False))
        if request.request_id not in self._waiting:
            return
        if hit.is_short:
            self._recorder.count(metrics.SHORT_HITS_SKIPPED)
        self._got_blocks(request.request_id)
        self.controller.turn_scheduled(
            request.request_id,
            gpu_hit_tokens=hit.gpu_tokens,
            dram_hit_tokens=dram_hit_tokens,
        )

    @_never_raises
    def on_finished(self, request: Request) -> None:
        request_id = request.request_id
        if self._requests.pop(request_id, None) is None:
            return
        self._got_blocks(request_id)
        self._hits.pop(request_id, None)
        self.controller.turn_finished(
            request_id,
            hashes=computed_hashes(request, self._tokens_per_hash),
            num_tokens=request.num_tokens,
        )
        self._order_is_stale = self._has_freed_blocks = True

    @_never_raises
    def on_scheduled(self, output: SchedulerOutput) -> None:
        """A step was put together."""
        self._timer.scheduled(output, self._clock.monotonic_s())
        # vLLM has just refreshed the rank of all that finished requests had used.
        self._dram.mark_worthless(self._dead_keys)
        self._dead_keys.clear()
        for request_id in output.preempted_req_ids or ():
            request = self._requests.get(request_id)
            if request is not None:
                self.controller.turn_preempted(request_id)
                self._wait_for_blocks(request)
                self._has_freed_blocks = True

    @_never_raises
    def on_step_end(self) -> None:
        """A step was processed and its blocks freed: put the pool in order for the next."""
        now_s = self._clock.monotonic_s()
        sample = self._timer.finished(now_s)
        if sample is not None:
            self._costs.prefill.observe(
                new_tokens=sample.new_tokens, pairs=sample.pairs, seconds=sample.seconds
            )
        if self._order is None:
            return
        if now_s - self._tidied_at_s >= _TIDY_EVERY_S:
            self._tidied_at_s = now_s
            self.controller.tidy()
            self._record_pool(self._order)
        self._discard_dead(self._order)
        self._make_room(self._order)
        self._put_arrived_last(self._order)

    def set_links(self, links: LinkSpeeds) -> None:
        """The speeds measured at start replace the assumed ones."""
        self._costs.load_link = LinkSpeed(links.load_bytes_per_s)
        self._costs.store_link = LinkSpeed(links.store_bytes_per_s)

    @_never_raises
    def on_transfers(self, meta: OffloadingWorkerMetadata) -> None:
        """Copies finished: keep the link speeds current."""
        load, store = meta.transfer_stats.load, meta.transfer_stats.store
        self._costs.load_link.observe(load.bytes, load.time)
        self._costs.store_link.observe(store.bytes, store.time)

    @_never_raises
    def on_refused(self, chunk_ids: Sequence[int]) -> None:
        """Loads from these DRAM chunks were refused: no later look-up may find them."""
        for chunk_id in chunk_ids:
            key = self._dram.key_of_chunk(chunk_id)
            if key is not None:
                self._damaged.add(key)
        # A block that another load still reads is dropped after it.
        self._damaged = {key for key in self._damaged if not self._drop_from_dram(key)}

    # --- what the connector asks ---

    @_never_raises
    def is_last_turn(self, request_id: str) -> bool:
        turn = self.controller.sessions.turn(request_id)
        return turn is not None and turn.tag.last_turn

    @_never_raises
    def is_preemption_new(self, request: Request) -> bool:
        """Whether a request was preempted after the last step was put together.

        Only `reset_prefix_cache(reset_running_requests=True)` does that. vLLM would admit the
        request again within the same step, and its offloading fails an assertion when that finds
        something to load (`build_connector_meta` takes every job of a preempted request for a
        store). Such a request has to wait for one step.
        """
        is_waiting = request.request_id in self._waiting
        return request.status is RequestStatus.PREEMPTED and not is_waiting

    @_never_raises
    def is_short_hit(self, num_tokens: int) -> bool:
        """Whether recomputing so short a DRAM hit takes less time than loading it."""
        return num_tokens < self.controller.appraiser.min_load_tokens()

    @_never_raises
    def on_reset(self) -> None:
        """vLLM dropped its caches and the DRAM tier."""
        self.controller.clear()
        self._dead_in_use.clear()
        self._dead_keys.clear()
        self._damaged.clear()
        for waiting in self._waiting.values():
            self._dram.protect(waiting.protected)
        if self._order is not None:
            self._order.clear()

    # --- what follows from it ---

    def _wait_for_blocks(self, request: Request) -> None:
        """The turn's KV is protected from now until it has its blocks: in DRAM and in the pool."""
        keys: list[OffloadKey] = []
        if self._protect_arrived:
            keys = self._keys(enumerate(request.block_hashes, start=1))
            self._dram.protect(keys)
        waiting = _Waiting(request, keys, self._blocks(request.num_tokens))
        self._waiting[request.request_id] = waiting
        if self._order is not None:
            self._secure(self._order, waiting)
            self._make_room(self._order)
            self._order_is_stale = True

    def _got_blocks(self, request_id: str) -> None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            self._dram.unprotect(waiting.protected)

    def _discard_dead(self, order: PoolOrder) -> None:
        """Blocks that died go first, except those a session has taken up again meanwhile."""
        died = self.controller.take_dead()
        if not died and not (self._dead_in_use and self._has_freed_blocks):
            return
        self._has_freed_blocks = False
        tree = self.controller.sessions.tree
        dead = [ref for ref in (*self._dead_in_use, *died) if ref[1] not in tree]
        keys = self._keys(dead)
        self._dram.mark_worthless(keys)
        self._dead_keys.extend(keys)
        num_moved, self._dead_in_use = order.discard(dead)
        self._recorder.count(metrics.GIVEN_UP_BLOCKS, "dead", by=num_moved)
        self._order_is_stale = True  # a turn that waits may be about to use some of them

    def _make_room(self, order: PoolOrder) -> None:
        """Readies as many blocks as requests want now, as far as pauses can give them."""
        wanted = min(self._wanted_blocks(), order.num_free_blocks)
        num_worthless, num_ready = order.count_front(wanted)
        self.controller.appraiser.observe_demand(
            wanted_blocks=wanted, worthless_blocks=num_worthless
        )
        if num_ready >= wanted:
            return
        for victim in self.controller.victims():
            num_moved, _ = order.give_up(victim.refs)
            self._recorder.count(metrics.GIVEN_UP_BLOCKS, victim.action.value, by=num_moved)
            if victim.action is Action.RECOMPUTE:
                self._dram.mark_worthless(self._keys(victim.refs))
            num_ready += num_moved
            if num_ready >= wanted:
                return

    def _wanted_blocks(self) -> int:
        """Blocks that waiting turns lack and running turns still need, as far as soon matters.

        Beyond a few steps' worth of computing and one whole load, more is not looked at: the walk
        over the free queue stays short however long the queue of requests is.
        """
        wanted = largest = 0
        for waiting in self._waiting.values():
            wanted += waiting.wanted_blocks
            largest = max(largest, waiting.wanted_blocks)
        for request_id, request in self._requests.items():
            if request_id not in self._waiting:
                wanted += self._blocks(max(1, request.num_tokens - request.num_computed_tokens))
        return min(wanted, _STEPS_AHEAD * self._step_blocks + largest + len(self._requests))

    def _put_arrived_last(self, order: PoolOrder) -> None:
        """Blocks of waiting turns go to the back of the queue, the next turn to run rearmost."""
        if not self._order_is_stale:
            return
        self._order_is_stale = False
        for waiting in reversed(self._waiting.values()):
            self._secure(order, waiting)

    def _secure(self, order: PoolOrder, waiting: _Waiting) -> None:
        """Notes what the turn finds in the pool; protects it, or at least does not give it up."""
        hashes = waiting.request.block_hashes
        depth = order.cached_depth(hashes)
        waiting.wanted_blocks = self._blocks(
            waiting.request.num_tokens - depth * self._tokens_per_hash
        )
        refs = [(i, hashes[i - 1]) for i in range(depth, 0, -1)]
        if self._protect_arrived:
            self._recorder.count(metrics.PROTECTED_BLOCKS, by=order.protect(refs))
        else:
            order.keep(refs)

    def _record_pool(self, order: PoolOrder) -> None:
        num_free = order.num_free_blocks
        self._recorder.gauge(metrics.BLOCKS, "free", value=num_free)
        self._recorder.gauge(metrics.BLOCKS, "used", value=order.num_blocks - num_free)

    def _blocks(self, num_tokens: int) -> int:
        """KV blocks that so many new tokens take, over all groups."""
        num_hashes = -(-num_tokens // self._tokens_per_hash)
        return sum(
            -(-min(num_hashes, group.window or num_hashes) // group.per_block)
            for group in self._groups
        )

    def _keys(self, refs: Iterable[BlockRef]) -> list[OffloadKey]:
        return [
            make_offload_key(block_hash, group.group_id)
            for depth, block_hash in refs
            for group in self._groups
            if depth % group.per_chunk == 0
        ]
