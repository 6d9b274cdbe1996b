"""What lies in DRAM and in the tiers below it, as one who publishes it has to ask.

A change is a block to look at again, no more: whether it came or went is asked when it is told of.
So whatever happened in between, and in whichever thread, nothing that was said can be stale.
"""

from __future__ import annotations

from typing import Protocol

from vllm.v1.kv_offload.base import Locality, Medium, OffloadKey

from agentkv.tiers.base import WatchedStore

from .store_tier import StoreTier
from .tiering import AgentKVTieringManager


class TierContents(Protocol):
    """One tier. Owned by the scheduler thread; answers from memory.

    `medium`, `locality` and `ownership` are how vLLM's KV events name it.
    """

    medium: Medium
    locality: Locality | None
    ownership: str | None

    @property
    def is_available(self) -> bool:
        """False while nothing in it can be reached."""

    def has(self, key: OffloadKey) -> bool:
        """Whether the block can be loaded from here."""

    def is_coming(self, key: OffloadKey) -> bool:
        """Whether the block is being written just now."""

    def all(self) -> list[OffloadKey]:
        """The blocks it has, and perhaps some that are gone by now."""

    def take_changes(self) -> set[OffloadKey]:
        """Blocks that came or went since the last call."""


class DramContents:
    """The DRAM tier: vLLM's manager notes what it stores and evicts (`_drop` adds what we do)."""

    medium = Medium.CPU
    locality: Locality | None = None
    ownership: str | None = None
    is_available = True

    def __init__(self, manager: AgentKVTieringManager) -> None:
        self._primary = manager.primary_tier
        self._dram = manager.dram

    def has(self, key: OffloadKey) -> bool:
        chunk = self._dram.get(key)
        return chunk is not None and bool(chunk.is_ready)

    def is_coming(self, key: OffloadKey) -> bool:
        chunk = self._dram.get(key)
        return chunk is not None and not chunk.is_ready

    def all(self) -> list[OffloadKey]:
        return [key for key, chunk in self._dram.chunks.items() if chunk.is_ready]

    def take_changes(self) -> set[OffloadKey]:
        return {key for event in self._primary.take_events() for key in event.keys}


class StoreContents:
    """A tier below DRAM. Of one in another machine: what this engine put or found there."""

    medium = Medium.STORAGE

    def __init__(self, tier: StoreTier) -> None:
        self._tier = tier
        self._store = tier.store if isinstance(tier.store, WatchedStore) else None
        self._changed: set[OffloadKey] = set()
        # Where the store knows a block by another name than its key: after a fence.
        self._key_of: dict[bytes, OffloadKey] = {}
        # Only of what others may hold, too: routers (Dynamo's for one) leave out what has an owner,
        # and it is no reason to come here. What lies on the engine's own disk is one.
        is_local = tier.store.is_index_local
        self.locality: Locality | None = Locality.LOCAL if is_local else Locality.REMOTE
        self.ownership: str | None = None if is_local else tier.tier_type
        if self._store is not None:
            self._store.watch()
        tier.on_change = self._note

    @property
    def is_available(self) -> bool:
        return self._tier.is_available

    def has(self, key: OffloadKey) -> bool:
        return self._tier.has(key)

    def is_coming(self, key: OffloadKey) -> bool:
        return False

    def all(self) -> list[OffloadKey]:
        if self._store is None:
            return self._tier.known()
        return [self._key(name) for name in self._store.watch()]

    def take_changes(self) -> set[OffloadKey]:
        changed, self._changed = self._changed, set()
        if self._store is not None:
            lost = self._store.take_lost()
            changed.update(self._key(name) for name in lost)
            for name in lost & self._key_of.keys():
                if not self._tier.has(self._key_of[name]):
                    del self._key_of[name]
        return changed

    def _note(self, key: OffloadKey) -> None:
        self._changed.add(key)
        if self._store is not None and (name := self._tier.name_of(key)) != key:
            self._key_of[name] = key

    def _key(self, name: bytes) -> OffloadKey:
        return self._key_of.get(name) or OffloadKey(name)
