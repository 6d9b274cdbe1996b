"""The order in which vLLM's GPU pool reuses free blocks: agentkv's only lever on the GPU.

A finished turn's blocks are free but cached; the pool reuses them from the front of its free
queue. `give_up` moves blocks to the front, `protect` to the back. Nothing is ever pinned: every
block stays free for whoever needs it, so no request can starve, and `reset_prefix_cache` and sleep
keep working.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_offload.base import OffloadKey, get_offload_block_hash, get_offload_group_idx

from agentkv.sessions import BlockRef

from .layout import Group

_MAX_EMPTY = 256  # At the front of the queue, looked at when blocks are put behind them.


class _Mark(NamedTuple):
    """A block was moved to the front while it held this; `is_dead`: no session needs it."""

    block_hash: bytes
    is_dead: bool


class PoolOrder:
    """Reorders the free queue of one `BlockPool`. Used on the scheduler thread, between steps."""

    def __init__(self, pool: BlockPool, groups: Sequence[Group]) -> None:
        self._pool = pool
        self._groups = tuple(groups)
        self._marks: dict[int, _Mark] = {}

    @property
    def num_blocks(self) -> int:
        """Usable blocks of the pool (vLLM keeps one null block for itself)."""
        return int(self._pool.num_gpu_blocks) - 1

    @property
    def num_free_blocks(self) -> int:
        return int(self._pool.get_num_free_blocks())

    def discard(self, refs: Iterable[BlockRef]) -> tuple[int, list[BlockRef]]:
        """Moves free blocks that no session needs behind the empty ones, the first ref foremost.

        So that a prompt that turns back to what it had left finds it while nobody lacks blocks.
        Returns the number of blocks moved, and the refs whose blocks some request uses right now.
        """
        blocks, in_use = self._free_blocks(refs)
        if blocks:
            self._prepend([*self._first_empty(), *blocks])
        self._set_marks(blocks, is_dead=True)
        return len(blocks), in_use

    def give_up(self, refs: Iterable[BlockRef]) -> tuple[int, list[BlockRef]]:
        """Moves free blocks behind those given up before, ahead of all others.

        `refs` come in the order in which they may go, deepest first. Returns as `discard` does.
        Walks the worthless run at the front, which is short when something has to be given up.
        """
        found, in_use = self._free_blocks(refs)
        blocks = [block for block in found if not self._is_ready(block)]
        if blocks:
            self._prepend([*self._front(), *blocks])
            self._set_marks(blocks, is_dead=False)
        return len(blocks), in_use

    def keep(self, refs: Iterable[BlockRef]) -> None:
        """Takes blocks off the list of what was given up; they stay where they are."""
        for _, block in self._cached(refs):
            self._marks.pop(block.block_id, None)

    def protect(self, chains: Sequence[Sequence[BlockRef]]) -> list[int]:
        """Moves the free blocks of these hits to the very back, the first chain's rearmost.

        Each chain comes deepest first, so that its tail is reused before its head. A block of
        several chains belongs to the first; one before the window of its group is of no use to the
        hit and stays where it is. Returns the number of blocks moved for each chain.
        """
        seen: set[int] = set()
        moves: list[list[KVCacheBlock]] = []
        for refs in chains:
            moves.append([])
            end = refs[0][0] if refs else 0
            for _, block in self._cached(refs, end):
                self._marks.pop(block.block_id, None)
                if block.ref_cnt == 0 and block.block_id not in seen:
                    seen.add(block.block_id)
                    moves[-1].append(block)
        queue = self._pool.free_block_queue
        for blocks in reversed(moves):
            for block in blocks:
                queue.remove(block)
            queue.append_n(blocks)
        return [len(blocks) for blocks in moves]

    def has_marks(self, chain: Sequence[BlockRef]) -> bool:
        """Whether blocks at the end of this chain, given deepest first, lie at the front.

        Blocks are given up from the end of a chain, so the end tells.
        """
        if not self._marks:
            return False
        end = chain[: max(group.per_block for group in self._groups)]
        return any(self._mark(block) is not None for _, block in self._cached(end))

    def count_front(self, limit: int) -> tuple[int, int]:
        """Counts blocks at the front of the queue, up to `limit`: (worthless, ready).

        Worthless: empty, or no session needs them. Ready: worthless or given up.
        """
        num_worthless = num_ready = 0
        for block in itertools.islice(self._queue(), limit):
            mark = None if block.block_hash is None else self._mark(block)
            if block.block_hash is not None and mark is None:
                break
            num_ready += 1
            num_worthless += mark is None or mark.is_dead
        return num_worthless, num_ready

    def cached_depth(self, hashes: Sequence[bytes]) -> int:
        """The longest prefix of this chain that a turn would find in the pool, in hash blocks.

        Full attention needs every block, a window only those before the end of the hit. A chain
        loses its tail first, so the end is found by bisection; an odd gap would make it too long.
        """
        depth = self._full_depth(hashes)
        windowed = [group for group in self._groups if group.window is not None]
        while depth and windowed:
            gap = max(self._gap(group, hashes, depth) for group in windowed)
            if gap == 0:
                break
            depth = gap - 1
        return depth

    def holds(self, group: Group, block_hash: bytes) -> bool:
        """Whether the pool holds the group's block of this hash, used or free."""
        return self._pool.get_cached_block(block_hash, [group.group_id]) is not None

    def holds_key(self, key: OffloadKey) -> bool:
        """The same by the key of the DRAM tier; of a chunk its last block counts."""
        group_id = get_offload_group_idx(key)
        return self._pool.get_cached_block(get_offload_block_hash(key), [group_id]) is not None

    def num_users(self, key: OffloadKey) -> int | None:
        """How many requests use the pool's block; None if it has none, or has given it up."""
        group_id = get_offload_group_idx(key)
        found = self._pool.get_cached_block(get_offload_block_hash(key), [group_id])
        if found is None or (found[0].ref_cnt == 0 and self._mark(found[0]) is not None):
            return None
        return int(found[0].ref_cnt)

    def block_id(self, group: Group, block_hash: bytes) -> int:
        """The group's block of this hash; 0, vLLM's null block, if the pool has none."""
        found = self._pool.get_cached_block(block_hash, [group.group_id])
        return 0 if found is None else int(found[0].block_id)

    def clear(self) -> None:
        self._marks.clear()

    # --- parts ---

    def _full_depth(self, hashes: Sequence[bytes]) -> int:
        full = [group for group in self._groups if group.window is None]

        def is_held(depth: int) -> bool:
            ends = ((group, depth - depth % group.per_block) for group in full)
            return all(self._holds(group, end, hashes[end - 1]) for group, end in ends if end)

        return bisect.bisect_left(range(1, len(hashes) + 1), True, key=lambda d: not is_held(d))

    def _holds(self, group: Group, depth: int, block_hash: bytes) -> bool:
        """Whether the pool holds the group's block that ends here, if one does."""
        if depth % group.per_block:
            return True
        return self.holds(group, block_hash)

    def _gap(self, group: Group, hashes: Sequence[bytes], end: int) -> int:
        """The deepest block missing in the window before `end`; 0 if the window is whole."""
        assert group.window is not None
        for depth in range(end, max(0, end - group.window), -1):
            if not self._holds(group, depth, hashes[depth - 1]):
                return depth
        return 0

    def _cached(
        self, refs: Iterable[BlockRef], end: int | None = None
    ) -> Iterator[tuple[BlockRef, KVCacheBlock]]:
        """The blocks of these refs that the pool holds; with `end` only what a hit there reads."""
        seen: set[int] = set()
        for ref in refs:
            depth, block_hash = ref
            for group in self._groups:
                if depth % group.per_block:
                    continue
                if end is not None and group.window is not None and depth <= end - group.window:
                    continue
                found = self._pool.get_cached_block(block_hash, [group.group_id])
                if found is None or found[0].is_null or found[0].block_id in seen:
                    continue
                seen.add(found[0].block_id)
                yield ref, found[0]

    def _queue(self) -> Iterator[KVCacheBlock]:
        queue = self._pool.free_block_queue
        block = queue.fake_free_list_head.next_free_block
        while block is not None and block is not queue.fake_free_list_tail:
            yield block
            block = block.next_free_block

    def _mark(self, block: KVCacheBlock) -> _Mark | None:
        """What was said of the block, if it still holds what it held then."""
        mark = self._marks.get(block.block_id)
        return mark if mark is not None and mark.block_hash == block.block_hash else None

    def _is_ready(self, block: KVCacheBlock) -> bool:
        return block.block_hash is None or self._mark(block) is not None

    def _front(self) -> list[KVCacheBlock]:
        return list(itertools.takewhile(self._is_ready, self._queue()))

    def _first_empty(self) -> list[KVCacheBlock]:
        """Empty blocks at the front; more than a few need not be spared."""
        queue = itertools.islice(self._queue(), _MAX_EMPTY)
        return list(itertools.takewhile(lambda block: block.block_hash is None, queue))

    def _free_blocks(self, refs: Iterable[BlockRef]) -> tuple[list[KVCacheBlock], list[BlockRef]]:
        """Free blocks among `refs`, and the refs in use."""
        blocks: list[KVCacheBlock] = []
        in_use: list[BlockRef] = []
        for ref, block in self._cached(refs):
            if block.ref_cnt:
                in_use.append(ref)
            else:
                blocks.append(block)
        return blocks, in_use

    def _prepend(self, blocks: Sequence[KVCacheBlock]) -> None:
        queue = self._pool.free_block_queue
        for block in blocks:
            queue.remove(block)
        queue.prepend_n(list(blocks))

    def _set_marks(self, blocks: Sequence[KVCacheBlock], *, is_dead: bool) -> None:
        for block in blocks:
            self._marks[block.block_id] = _Mark(block.block_hash, is_dead)
