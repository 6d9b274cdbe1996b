"""How the engine divides a context into KV blocks, hash blocks and DRAM chunks, group by group.

Sessions count in hash blocks; the pool and the DRAM tier hold blocks and chunks of each KV cache
group. Everything that converts between them asks here.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import OffloadKey, make_offload_key

from agentkv.sessions import BlockRef


class Group(NamedTuple):
    """One KV cache group, measured in hash blocks.

    `window` bounds the blocks a later turn reads before the end of its hit (sliding window, chunked
    or recurrent layers); None: all of them. `per_chunk` is the unit of the DRAM tier.
    """

    group_id: int
    per_block: int
    per_chunk: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    groups: tuple[Group, ...]
    tokens_per_hash: int

    def blocks(self, num_tokens: int) -> int:
        """KV blocks that so many new tokens take, over all groups."""
        num_hashes = -(-num_tokens // self.tokens_per_hash)
        return sum(
            -(-min(num_hashes, group.window or num_hashes) // group.per_block)
            for group in self.groups
        )

    def blocks_of_all(self, contexts: npt.NDArray[np.int64]) -> int:
        """KV blocks of all these contexts, given in tokens."""
        num_hashes = -(-contexts // self.tokens_per_hash)
        return sum(
            int((-(-np.minimum(num_hashes, group.window or num_hashes) // group.per_block)).sum())
            for group in self.groups
        )

    def tokens_in(self, num_blocks: int, max_tokens: int) -> int:
        """The longest run of new tokens, up to `max_tokens`, that takes no more blocks."""
        num_hashes = -(-max_tokens // self.tokens_per_hash)
        fitting = bisect.bisect_right(
            range(1, num_hashes + 1),
            num_blocks,
            key=lambda n: self.blocks(n * self.tokens_per_hash),
        )
        return min(max_tokens, fitting * self.tokens_per_hash)

    def windowed_blocks(self, num_tokens: int) -> int:
        """Blocks that so many tokens push out of the windows, at most."""
        num_hashes = -(-num_tokens // self.tokens_per_hash)
        return sum(
            -(-num_hashes // group.per_block) for group in self.groups if group.window is not None
        )

    def pool_hash_blocks(self, pool_blocks: int) -> int:
        """The longest context a pool could hold: windows stop growing, full attention does not."""
        full = [group for group in self.groups if group.window is None] or list(self.groups)
        return pool_blocks * min(group.per_block for group in full) // len(full)

    def keys(self, refs: Iterable[BlockRef]) -> list[OffloadKey]:
        """The DRAM tier's keys of these blocks."""
        return [
            make_offload_key(block_hash, group.group_id)
            for depth, block_hash in refs
            for group in self.groups
            if depth % group.per_chunk == 0
        ]
