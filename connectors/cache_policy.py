"""Which blocks of the DRAM tier go first: what no session needs, then what a tier below has and
nobody used since, then the least recently used, and last the KV of turns that have arrived.

vLLM's LRU does the book-keeping and evicts by rank, lowest first. Worthless blocks get ranks below
all others, blocks of arrived turns ranks above them. Told what is what by `scheduler_side`, which
knows the sessions.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

Victims = list[tuple[OffloadKey, ChunkStatus]]

_BELOW_ALL = -(1 << 62)
_READY = -(1 << 61)
_ABOVE_ALL = 1 << 62


class AgentKVCachePolicy(LRUCachePolicy):
    """`LRUCachePolicy` with ranks of ours: worthless and ready below it, arrived above it."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._num_worthless = 0
        self._num_ready = 0
        self._num_arrived = 0
        self._sole: OrderedDict[OffloadKey, None] = OrderedDict()
        self._fresh: OrderedDict[OffloadKey, None] = OrderedDict()  # used since `take_fresh`
        self._busy: set[OffloadKey] = set()
        self._arrived: Counter[OffloadKey] = Counter()
        # Called before so many blocks are chosen for eviction, none of those that must stay: the
        # last moment to protect some.
        self.before_evict: Callable[[int, Set[OffloadKey]], None] | None = None
        self.has_copy: Callable[[OffloadKey], bool] = lambda key: False
        # Called with what was evicted and no tier below has.
        self.after_evict: Callable[[list[OffloadKey]], None] | None = None

    def mark_worthless(self, keys: Iterable[OffloadKey]) -> int:
        """Ranks these blocks below all others, the first one lowest; returns how many were here.

        A block that an arrived turn waits for is worth something and stays where it is.
        """
        num_marked = 0
        for key in keys:
            if key not in self.chunks or key in self._arrived:
                continue
            num_marked += 1
            self._num_worthless += 1
            self._sole.pop(key, None)
            self._rank(key, _BELOW_ALL + self._num_worthless)
        self._maybe_compact_heap()
        return num_marked

    def is_worthless(self, key: OffloadKey) -> bool:
        return bool(self._ranks.get(key, 0) < _READY)

    # --- what a tier below has too ---

    @property
    def num_sole(self) -> int:
        """Blocks that are not ready to be evicted."""
        return len(self._sole)

    @property
    def num_expendable(self) -> int:
        """Blocks that can be evicted now without loss: not those that are being copied."""
        num_busy = sum(key not in self._sole for key in self._busy)
        return len(self.chunks) - len(self._sole) - num_busy

    def num_expendable_of(self, keys: Iterable[OffloadKey]) -> int:
        """How many of these could be evicted now without loss."""
        return sum(key in self._evictable and key not in self._sole for key in keys)

    def is_sole(self, key: OffloadKey) -> bool:
        """Whether the block is here and not ready to be evicted, nor wanted by an arrived turn."""
        return key in self._sole and key not in self._arrived

    def is_idle(self, key: OffloadKey) -> bool:
        """Whether the block is here and not being copied."""
        return key in self._evictable

    def take_fresh(self) -> Iterator[OffloadKey]:
        """Blocks that came or were used since the last look, newest first; each is given once."""
        while self._fresh:
            key, _ = self._fresh.popitem()
            if self.is_sole(key):
                yield key

    def oldest_sole(self) -> Iterator[OffloadKey]:
        """Idle blocks that are not ready, those used longest ago first.

        Not those of arrived turns. The policy must not be changed meanwhile.
        """
        return (key for key in self._sole if key in self._evictable and key not in self._arrived)

    def make_ready(self, keys: Iterable[OffloadKey]) -> None:
        """A tier below has these: until they are used again, they go before all that it lacks."""
        for key in keys:
            if key in self.chunks and key not in self._arrived and not self.is_worthless(key):
                self._sole.pop(key, None)
                self._num_ready += 1
                self._rank(key, _READY + self._num_ready)
        self._maybe_compact_heap()

    def make_needed(self, keys: Iterable[OffloadKey]) -> None:
        """Of what was ready, these must stay again: the copy elsewhere will soon be gone."""
        for key in keys:
            is_ready = key in self.chunks and key not in self._sole and key not in self._arrived
            if is_ready and not self.is_worthless(key):
                self._next_rank += 1
                self._note_used(key)
                self._rank(key, self._next_rank)
        self._maybe_compact_heap()

    def protect(self, keys: Iterable[OffloadKey]) -> None:
        """These blocks belong to a turn that has arrived; `unprotect` must follow.

        Pass a chain from its root: of what is protected, a chain's tail goes before its head, and
        a turn that came later before one that came earlier.
        """
        for key in keys:
            self._arrived[key] += 1
            if self._arrived[key] == 1 and key in self.chunks:
                self._rank_arrived(key)
        self._maybe_compact_heap()

    def unprotect(self, keys: Sequence[OffloadKey]) -> None:
        """The turn has its blocks, or will never run: they are the most recently used ones."""
        for key in reversed(keys):
            self._arrived[key] -= 1
            if self._arrived[key] <= 0:
                del self._arrived[key]
                if key in self.chunks:
                    self._next_rank += 1
                    self._rank(key, self._next_rank)
                    self._note_used(key)
        self._maybe_compact_heap()

    def evict(self, n: int, protected: set[OffloadKey]) -> Victims | None:
        if n and self.before_evict is not None:
            self.before_evict(n, protected)
        victims: Victims | None = super().evict(n, protected)
        evicted = [key for key, _ in victims or ()]
        lost = [key for key in evicted if not self.has_copy(key)]
        for key in evicted:
            self._forget(key)
        if lost and self.after_evict is not None:
            self.after_evict(lost)
        return victims

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        super().insert(key, chunk)
        self._note_used(key)
        if key not in self._evictable:
            self._busy.add(key)
        if key in self._arrived:
            self._rank_arrived(key)

    def mark_evictable(self, key: OffloadKey) -> None:
        super().mark_evictable(key)
        self._busy.discard(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        super().mark_non_evictable(key)
        self._busy.add(key)

    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self._forget(key)
        self._busy.discard(key)

    def clear(self) -> None:
        super().clear()
        self._sole.clear()
        self._fresh.clear()
        self._busy.clear()
        self._arrived.clear()

    def key_of_chunk(self, chunk_id: int) -> OffloadKey | None:
        """The block stored in a chunk. Walks all chunks: only for the rare damaged one."""
        for key, chunk in self.chunks.items():
            if chunk.chunk_id == chunk_id:
                return key
        return None

    # --- parts ---

    def _assign_new_rank(self, key: OffloadKey) -> bool:
        """vLLM's: a use makes a block the most recent one, unless it is protected anyway."""
        if key in self._arrived:
            return False
        self._note_used(key)
        return bool(super()._assign_new_rank(key))

    def _note_used(self, key: OffloadKey) -> None:
        if key in self.chunks:
            for queue in (self._sole, self._fresh):
                queue[key] = None
                queue.move_to_end(key)

    def _forget(self, key: OffloadKey) -> None:
        self._sole.pop(key, None)
        self._fresh.pop(key, None)

    def _rank_arrived(self, key: OffloadKey) -> None:
        self._num_arrived += 1
        self._sole[key] = None
        self._rank(key, _ABOVE_ALL - self._num_arrived)

    def _rank(self, key: OffloadKey, rank: int) -> None:
        self._ranks[key] = rank
        if key in self._evictable:
            self._push_evictable(key)
