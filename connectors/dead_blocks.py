"""Blocks that no session needs any more: the first to go, in the GPU pool and in the DRAM tier."""

from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.kv_offload.base import OffloadKey

from agentkv.prefix_tree import PrefixTree
from agentkv.sessions import BlockRef

from .cache_policy import AgentKVCachePolicy
from .layout import Layout
from .pool_order import PoolOrder

# With async scheduling, blocks come back up to two steps after their request has ended.
_CHECKS = 3


class DeadBlocks:
    """Owned by the scheduler thread; its length is the number of blocks still in use."""

    def __init__(self, dram: AgentKVCachePolicy, layout: Layout) -> None:
        self._dram = dram
        self._layout = layout
        self._in_use: list[BlockRef] = []
        self._checks_left = 0
        self._new_keys: list[OffloadKey] = []

    def __len__(self) -> int:
        return len(self._in_use)

    def note_freed(self) -> None:
        """Some request gave blocks back: those in use may be free now."""
        self._checks_left = _CHECKS

    def discard(
        self, order: PoolOrder, died: Iterable[BlockRef], alive: PrefixTree
    ) -> tuple[int, list[BlockRef]]:
        """Puts them to the front, except those a session has taken up again meanwhile.

        Returns the number of blocks moved in the pool, and the dead ones.
        """
        refs = [*self._in_use, *died]
        if not refs or (len(refs) == len(self._in_use) and not self._checks_left):
            return 0, []
        self._checks_left = max(0, self._checks_left - 1)
        dead = [ref for ref in refs if ref[1] not in alive]
        keys = self._layout.keys(dead)
        self._dram.mark_worthless(keys)
        self._new_keys.extend(keys)
        num_moved, self._in_use = order.discard(dead)
        return num_moved, dead

    def remind_dram(self) -> None:
        """To be called when vLLM has finalized requests: that refreshes all that they had used."""
        if self._new_keys:
            self._dram.mark_worthless(self._new_keys)
            self._new_keys.clear()

    def clear(self) -> None:
        self._in_use.clear()
        self._new_keys.clear()
