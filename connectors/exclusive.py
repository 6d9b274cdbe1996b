"""Keeps DRAM for KV that the GPU pool does not have (exclusive tiers).

    DRAM has to evict ─► copies of what sessions have in the pool go first: nothing is lost
                         then those of the sessions that are worth least (`Portfolio.to_drop`)
    the pool gives a session up ─► what DRAM lacks of it is copied out first (`pool_store`)

While DRAM has room this does nothing. The pool keeps the KV of a running turn because it is in use,
and that of a paused session until agentkv gives it up: so there is always a moment to copy it. Only
a turn that vLLM preempts may lose some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import OffloadKey, make_offload_key
from vllm.v1.request import Request

from agentkv import metrics
from agentkv.appraisal import Deps
from agentkv.controller import Controller
from agentkv.policy import Action
from agentkv.resumes import action_of
from agentkv.sessions import BlockRef, Pause, Session, SessionKey, Turn

from .guard import Faults, never_raises
from .kept_prefix import KeptPrefixes
from .layout import Layout
from .pool_order import PoolOrder
from .pool_store import PoolStore
from .tiering import AgentKVTieringManager

_AHEAD = 4  # So many times what is needed now is marked at once.
_RESCAN_S = 2.0
_AHEAD_EVERY_S = 0.1


class Exclusive:
    """Owned by the scheduler thread. Does nothing until `attach`.

    `requests` are all unfinished ones, kept by the owner.
    """

    def __init__(
        self,
        controller: Controller,
        deps: Deps,
        manager: AgentKVTieringManager,
        layout: Layout,
        requests: Mapping[str, Request],
        kept: KeptPrefixes,
        faults: Faults,
        is_on: bool,
    ) -> None:
        self.faults = faults
        self._is_on = is_on
        self.dram = manager.dram
        self._controller = controller
        self._recorder = deps.recorder
        self._clock = deps.clock
        self._manager = manager
        self._layout = layout
        self._requests = requests
        self._kept = kept
        self._looked_at_s = -_RESCAN_S
        self._marked: dict[SessionKey, int] = {}
        self._copied_at_s = 0.0
        self._ahead_blocks = layout.blocks(deps.costs.max_step_tokens)
        self._order: PoolOrder | None = None
        self.store: PoolStore | None = None

    def attach(self, offloading: OffloadingConnectorScheduler, order: PoolOrder) -> None:
        if self._is_on:
            self.store, self._order = PoolStore(offloading, self._layout), order
            self.dram.has_copy = self._has_copy

    @property
    def has_work(self) -> bool:
        """Whether a copy waits for the next step."""
        return bool(self.store)

    # --- DRAM ---

    @never_raises
    def make_room(self, num_chunks: int) -> None:
        """DRAM is about to evict so many chunks: let those go first that the pool has, too."""
        now_s = self._clock.monotonic_s()
        if self._order is None or self.dram.num_expendable >= num_chunks:
            return
        if now_s - self._looked_at_s >= _RESCAN_S:
            self._looked_at_s = now_s
            self._marked.clear()  # More of them may be in DRAM by now.
        found: list[OffloadKey] = []
        for refs in self._held():
            for ref in refs:
                found.extend(self._keys_held_twice(ref, self._order))
            if len(found) >= _AHEAD * num_chunks:
                break
        self.dram.make_ready(found)
        if self.dram.num_expendable < num_chunks:
            self._drop_least(num_chunks)

    def _drop_least(self, num_chunks: int) -> None:
        """All that DRAM holds is needed: those give way whose copies are worth least."""
        if self._manager.tiers:
            return  # The demoter makes room without loss.
        manager, sessions = self._manager, self._controller.sessions
        dram_bytes = manager.num_chunks * manager.primary_tier.get_kv_memoryview().strides[0]
        for session in self._controller.portfolio.to_drop(dram_bytes):
            keys = self._layout.keys(sessions.private_blocks(session))
            self.dram.make_ready(key for key in keys if self.dram.get(key) is not None)
            if self.dram.num_expendable >= _AHEAD * num_chunks:
                break

    def _held(self) -> Iterator[list[BlockRef]]:
        """What only one session uses and the pool is sure to keep until it can be copied out."""
        for request_id, request in self._requests.items():
            turn = self._controller.sessions.turn(request_id)
            if turn is None or not turn.is_scheduled:
                continue
            mark = -1 - turn.number  # No pause has such an id.
            if self._marked.get(turn.session.key) != mark:
                self._marked[turn.session.key] = mark
                yield self._blocks_of(turn, request)
        for session, pause in self._held_sessions():
            self._marked[session.key] = pause.pause_id
            yield self._controller.sessions.private_blocks(session)

    def _blocks_of(self, turn: Turn, request: Request) -> list[BlockRef]:
        """The blocks of a running turn that no other session uses, its new ones among them."""
        sessions = self._controller.sessions
        num_known = sessions.tree.match_depth(request.block_hashes)
        new = enumerate(request.block_hashes[num_known:], start=num_known + 1)
        return [*new, *sessions.private_blocks(turn.session)]

    def _held_sessions(self) -> list[tuple[Session, Pause]]:
        """Those that could be copied out again; whoever returns first needs DRAM least.

        Each once in a while: a walk over all its blocks has to pay.
        """
        pauses = self._controller.pauses.kept()
        if len(self._marked) > 2 * len(pauses) + 64:
            self._marked = {s.key: self._marked.get(s.key, 0) for s, _ in pauses}
        new = [
            (session, pause)
            for session, pause in pauses
            if self._marked.get(session.key) != pause.pause_id
            and self._kept.get(session.key) is not None
        ]
        return sorted(new, key=lambda pair: pair[1].returns_at_s)

    def _keys_held_twice(self, ref: BlockRef, order: PoolOrder) -> Iterator[OffloadKey]:
        depth, block_hash = ref
        for group in self._layout.groups:
            if depth % group.per_chunk == 0 and order.holds(group, block_hash):
                key = make_offload_key(block_hash, group.group_id)
                if self.dram.get(key) is not None:
                    yield key

    def _has_copy(self, key: OffloadKey) -> bool:
        """Whether a block that DRAM drops is somewhere else."""
        if self._manager.find_below(key) is not None:
            return True
        return self._order is not None and self._order.holds_key(key)

    # --- the pool ---

    @never_raises
    def added_to(self, output: SchedulerOutput) -> SchedulerOutput:
        """See `PoolStore.added_to`."""
        if self.store is None:
            return output
        try:
            return self.store.added_to(output)
        finally:
            if self.store:  # A fault: steps would go on for what never goes out.
                self.store.clear()

    @never_raises
    def clear(self) -> None:
        """The engine dropped its caches."""
        self._marked.clear()
        if self.store is not None:
            self.store.clear()

    @never_raises
    def before_give_up(self, session: Session, refs: Sequence[BlockRef]) -> None:
        """The pool may soon reuse these blocks: what nobody else has is copied to DRAM."""
        if self.store is None or self._order is None:
            return
        keys = self._layout.keys(refs)
        self.dram.make_needed(keys)
        lacking = self._lacking(keys, self._order)
        if 0 < len(lacking) <= self._manager.num_storable_chunks:
            self._copy_out(session, len(lacking))

    @never_raises
    def copy_to_dram(self, session: Session) -> None:
        """A tier below wants this session's blocks, and takes them from DRAM only."""
        self.before_give_up(session, self._controller.sessions.all_blocks(session))

    @never_raises
    def after_step(self) -> None:
        """Copies out ahead what the pool will give up next, so that nobody waits for it then.

        Only into room that costs nothing: that of blocks which are elsewhere, too.
        """
        now_s = self._clock.monotonic_s()
        if self._order is None or now_s - self._copied_at_s < _AHEAD_EVERY_S:
            return
        if self._manager.num_free_chunks:
            return  # DRAM has everything.
        self._copied_at_s = now_s
        if self._order.count_front(self._ahead_blocks)[0] >= self._ahead_blocks:
            return  # The pool will give nothing up soon.
        num_left = self._ahead_blocks
        for session, pause in self._controller.by_give_up_rank():
            if num_left <= 0:
                return
            if action_of(pause) is Action.RECOMPUTE:
                continue
            keys = self._layout.keys(self._controller.sessions.private_blocks(session))
            num_left -= len(keys)
            lacking = self._lacking(keys, self._order)
            if lacking:
                self.make_room(len(lacking))
                if len(lacking) <= self.dram.num_expendable:
                    self._copy_out(session, len(lacking))
                return  # One at a time: what it takes may be another's.

    def _lacking(self, keys: Sequence[OffloadKey], order: PoolOrder) -> list[OffloadKey]:
        """Those that only the pool has."""
        return [
            key
            for key in keys
            if self.dram.get(key) is None
            and order.holds_key(key)
            and self._manager.find_below(key) is None
        ]

    def _copy_out(self, session: Session, num_blocks: int) -> None:
        prefix = self._kept.get(session.key)
        if prefix is not None and self.store is not None and self._order is not None:
            self.store.want(prefix, self._order)
            self._recorder.count(metrics.COPIED_OUT_BLOCKS, by=num_blocks)
