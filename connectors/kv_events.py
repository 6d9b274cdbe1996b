"""Publishes what lies in DRAM and below it as vLLM's KV events, so that a router can know.

    tiers (`tier_contents`) ─► what differs from what was said last ─► BlockStored / BlockRemoved

vLLM's own events say of DRAM a hash without its tokens, of our tiers nothing, and after a reset of
the pool alone, which says that all is gone, never again what DRAM still has. Here an event is the
difference between what a tier has now and what was said of it: so a removal cannot precede its
store, and losses, resets and restarts need no cases. Costs nothing where events are off.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import (
    OffloadingEventsTracker,
    _OffloadEventMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    GroupOffloadConfig,
    OffloadingConnectorScheduler,
)
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash
from vllm.v1.kv_offload.base import (
    OffloadingEvent,
    OffloadKey,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.request import Request

from .guard import Faults, never_raises
from .tier_contents import DramContents, StoreContents, TierContents
from .tiering import AgentKVTieringManager

_MAX_TOLD_AGAIN = 512
"""Blocks of each tier per step when all of it is to be told: a start, a reset, a tier that is back.
One step's events must not hold up the engine."""


@dataclass(slots=True)
class _Described(_OffloadEventMetadata):
    """A block's tokens, as vLLM keeps them for its events, and whose turn computed or read it."""

    session_id: str | None = None


class NamingTracker(OffloadingEventsTracker):
    """vLLM's, with the session beside the tokens: kept together, forgotten together."""

    def _build_event_metadata(
        self, req: Request, group_config: GroupOffloadConfig, chunk_idx: int
    ) -> _Described:
        meta = super()._build_event_metadata(req, group_config, chunk_idx)
        known = {field.name: getattr(meta, field.name) for field in dataclasses.fields(meta)}
        return _Described(**known, session_id=req.session_id)


class TierNews:
    """One tier, and what was said of it. Owned by the scheduler thread."""

    def __init__(self, contents: TierContents) -> None:
        self.contents = contents
        self._said: set[OffloadKey] = set()
        self._undecided: set[OffloadKey] = set()
        self._to_tell: deque[OffloadKey] = deque(contents.all())
        self._was_available = contents.is_available

    def take(self) -> tuple[list[OffloadKey], list[OffloadKey]]:
        """The blocks that are to be said stored, and those removed."""
        contents = self.contents
        if contents.is_available != self._was_available:
            self._was_available = contents.is_available
            self._to_tell = deque(contents.all() if contents.is_available else self._said)
        changed = contents.take_changes() | self._undecided
        for _ in range(min(_MAX_TOLD_AGAIN, len(self._to_tell))):
            changed.add(self._to_tell.popleft())
        come = [key for key in changed if key not in self._said and contents.has(key)]
        # What is evicted and at once stored again is said to be there until that has ended: a
        # removal would end what vLLM knows of its tokens.
        self._undecided = {key for key in changed & self._said if contents.is_coming(key)}
        gone = [key for key in changed & self._said - self._undecided if not contents.has(key)]
        self._said.update(come)
        self._said.difference_update(gone)
        return come, gone

    def start_anew(self) -> None:
        """Who listens has just been told that everything is gone."""
        self._said.clear()
        self._undecided.clear()
        self._to_tell = deque(self.contents.all())

    def take_all_back(self) -> list[OffloadKey]:
        """The tier is about to lose all: what is to be said removed."""
        said, self._said = list(self._said), set()
        self._undecided.clear()
        self._to_tell.clear()
        self.contents.take_changes()
        return said


class KvEvents:
    """Owned by the scheduler thread. Make one only where vLLM publishes events."""

    def __init__(
        self,
        manager: AgentKVTieringManager,
        offloading: OffloadingConnectorScheduler,
        session_of: Callable[[bytes], str | None],
        faults: Faults,
    ) -> None:
        """`session_of` a block hash: the name that the session's client gave."""
        self.faults = faults
        self._manager = manager
        self._offloading = offloading
        self._tracker = NamingTracker(manager.spec.kv_events_config)
        offloading._events_tracker = self._tracker
        offloading.take_events = self.take
        self._session_of = session_of
        self._dram = TierNews(DramContents(manager))
        self._below = [TierNews(StoreContents(tier)) for tier in manager.tiers]
        self._last_words: list[KVCacheEvent] = []
        self._rising: dict[OffloadKey, _Described] = {}
        self._groups = {group.group_idx: group for group in offloading.config.kv_group_configs}
        manager.on_came_up = self.note_risen
        manager.before_reset = self.before_reset

    def take(self) -> list[KVCacheEvent]:
        """In the place of vLLM's `OffloadingConnectorScheduler.take_events`, once per step."""
        return self._news() or []

    @never_raises
    def _news(self) -> list[KVCacheEvent]:
        """All there is to say after a step, stores first: a removal ends what is known of a block.

        A block that goes from one tier to another is so never said to be nowhere.
        """
        events, self._last_words = self._last_words, []
        all_gone: list[tuple[TierContents, list[OffloadKey]]] = []
        for news in (self._dram, *self._below):
            come, gone = news.take()
            events.extend(self._stored(news.contents, come))
            all_gone.append((news.contents, gone))
        for contents, gone in all_gone:
            events.extend(self._removed(contents, gone))
        return events

    @never_raises
    def note_rising(self, request_id: str, key: OffloadKey) -> None:
        """A block begins to come up to DRAM for a request, which alone knows its tokens.

        It may be gone when the block is there.
        """
        status = self._offloading._req_status.get(request_id)
        group = self._groups[get_offload_group_idx(key)]
        if status is None or group.sliding_window_size_in_chunks is not None:
            return
        end = status.req_context.get_offload_key_position(key)
        if end is not None and end % group.tokens_per_chunk == 0:
            chunk = end // group.tokens_per_chunk - 1
            self._rising[key] = self._tracker._build_event_metadata(status.req, group, chunk)

    @never_raises
    def note_risen(self, keys: Iterable[OffloadKey]) -> None:
        """These came up, or failed to."""
        for key in keys:
            meta = self._rising.pop(key, None)
            if meta is not None and self._dram.contents.has(key):
                self._tracker._pending_event_metadata.setdefault(key, meta)

    @never_raises
    def pool_was_reset(self) -> None:
        """vLLM publishes that all blocks are gone, of every medium."""
        self._last_words.clear()
        for news in (self._dram, *self._below):
            news.start_anew()

    @never_raises
    def before_reset(self) -> None:
        """DRAM is about to be emptied, and what vLLM knows of the tokens of blocks with it."""
        self._rising.clear()
        losing = [self._dram] if self._manager.keeps_tiers_on_reset else [self._dram, *self._below]
        for news in losing:
            self._last_words.extend(self._removed(news.contents, news.take_all_back()))

    # --- parts ---

    def _stored(self, tier: TierContents, keys: Sequence[OffloadKey]) -> Iterator[BlockStored]:
        known = self._tracker._pending_event_metadata
        for key in keys:
            if (meta := known.get(key)) is not None:
                (event,) = self._tracker.take_events([self._event(tier, [key], is_removed=False)])
                if isinstance(meta, _Described):  # vLLM notes those of partial tails itself.
                    event.session_id = meta.session_id
            else:  # As vLLM says of what it knows no tokens: windows, and what a restart found.
                locality = None if tier.locality is None else tier.locality.value
                event = self._tracker._placeholder_stored(
                    key, tier.medium, locality, tier.ownership
                )
            if event.session_id is None:
                event.session_id = self._session_of(get_offload_block_hash(key))
            yield event

    def _removed(self, tier: TierContents, keys: Sequence[OffloadKey]) -> Iterator[BlockRemoved]:
        pending = self._tracker._pending_event_metadata
        known = [key for key in keys if key in pending]
        bare: dict[int, list[OffloadKey]] = {}
        for key in keys:
            if key not in pending:
                bare.setdefault(get_offload_group_idx(key), []).append(key)
        if known:
            yield from self._tracker.take_events([self._event(tier, known, is_removed=True)])
        for group_idx, group_keys in bare.items():
            yield BlockRemoved(
                block_hashes=[_external(key) for key in group_keys],
                medium=tier.medium.value,
                group_idx=group_idx,
                locality=None if tier.locality is None else tier.locality.value,
                ownership=tier.ownership,
            )

    def _event(
        self, tier: TierContents, keys: list[OffloadKey], *, is_removed: bool
    ) -> OffloadingEvent:
        """`removal_expected` keeps a block's tokens in memory until it is gone from the tier.

        Needed only where one key stands for several blocks: all their hashes are then removed.
        """
        return OffloadingEvent(
            keys=keys,
            medium=tier.medium,
            removed=is_removed,
            locality=tier.locality,
            ownership=tier.ownership,
            removal_expected=self._manager.spec.blocks_per_chunk > 1,
        )


def _external(key: OffloadKey) -> bytes | int:
    external: bytes | int = maybe_convert_block_hash(BlockHash(get_offload_block_hash(key)))
    return external
