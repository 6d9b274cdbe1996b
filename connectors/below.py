"""All that `scheduler_side` does about the tiers below DRAM: told of once, done here.

What goes down is `demoter`'s; what comes up is noted for the turn or pause it is for; what nobody
will need again is dropped; the numbers go to the recorder.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_offload.base import OffloadKey, get_offload_group_idx
from vllm.v1.request import Request

from agentkv import metrics
from agentkv.appraisal import Deps
from agentkv.config import AgentKVConfig
from agentkv.controller import Controller
from agentkv.sessions import BlockRef, SessionKey

from .demoter import Demoter
from .exclusive import Exclusive
from .guard import Faults, never_raises
from .kv_events import KvEvents
from .layout import Layout
from .pause_spans import PauseSpans
from .pool_load import REQUEST_PREFIX, PoolLoader
from .prefetcher import Prefetcher
from .store_tier import StoreTier
from .tiering import AgentKVTieringManager


class Below:
    """Owned by the scheduler thread. Without a tier below DRAM it only says how full DRAM is."""

    def __init__(
        self,
        controller: Controller,
        deps: Deps,
        manager: AgentKVTieringManager,
        layout: Layout,
        config: AgentKVConfig,
        prefetcher: Prefetcher,
        exclusive: Exclusive,
        faults: Faults,
    ) -> None:
        self.faults = faults
        self._controller = controller
        self._recorder = deps.recorder
        self._manager = manager
        self._layout = layout
        self._prefetcher = prefetcher
        copy = exclusive.copy_to_dram
        self._demoter = Demoter(controller, deps, manager, layout, config, copy)
        self.events: KvEvents | None = None
        self.spans: PauseSpans | None = None
        manager.on_promotion = self.on_promotion
        manager.on_promoted = self.on_promoted

    def attach(self, loader: PoolLoader, offloading: OffloadingConnectorScheduler) -> None:
        """Before the first step: the way up, and the news of what is where, if anybody listens."""
        self._prefetcher.attach(loader)
        if self._manager.spec.kv_events_config.enable_kv_cache_events:
            self.events = KvEvents(self._manager, offloading, self._name_of, self.faults)
            loader.after_reset = self.events.pool_was_reset

    def _name_of(self, block_hash: bytes) -> str | None:
        """The session that computed a block, if its client named it."""
        sessions = self._controller.sessions
        owner = sessions.tree.owner_at(block_hash)
        session = sessions.get(owner) if isinstance(owner, SessionKey) else None
        return session.key.name if session is not None and not session.is_inferred else None

    @never_raises
    def after_step(self) -> None:
        """A step was processed."""
        self._demoter.after_step()

    @never_raises
    def on_promotion(self, request_id: str, tier: StoreTier, key: OffloadKey) -> None:
        """A look-up found a block in a tier below: it is on its way up."""
        if self.events is not None:
            self.events.note_rising(request_id, key)
        is_prefetch = request_id.startswith(REQUEST_PREFIX)
        purpose = "prefetch" if is_prefetch else "turn"
        self._recorder.count(metrics.PROMOTED_BLOCKS, tier.tier_type, purpose)
        group = next(g for g in self._layout.groups if g.group_id == get_offload_group_idx(key))
        if group is not self._layout.groups[0]:
            return  # The same tokens once more.
        num_tokens = group.per_chunk * self._layout.tokens_per_hash
        if is_prefetch:
            session = self._prefetcher.starting
            if session is not None and session.pause is not None:
                session.pause.promoted[tier.tier_type] += num_tokens
            return
        turn = self._controller.sessions.turn(request_id)
        if turn is not None:
            turn.promoted[tier.tier_type] += num_tokens

    @never_raises
    def on_promoted(self, request_id: str) -> None:
        """What was on its way up is in DRAM."""
        if request_id.startswith(REQUEST_PREFIX):
            self._prefetcher.look_again()

    @never_raises
    def note_finished(self, request: Request) -> None:
        """A turn is about to end."""
        if self.spans is not None:
            self.spans.note_finished(request)
        turn = self._controller.sessions.turn(request.request_id)
        if turn is not None and request.lora_request is not None:
            turn.session.is_local = True  # Keys name an adapter, not its content.

    @never_raises
    def forget(self, dead: Sequence[BlockRef]) -> None:
        """No session will need these blocks."""
        if self._manager.tiers and dead:
            keys = self._layout.keys(dead)
            for tier in self._manager.tiers:
                tier.forget(keys)

    @never_raises
    def take_damaged_chunks(self) -> list[int]:
        """Chunks of DRAM that are not what was stored there."""
        return [chunk for tier in self._manager.tiers for chunk in tier.take_damaged_chunks()]

    @never_raises
    def tidy(self) -> None:
        """Once a second: what went wrong, and how full the tiers are, DRAM too."""
        num_chunks = len(self._manager.primary_tier._policy.chunks)
        chunk_bytes = int(self._manager.spec.kv_bytes_per_chunk)
        self._recorder.gauge(metrics.TIER_BLOCKS, "dram", value=num_chunks)
        self._recorder.gauge(metrics.TIER_BYTES, "dram", value=num_chunks * chunk_bytes)
        for tier in self._manager.tiers:
            store, name = tier.store, tier.tier_type
            for reason, count in store.take_failures().items():
                self._recorder.count(metrics.TIER_FAILURES, name, reason, by=count)
            usage = store.usage()
            self._recorder.gauge(metrics.TIER_BLOCKS, name, value=usage.num_entries)
            self._recorder.gauge(metrics.TIER_BYTES, name, value=usage.used_bytes)
            self._recorder.gauge(metrics.TIER_AVAILABLE, name, value=float(tier.is_available))

    def next_look_s(self) -> float | None:
        """See `Demoter.next_look_s`."""
        return self._demoter.next_look_s()

    def clear(self) -> None:
        """The engine dropped its caches."""
        self._demoter.clear()
