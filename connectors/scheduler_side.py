"""The scheduler half: tells the controller what vLLM does, and applies what it decides.

Decisions act on two orders only: that of the pool's free queue (`pool_order`) and that of the DRAM
tier's eviction (`cache_policy`). Copies, loads and their fences are vLLM's own offloading. A fault
in here is counted and logged; the request goes on as if agentkv were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.logger import init_logger
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import OffloadKey, get_offload_block_hash
from vllm.v1.request import Request

from agentkv import metrics
from agentkv.admission import ProgramAdmission
from agentkv.appraisal import Deps
from agentkv.config import AgentKVConfig
from agentkv.controller import Controller
from agentkv.cost_model import LinkSpeed

from .admission_gate import AdmissionGate
from .arrived import ArrivedTurns
from .below import Below
from .damaged import DamagedBlocks
from .dead_blocks import DeadBlocks
from .exclusive import Exclusive
from .first_tokens import FirstTokens
from .guard import Faults, never_raises
from .kept_prefix import KeptPrefixes
from .layout import Layout
from .pool_order import PoolOrder
from .preemptions import Preemptions
from .prefetcher import Prefetcher
from .returns import Returns
from .room import Room
from .step_timer import StepTimer
from .tiering import AgentKVTieringManager
from .translate import computed_hashes, name_session, reply_id_of, scope_of, tag_of
from .whereabouts import Whereabouts
from .worker_side import LinkSpeeds

logger = init_logger("vllm.agentkv")

_TIDY_EVERY_S = 1.0
_MOST_AT_ONCE = 4  # pauses of one step; the others' turn comes with the next ones
_Result = TypeVar("_Result")


class _Hit(NamedTuple):
    """What vLLM's last look-up found for a turn; `is_short`: its DRAM part is not worth a load."""

    gpu_tokens: int
    is_short: bool


class SchedulerSide:
    """Owned by the scheduler thread. `attach_pool` must come before the first step."""

    def __init__(
        self,
        controller: Controller,
        deps: Deps,
        *,
        manager: AgentKVTieringManager,
        whereabouts: Whereabouts,
        drop_from_dram: Callable[[OffloadKey], bool],
        layout: Layout,
        arrived: ArrivedTurns,
        config: AgentKVConfig,
        max_kept_tokens: int,
        admission: ProgramAdmission | None,
    ) -> None:
        self.controller = controller
        self._dram = dram = manager.dram
        self.whereabouts, self.layout = whereabouts, layout
        self._arrived = arrived
        self._costs, self._footprint = deps.costs, deps.footprint
        self._recorder, self._clock = deps.recorder, deps.clock
        self._order: PoolOrder | None = None
        self._timer = StepTimer()
        self._requests: dict[str, Request] = {}
        self._hits: dict[str, _Hit] = {}
        # When a turn with a load under way got its blocks, and how many tokens it is for.
        self._loads: dict[str, tuple[float, int]] = {}
        self._preemptions, self._first_tokens = Preemptions(), FirstTokens(deps)
        self._dead = DeadBlocks(dram, layout)
        kept = KeptPrefixes(max_kept_tokens)
        self.faults = Faults(deps.recorder)
        parts = (layout, self._requests, kept, self.faults)
        self.exclusive = Exclusive(controller, deps, manager, *parts, config.dram.exclusive)
        self.room = Room(controller, deps, arrived, self._requests, layout, self.exclusive)
        gated = (layout, self._requests, arrived, dram, self.room)
        self.gate = AdmissionGate(admission, controller, deps, gated, self.faults)
        prefetcher = Prefetcher(controller, deps, self.room, config.prefetch, layout, kept)
        tiers = (manager, layout, config, prefetcher, self.exclusive, self.faults)
        self.below = Below(controller, deps, *tiers)
        waits = (prefetcher, self.below, self.faults, config.load_timeout_s)
        self.returns = Returns(controller, deps, *waits)
        self._damaged = DamagedBlocks(dram, drop_from_dram)
        self._tidied_at_s = deps.clock.monotonic_s()
        dram.before_evict = self.before_dram_evicts
        dram.after_evict = self.after_dram_evicted

    def attach_pool(self, pool: BlockPool, offloading: OffloadingConnectorScheduler) -> None:
        self._order = PoolOrder(pool, self.layout.groups)
        self.returns.order = self.whereabouts.order = self.gate.order = self._order
        self.exclusive.attach(offloading, self._order)

    # --- what vLLM does ---

    @never_raises
    def on_new_request(self, request: Request) -> None:
        tag, problems = tag_of(request)
        if tag.session_id is not None or tag.tool is not None or tag.last_turn or problems:
            self._recorder.count(metrics.TAGS)
        self._recorder.count(metrics.TAG_PROBLEMS, by=len(problems))
        self._requests[request.request_id] = request
        self.controller.turn_arrived(
            request.request_id,
            name=name_session(request, tag),
            scope=scope_of(request),
            hashes=request.block_hashes,
            prompt_tokens=request.num_prompt_tokens,
            tag=tag,
            reply_id=reply_id_of(request),
        )
        self._wait_for_blocks(request)

    @never_raises
    def before_match(self) -> None:
        """vLLM is about to look up a turn's prefix, and perhaps to give it blocks."""
        if self._order is not None:
            self.room.protect(self._order)

    @never_raises
    def before_dram_evicts(self, num_chunks: int, besides: Set[OffloadKey]) -> None:
        """The DRAM tier is about to choose what to evict."""
        self._arrived.protect_in_dram()
        self.exclusive.make_room(num_chunks, besides)

    @never_raises
    def after_dram_evicted(self, keys: Iterable[OffloadKey]) -> None:
        """The DRAM tier has made room."""
        self.controller.note_evicted(get_offload_block_hash(key) for key in keys)

    @never_raises
    def on_matched(self, request: Request, gpu_hit_tokens: int, *, is_short: bool) -> None:
        """vLLM looked up the request's prefix: so many tokens are in the pool."""
        self._hits[request.request_id] = _Hit(gpu_hit_tokens, is_short)

    @never_raises
    def on_allocated(self, request: Request, dram_hit_tokens: int) -> None:
        hit = self._hits.pop(request.request_id, _Hit(0, False))
        if not self._arrived.remove(request.request_id):
            return
        if hit.is_short:
            self._recorder.count(metrics.SHORT_HITS_SKIPPED)
        if dram_hit_tokens:
            self._loads[request.request_id] = (self._clock.monotonic_s(), dram_hit_tokens)
        if (turn := self.controller.sessions.turn(request.request_id)) is not None:
            self.returns.prefetcher.note_scheduled(turn, hit.gpu_tokens)
        source = self.controller.turn_scheduled(
            request.request_id, gpu_hit_tokens=hit.gpu_tokens, dram_hit_tokens=dram_hit_tokens
        )
        self._first_tokens.expect(request, source)

    @never_raises
    def on_received(self, request_ids: Iterable[str]) -> None:
        """Loads have arrived: learn how long a turn waits for one."""
        for request_id in request_ids:
            started_s, num_tokens = self._loads.pop(request_id, (0.0, 0))
            if num_tokens:
                kv_bytes = self._footprint.bytes_for(num_tokens)
                self._costs.observe_load(kv_bytes, self._clock.monotonic_s() - started_s)

    @never_raises
    def on_finished(self, request: Request) -> None:
        request_id = request.request_id
        if self._requests.pop(request_id, None) is None:
            return
        self._arrived.remove(request_id)
        self._hits.pop(request_id, None)
        self._loads.pop(request_id, None)
        self._preemptions.forget(request_id)
        self._first_tokens.settle(request)
        self.returns.patience.forget(request_id)
        turn = self.controller.sessions.turn(request_id)
        self.below.note_finished(request)
        self.controller.turn_finished(
            request_id,
            hashes=computed_hashes(request, self.layout.tokens_per_hash),
            num_tokens=request.num_tokens,
        )
        if turn is not None:
            self.returns.prefetcher.note_finished(request, turn.session)
        self._arrived.note_freed(self.layout.blocks(request.num_computed_tokens))
        self._dead.note_freed()
        self.room.note_change()

    @never_raises
    def on_scheduled(self, output: SchedulerOutput) -> None:
        """A step was put together."""
        ids = output.preempted_req_ids or ()
        preempted = [self._requests[i] for i in ids if i in self._requests]
        self._preemptions.note(preempted)
        self._timer.scheduled(output, self._clock.monotonic_s())
        self._dead.remind_dram()
        if num_freed := self.layout.windowed_blocks(output.total_num_scheduled_tokens):
            self._arrived.note_freed(num_freed)
        for request in preempted:
            self.controller.turn_preempted(request.request_id)
            self._wait_for_blocks(request)
            self._dead.note_freed()

    @never_raises
    def on_step_end(self) -> None:
        """A step was processed and its blocks freed: put the pool in order for the next."""
        self._first_tokens.after_step()
        now_s = self._clock.monotonic_s()
        sample = self._timer.finished(now_s)
        if sample is not None:
            self._costs.prefill.observe(
                new_tokens=sample.new_tokens, pairs=sample.pairs, seconds=sample.seconds
            )
        self._damaged.drop()
        if self._order is None:
            return
        self.controller.settle_evicted(_MOST_AT_ONCE)
        self.controller.end_overdue(_MOST_AT_ONCE)
        if now_s - self._tidied_at_s >= _TIDY_EVERY_S:
            self._tidied_at_s = now_s
            self.controller.tidy(_MOST_AT_ONCE)
            self.returns.prefetcher.tidy()
            self.below.tidy()
            self.on_refused(self.below.take_damaged_chunks() or ())
            self.room.record(self._order)
        self._discard_dead(self._order)
        self.below.after_step()
        self.exclusive.after_step()
        self.room.after_step(self._order)
        self.returns.after_step(
            self._order, num_waiting=len(self._arrived), is_idle=not self._requests
        )

    def set_links(self, links: LinkSpeeds) -> None:
        """The speeds measured at start replace the assumed ones."""
        self._costs.load_link = LinkSpeed(links.load_bytes_per_s)
        self._costs.store_link = LinkSpeed(links.store_bytes_per_s)

    @never_raises
    def on_transfers(self, meta: OffloadingWorkerMetadata) -> None:
        """Copies finished: keep the link speeds current."""
        stats, costs = meta.transfer_stats, self._costs
        costs.load_link.observe(stats.load.bytes, stats.load.time)
        costs.store_link.observe(stats.store.bytes, stats.store.time)

    @never_raises
    def on_refused(self, chunk_ids: Sequence[int]) -> None:
        """Loads from these DRAM chunks were refused: no later look-up may find them."""
        self._damaged.note(chunk_ids)

    # --- what the connector asks ---

    @never_raises
    def is_last_turn(self, request_id: str) -> bool:
        turn = self.controller.sessions.turn(request_id)
        return turn is not None and turn.tag.last_turn

    @never_raises
    def is_preemption_new(self, request: Request) -> bool:
        """See `Preemptions.is_new`."""
        return request.request_id in self._requests and self._preemptions.is_new(request)

    @never_raises
    def is_short_hit(self, num_tokens: int) -> bool:
        """Whether recomputing so short a DRAM hit takes less time than loading it."""
        return num_tokens < self.controller.appraiser.min_load_tokens()

    @never_raises
    def on_reset(self) -> None:
        """vLLM dropped its caches and the DRAM tier."""
        cleared = (self.returns.prefetcher, self.below, self._dead, self.exclusive, self._damaged)
        for part in cleared:
            part.clear()
        self.controller.clear()
        self._arrived.restore()
        if self._order is not None:
            self._order.clear()

    # --- what follows from it ---

    def _wait_for_blocks(self, request: Request) -> None:
        self._arrived.add(request, self._order)
        if self._order is not None:
            self.room.make(self._order)

    def _discard_dead(self, order: PoolOrder) -> None:
        sessions = self.controller.sessions
        died = sessions.take_dead()
        self.below.forget([ref for ref in died if ref[1] not in sessions.tree])
        died += sessions.take_lapsed()
        num_moved, dead = self._dead.discard(order, died, sessions.tree)
        self._recorder.count(metrics.GIVEN_UP_BLOCKS, "dead", by=num_moved)
        if dead:
            self._arrived.rescue(dead)
            self.room.note_change()
