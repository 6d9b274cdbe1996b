"""A router's view of an engine: an index that is built from nothing but its KV events.

Strict where a consumer may rely on us: of DRAM and the tiers below it a block is stored once and
removed once, in this order. The pool's events are vLLM's own: its blocks are counted, for it says
"stored" for each copy of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from kit.control import tell
from kit.rig import Rig
from kit.tier_waits import wait_for_tiers
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
)
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, maybe_convert_block_hash
from vllm.v1.kv_offload.base import get_offload_block_hash, get_offload_group_idx

Place = tuple[str, str | None, str | None, int]
"""Medium, locality, ownership and KV cache group of a block."""

DRAM: Place = ("CPU", None, None, 0)
SSD: Place = ("STORAGE", "LOCAL", None, 0)
REDIS: Place = ("STORAGE", "REMOTE", "redis", 0)

_PACK = msgspec.msgpack.Encoder()
_UNPACK = msgspec.msgpack.Decoder(KVEventBatch)


class EventIndex:
    """Also an `EventPublisher`: put in the place of a rig's, it gets each batch over the wire."""

    def __init__(self) -> None:
        self.blocks: dict[Place, Counter[Any]] = {}
        self.stored: dict[tuple[str, Any], BlockStored] = {}
        self.events: list[Any] = []

    def publish(self, batch: KVEventBatch) -> None:
        self.apply(_UNPACK.decode(_PACK.encode(batch)).events)

    def shutdown(self) -> None:
        """Nothing to end."""

    def apply(self, events: Iterable[Any]) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockStored):
                self._add(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)

    def at(self, place: Place) -> set[Any]:
        """The block hashes that lie in one place."""
        return set(self.blocks.get(place, ()))

    def _add(self, event: BlockStored) -> None:
        held = self.blocks.setdefault(_place(event), Counter())
        for block_hash in event.block_hashes:
            assert event.medium == "GPU" or not held[block_hash], f"stored twice: {event}"
            held[block_hash] += 1
            self.stored[str(event.medium), block_hash] = event

    def _remove(self, event: BlockRemoved) -> None:
        held = self.blocks.get(_place(event), Counter())
        for block_hash in event.block_hashes:
            assert held[block_hash] > 0, f"removed before it was stored: {event}"
            held[block_hash] -= 1
            if not held[block_hash]:
                del held[block_hash]


def outside(block_hash: Any) -> Any:
    """A block hash as events have it."""
    return maybe_convert_block_hash(block_hash)


def listen(rig: Rig) -> EventIndex:
    """From now on this index gets what the rig publishes; make the rig with `publishes_events`."""
    index = EventIndex()
    rig.scheduler.kv_event_publisher = index
    return index


def check(rig: Rig, index: EventIndex) -> None:
    """What the index says is what pool, DRAM and tiers hold. One more step is taken before."""
    for _ in range(3):
        tell(rig)
        rig.settle()
        wait_for_tiers(rig.connector)
    tell(rig)
    rig.settle()
    for place, hashes in held(rig.connector, rig.pool).items():
        assert index.at(place) == hashes, place


def held(connector: Any, pool: Any) -> dict[Place, set[Any]]:
    """What really lies where, by the books of pool, DRAM and tiers."""
    manager = connector.connector_scheduler.manager
    places: dict[Place, set[Any]] = {}
    for group in (group.group_id for group in connector.scheduler_side.layout.groups):
        ready = (key for key, chunk in manager.dram.chunks.items() if chunk.is_ready)
        places["GPU", None, None, group] = _in_pool(pool, group)
        places["CPU", None, None, group] = _of_group(ready, group)
        for tier in manager.tiers:
            is_local = tier.store.is_index_local
            place = (
                ("STORAGE", "LOCAL", None) if is_local else ("STORAGE", "REMOTE", tier.tier_type)
            )
            places[(*place, group)] = _in_tier(tier, group)
    return places


def _in_pool(pool: Any, group: int) -> set[Any]:
    hashes = [block.block_hash for block in pool.blocks if block.block_hash is not None]
    return {outside(get_block_hash(h)) for h in hashes if get_group_id(h) == group}


def _in_tier(tier: Any, group: int) -> set[Any]:
    if not tier.is_available:
        return set()
    if not tier.store.is_index_local:
        return _of_group(tier.known(), group)
    assert not tier._epoch, "after a fence the names are no keys"
    return _of_group(tier.store._index._entries, group)


def _of_group(keys: Iterable[Any], group: int) -> set[Any]:
    of_group = (key for key in keys if get_offload_group_idx(key) == group)
    return {outside(get_offload_block_hash(key)) for key in of_group}


def _place(event: BlockStored | BlockRemoved) -> Place:
    return str(event.medium), event.locality, event.ownership, event.group_idx or 0
