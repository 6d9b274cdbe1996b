"""Where a session's blocks are: in DRAM, in a tier below it, or nowhere but perhaps in the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from vllm.v1.kv_offload.base import OffloadKey, make_offload_key

from agentkv.appraisal import Location
from agentkv.sessions import BlockRef

from .layout import Group, Layout
from .pool_order import PoolOrder
from .store_tier import StoreTier
from .tiering import AgentKVTieringManager


class Whereabouts:
    """Asks memory only. Owned by the scheduler thread."""

    def __init__(
        self, manager: AgentKVTieringManager, layout: Layout, *, is_exclusive: bool
    ) -> None:
        self._manager = manager
        self._layout = layout
        self.is_exclusive = is_exclusive
        self.order: PoolOrder | None = None

    def locate(self, refs: Sequence[BlockRef]) -> Location:
        """See `appraisal.Location`: of the blocks missing, the worst group decides.

        What lies before a group's window is not needed; a chunk is missing with all its blocks.
        """
        num_missing = num_unstored = 0
        num_slow: Counter[StoreTier] = Counter()
        for group in self._layout.groups:
            missing_chunks = unstored_chunks = 0
            for key in self._needed(group, refs):
                if self._manager.dram.get(key) is not None:
                    continue
                tier = self._manager.find_below(key)
                if tier is not None:
                    num_slow[tier] += 1
                elif self.is_exclusive and self.order is not None and self.order.holds_key(key):
                    unstored_chunks += 1
                else:
                    missing_chunks += 1
            num_missing = max(num_missing, group.per_chunk * missing_chunks)
            num_unstored = max(num_unstored, group.per_chunk * unstored_chunks)
        slow_s = sum(tier.load_s(num_blocks) for tier, num_blocks in num_slow.items())
        return Location(min(len(refs), num_missing), min(len(refs), num_unstored), slow_s)

    def tokens_by_tier(self, refs: Sequence[BlockRef]) -> dict[str, int]:
        """How many of these blocks' tokens each tier has KV of; some may be in several.

        Of the first group: what is true of it is true of the others, but for their windows.
        """
        group = self._layout.groups[0]
        per_chunk = group.per_chunk * self._layout.tokens_per_hash
        counts = dict.fromkeys(("gpu", "dram", *(t.tier_type for t in self._manager.tiers)), 0)
        for depth, block_hash in refs:
            if self.order is not None and depth % group.per_block == 0:
                is_cached = self.order.holds(group, block_hash)
                counts["gpu"] += is_cached * group.per_block * self._layout.tokens_per_hash
            if depth % group.per_chunk == 0:
                key = make_offload_key(block_hash, group.group_id)
                counts["dram"] += per_chunk * (self._manager.dram.get(key) is not None)
                for tier in self._manager.tiers:
                    counts[tier.tier_type] += per_chunk * tier.holds(key)
        return counts

    def _needed(self, group: Group, refs: Sequence[BlockRef]) -> Iterator[OffloadKey]:
        """The group's chunks that a turn after these blocks would read."""
        end = max((depth for depth, _ in refs), default=0)
        for depth, block_hash in refs:
            is_in_window = group.window is None or depth > end - group.window
            if depth % group.per_chunk == 0 and is_in_window:
                yield make_offload_key(block_hash, group.group_id)
