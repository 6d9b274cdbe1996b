"""Keeps DRAM for KV that the GPU pool does not have (exclusive tiers).

    DRAM has to evict ─► copies of what the pool has go first (`held_twice`): nothing is lost
                         then those of the sessions that are worth least (`Portfolio.to_drop`)
    the pool gives a session up ─► what DRAM lacks of it is copied out first (`pool_store`)

While DRAM has room this does nothing. Only a turn that vLLM preempts may lose some.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.request import Request

from agentkv import metrics
from agentkv.appraisal import Deps
from agentkv.controller import Controller
from agentkv.policy import Action
from agentkv.resumes import action_of
from agentkv.sessions import BlockRef, Session

from .guard import Faults, never_raises
from .held_twice import HeldTwice
from .kept_prefix import KeptPrefixes
from .layout import Layout
from .pool_order import PoolOrder
from .pool_store import PoolStore
from .tiering import AgentKVTieringManager

_AHEAD = 4  # So many times what is needed now is marked at once.
_AHEAD_EVERY_S, _AHEAD_EVERY_MOST_S = 0.1, 1.0
_AHEAD_SHARE = 0.0025  # Of the time, looking ahead takes at most this much.
_MAX_PASSED = 256


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
        self._kept = kept
        self.held_twice = HeldTwice(controller, deps.clock, manager.dram, layout, requests, kept)
        self._ahead_from_s = 0.0
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
    def make_room(self, num_chunks: int, besides: Set[OffloadKey]) -> None:
        """DRAM is about to evict so many chunks: let those go first that the pool has, too.

        `besides`: those that must stay, for they are what room is made for.
        """
        num_wanted = num_chunks + self.dram.num_expendable_of(besides)
        num_lacking = num_wanted - self.dram.num_expendable
        if self._order is None or num_lacking <= 0:
            return
        found = self.held_twice.find(self._order, _AHEAD * num_lacking, besides)
        self.dram.make_ready(found)
        if self.dram.num_expendable < num_wanted:
            self._drop_least(num_wanted, besides)

    def _drop_least(self, num_wanted: int, besides: Set[OffloadKey]) -> None:
        """All that DRAM holds is needed: those give way whose copies are worth least, no more of
        them than have to.
        """
        if self._manager.tiers:
            return  # The demoter makes room without loss.
        manager, sessions = self._manager, self._controller.sessions
        dram_bytes = manager.num_chunks * manager.primary_tier.get_kv_memoryview().strides[0]
        for session in self._controller.portfolio.to_drop(dram_bytes):
            keys = self._layout.keys(sessions.private_blocks(session))
            here = (k for k in keys if self.dram.is_sole(k) and self.dram.is_idle(k))
            needed = (key for key in here if key not in besides)
            num_lacking = num_wanted - self.dram.num_expendable
            self.dram.make_ready(itertools.islice(needed, num_lacking))
            if self.dram.num_expendable >= num_wanted:
                break

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
        self.held_twice.clear()
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
        """A tier below wants this session's blocks, and takes them from DRAM only.

        Of a context larger than DRAM what fits, from the root on: the rest when that is below.
        """
        refs = self._controller.sessions.all_blocks(session)
        prefix = self._kept.get(session.key)
        if len(self._layout.keys(refs)) <= self._manager.num_chunks:
            self.before_give_up(session, refs)
        elif self._order is not None and prefix is not None:
            self._copy_beginning(session, prefix.block_hashes, self._order)

    def _copy_beginning(self, session: Session, hashes: Sequence[bytes], order: PoolOrder) -> None:
        num_room = self._manager.num_free_chunks + self.dram.num_expendable
        part: list[int] = []
        for ref in enumerate(hashes, start=1):
            num_lacking = len(self._lacking(self._layout.keys([ref]), order))
            num_room -= num_lacking
            if num_room < 0:
                break
            part += [ref[0]] * num_lacking
        if part:
            first = part[0] - max(group.per_chunk for group in self._layout.groups)
            self._copy_out(session, len(part), range(max(0, first), part[-1]))

    @never_raises
    def after_step(self) -> None:
        """Copies out ahead what the pool will give up next, so that nobody waits for it then.

        Only into room that costs nothing: that of blocks which are elsewhere, too.
        """
        now_s = self._clock.monotonic_s()
        if self._order is None or now_s < self._ahead_from_s:
            return
        if self._manager.num_free_chunks:
            return  # DRAM has everything.
        self._copy_ahead(self._order)
        took_s = self._clock.monotonic_s() - now_s
        rest_s = min(_AHEAD_EVERY_MOST_S, max(_AHEAD_EVERY_S, took_s / _AHEAD_SHARE))
        self._ahead_from_s = now_s + rest_s

    def _copy_ahead(self, order: PoolOrder) -> None:
        if order.count_front(self._ahead_blocks)[0] >= self._ahead_blocks:
            return  # The pool will give nothing up soon.
        num_left = self._ahead_blocks
        first = itertools.islice(self._controller.portfolio.order(), _MAX_PASSED)
        for session, pause in first:
            if num_left <= 0:
                return
            if action_of(pause) is Action.RECOMPUTE:
                continue
            keys = self._layout.keys(self._controller.sessions.private_blocks(session))
            num_left -= len(keys)
            lacking = self._lacking(keys, order)
            if lacking:
                own = set(keys)
                self.make_room(len(lacking), own)
                num_room = self.dram.num_expendable - self.dram.num_expendable_of(own)
                if len(lacking) <= num_room:
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

    def _copy_out(self, session: Session, num_blocks: int, part: range | None = None) -> None:
        """With `part` only those hash blocks of the prefix."""
        prefix = self._kept.get(session.key)
        if prefix is not None and part is not None:
            prefix = prefix.cut(part.stop, self._layout.tokens_per_hash)
        if prefix is not None and self.store is not None and self._order is not None:
            self.store.want(prefix, self._order, start=0 if part is None else part.start)
            self._recorder.count(metrics.COPIED_OUT_BLOCKS, by=num_blocks)
