"""The DRAM tier and the tiers below it: which blocks they hold, and which go first.

What: vLLM's offloading with its LRU, and the ranks that `connectors.cache_policy` adds: worthless
blocks first, then those that are ready to go (the pool has them too), then the least recently used,
then those of turns that have arrived. What DRAM drops and somebody may need spills to the tiers
below, each an LRU. Where: `native` uses the LRU alone, `managed` all of it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

Queue = OrderedDict[bytes, None]


class SlowTier:
    """An SSD or a remote store: an LRU of blocks with a speed."""

    def __init__(
        self, name: str, num_blocks: int, load_bytes_per_s: float, latency_s: float
    ) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.load_bytes_per_s = load_bytes_per_s
        self.latency_s = latency_s
        self.blocks: Queue = OrderedDict()

    def put(self, blocks: Iterable[bytes]) -> list[bytes]:
        """Takes blocks, newest last; returns what it drops for them."""
        for block in blocks:
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        num_over = max(0, len(self.blocks) - self.num_blocks)
        return [self.blocks.popitem(last=False)[0] for _ in range(num_over)]

    def load_s(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.load_bytes_per_s if num_bytes else 0.0


class Dram:
    """`blocks` maps each block to the queue it is in."""

    def __init__(self, num_blocks: int, tiers: Sequence[SlowTier] = ()) -> None:
        self.num_blocks = num_blocks
        self.tiers = tuple(tiers)
        self.num_stored = 0
        self.blocks: dict[bytes, Queue] = {}
        self.lru: Queue = OrderedDict()
        self._worthless: Queue = OrderedDict()
        self._ready: Queue = OrderedDict()
        self._protected: Queue = OrderedDict()
        self._fresh: Queue = OrderedDict()  # used since `take_fresh`, newest last
        self._arrived: Counter[bytes] = Counter()
        self._pinned: Counter[bytes] = Counter()
        # Called before so many blocks are chosen for eviction, none of those that must stay, and
        # after with those lost.
        self.before_evict: Callable[[int, Collection[bytes]], None] = lambda num_blocks, kept: None
        self.after_evict: Callable[[list[bytes]], None] = lambda blocks: None

    @property
    def num_room(self) -> int:
        return self.num_blocks - len(self.blocks)

    @property
    def num_expendable(self) -> int:
        """Blocks that can be evicted without loss."""
        return len(self._worthless) + len(self._ready)

    def num_expendable_of(self, blocks: Iterable[bytes]) -> int:
        """How many of these could be evicted without loss."""
        queues = map(self.blocks.get, blocks)
        return sum(queue is self._ready or queue is self._worthless for queue in queues)

    def is_needed(self, block: bytes) -> bool:
        """Whether it is here and would be lost."""
        return self.blocks.get(block) is self.lru

    def take_fresh(self) -> Iterator[bytes]:
        """Blocks that came or were used since the last look, newest first; each is given once."""
        while self._fresh:
            block, _ = self._fresh.popitem()
            if self.blocks.get(block) is self.lru:
                yield block

    def find_below(self, block: bytes) -> SlowTier | None:
        return next((tier for tier in self.tiers if block in tier.blocks), None)

    def hit_depth(self, chain: Sequence[bytes], start: int, most: int) -> int:
        """Up to which depth the chain goes on from `start` here or below."""
        depth = start
        for block in chain[start:most]:
            if block not in self.blocks and self.find_below(block) is None:
                break
            depth += 1
        return depth

    def offer(self, chain: Sequence[bytes]) -> bool:
        """Stores what is missing of a chain; nothing, and False, if too few can be evicted for it.

        What is here of the chain stays; a block that a load reads stays, too.
        """
        blocks = self.blocks
        new = [block for block in chain if block not in blocks]
        num_lacking = len(new) - self.num_room
        if num_lacking > 0:
            kept = self._pinned.keys() | set(chain)
            if num_lacking > len(blocks) - sum(block in blocks for block in kept):
                return False
            self.evict(num_lacking, kept)
        for block in new:
            self._insert(block)
        self.num_stored += len(new)
        return True

    def store(self, chain: Sequence[bytes]) -> None:
        """Stores what is missing of a chain, as much from its root on as there can be room for."""
        blocks = self.blocks
        new = [block for block in chain if block not in blocks][: self.num_blocks]
        num_lacking = len(new) - self.num_room
        if num_lacking > 0:
            self.evict(num_lacking, self._pinned)
        for block in reversed(new[: self.num_room]):
            self._insert(block)
            self.num_stored += 1

    def pin(self, blocks: Iterable[bytes]) -> None:
        """These are being read; `unpin` must follow."""
        self._pinned.update(blocks)

    def unpin(self, blocks: Iterable[bytes]) -> None:
        for block in blocks:
            self._pinned[block] -= 1
            if not self._pinned[block]:
                del self._pinned[block]

    def promote(self, chain: Iterable[bytes]) -> None:
        """Blocks that tiers below have come up."""
        self.store([block for block in chain if block not in self.blocks])

    def touch(self, chain: Sequence[bytes]) -> None:
        """A use makes blocks the most recent ones, the root last."""
        blocks, lru, arrived = self.blocks, self.lru, self._arrived
        for block in reversed(chain):
            queue = blocks.get(block)
            if queue is lru:
                lru.move_to_end(block)
                self._note_fresh(block)
            elif queue is not None and block not in arrived:
                self._move(block, lru)
                self._note_fresh(block)

    def evict(self, num_blocks: int, kept: Collection[bytes] = ()) -> None:
        """Drops so many blocks, none of those that are to be kept."""
        self.before_evict(num_blocks, kept)
        dropped = self._take(self._worthless, num_blocks, kept)
        lost: list[bytes] = []
        for queue in (self._ready, self.lru, self._protected):
            num_left = num_blocks - len(dropped) - len(lost)
            lost += self._take(queue, num_left, kept, is_newest_first=queue is self._protected)
        for block in (*dropped, *lost):
            del self.blocks[block]
            self._fresh.pop(block, None)
        self.after_evict(self._spill(lost))

    # --- ranks ---

    def mark_worthless(self, blocks: Iterable[bytes]) -> None:
        for block in blocks:
            if block in self.blocks and block not in self._arrived:
                self._move(block, self._worthless)

    def make_ready(self, blocks: Iterable[bytes]) -> None:
        """Until they are used again, these go before all that nobody else has."""
        for block in blocks:
            queue = self.blocks.get(block)
            if queue is not None and queue is not self._worthless and block not in self._arrived:
                self._move(block, self._ready)

    def make_needed(self, blocks: Iterable[bytes]) -> None:
        for block in blocks:
            if self.blocks.get(block) is self._ready:
                self._move(block, self.lru)

    def protect(self, chain: Iterable[bytes]) -> None:
        """Blocks of a turn that has arrived, root first; `unprotect` must follow."""
        for block in chain:
            self._arrived[block] += 1
            if self._arrived[block] == 1 and block in self.blocks:
                self._move(block, self._protected)

    def unprotect(self, chain: Sequence[bytes]) -> None:
        for block in reversed(chain):
            self._arrived[block] -= 1
            if self._arrived[block] <= 0:
                del self._arrived[block]
                if block in self.blocks:
                    self._move(block, self.lru)
                    self._note_fresh(block)

    # --- parts ---

    @staticmethod
    def _take(
        queue: Queue, most: int, kept: Container[bytes], *, is_newest_first: bool = False
    ) -> list[bytes]:
        """Up to `most` blocks out of a queue, from its end; what is to be kept stays there."""
        taken: list[bytes] = []
        passed: list[bytes] = []
        while len(taken) < most and queue:
            block, _ = queue.popitem(last=is_newest_first)
            (passed if block in kept else taken).append(block)
        for block in reversed(passed):
            queue[block] = None
            queue.move_to_end(block, last=is_newest_first)
        return taken

    def _insert(self, block: bytes) -> None:
        queue = self._protected if block in self._arrived else self.lru
        queue[block] = None
        self.blocks[block] = queue
        self._note_fresh(block)

    def _note_fresh(self, block: bytes) -> None:
        self._fresh[block] = None
        self._fresh.move_to_end(block)

    def _move(self, block: bytes, queue: Queue) -> None:
        del self.blocks[block][block]
        queue[block] = None
        self.blocks[block] = queue

    def _spill(self, blocks: list[bytes]) -> list[bytes]:
        """Hands blocks down; returns those that no tier has now."""
        for tier in self.tiers:
            fresh = [block for block in blocks if block not in tier.blocks]
            blocks = tier.put(fresh)
        return blocks
