"""Which blocks of the DRAM tier go first: what no session needs, then the least recently used, and
last the KV of turns that have arrived.

vLLM's LRU does the book-keeping. Worthless blocks get a rank below all others; arrived ones are
protected from eviction as long as anything else can be evicted. Told what is what by
`scheduler_side`, which knows the sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

_BELOW_ALL = -(1 << 62)


Victims = list[tuple[OffloadKey, ChunkStatus]]


class _Either:
    """Membership in one of two collections, without building their union."""

    def __init__(self, first: set[OffloadKey], second: Counter[OffloadKey]) -> None:
        self._first = first
        self._second = second

    def __contains__(self, key: object) -> bool:
        return key in self._first or key in self._second


class AgentKVCachePolicy(LRUCachePolicy):
    """`LRUCachePolicy` with two more ranks: worthless below it, arrived above it."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._num_worthless = 0
        self._arrived: Counter[OffloadKey] = Counter()

    def mark_worthless(self, keys: Iterable[OffloadKey]) -> int:
        """Ranks these blocks below all others, the first one lowest; returns how many were here."""
        num_marked = 0
        for key in keys:
            if key not in self.chunks:
                continue
            num_marked += 1
            self._num_worthless += 1
            self._ranks[key] = _BELOW_ALL + self._num_worthless
            if key in self._evictable:
                self._push_evictable(key)
        self._maybe_compact_heap()
        return num_marked

    def is_worthless(self, key: OffloadKey) -> bool:
        return bool(self._ranks.get(key, 0) < 0)

    def protect(self, keys: Iterable[OffloadKey]) -> None:
        """These blocks belong to a turn that has arrived; `unprotect` must follow."""
        self._arrived.update(keys)

    def unprotect(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self._arrived[key] -= 1
            if self._arrived[key] <= 0:
                del self._arrived[key]

    def evict(self, n: int, protected: set[OffloadKey]) -> Victims | None:
        if self._arrived:
            victims: Victims | None = super().evict(n, _Either(protected, self._arrived))
            if victims is not None:
                return victims
        victims = super().evict(n, protected)
        return victims

    def clear(self) -> None:
        super().clear()
        self._arrived.clear()

    def key_of_chunk(self, chunk_id: int) -> OffloadKey | None:
        """The block stored in a chunk. Walks all chunks: only for the rare damaged one."""
        for key, chunk in self.chunks.items():
            if chunk.chunk_id == chunk_id:
                return key
        return None
