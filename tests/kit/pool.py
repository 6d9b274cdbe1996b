"""A real `BlockPool` without an engine, with chains of blocks cached in it."""

from __future__ import annotations

from collections.abc import Sequence

from kit.rig import blocks, prompt
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from agentkv.connectors.layout import Group
from agentkv.connectors.pool_order import PoolOrder

FULL = Group(group_id=0, per_block=1, per_chunk=1)


class Pool:
    """A real `BlockPool` and chains of blocks cached in it."""

    def __init__(self, num_blocks: int, groups: Sequence[Group] = (FULL,)) -> None:
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(16, sha256)
        self.pool = BlockPool(num_blocks + 1, enable_caching=True, hash_block_size=16)
        self.order = PoolOrder(self.pool, groups)
        self.chains: dict[int, list[bytes]] = {}

    def request(self, seed: int, num_blocks: int, num_new_tokens: int = 0) -> Request:
        """A request with the chain `seed` of so many full blocks, and more."""
        tokens = [*prompt(seed, blocks(num_blocks)), *prompt(seed + 10_000, num_new_tokens)]
        sampling = SamplingParams(max_tokens=1)
        return Request(f"r{seed}", tokens, sampling, None, block_hasher=self.hasher)

    def cache(self, seed: int, num_blocks: int, *, group: int = 0, per_block: int = 1) -> list[int]:
        """Caches a chain as a finished request leaves it; returns its block ids, root first."""
        request = self.request(seed, num_blocks)
        self.chains[seed] = list(request.block_hashes)
        new = self.pool.get_new_blocks(num_blocks // per_block)
        self.pool.cache_full_blocks(
            request=request,
            blocks=new,
            num_cached_blocks=0,
            num_full_blocks=len(new),
            block_size=16 * per_block,
            kv_cache_group_id=group,
        )
        self.pool.free_blocks(reversed(new))
        return [block.block_id for block in new]

    def refs(self, seed: int) -> list[tuple[int, bytes]]:
        """Deepest first."""
        return list(enumerate(self.chains[seed], start=1))[::-1]

    @property
    def queue(self) -> list[int]:
        """Free block ids, the next to be reused first; checks the links both ways."""
        queue = self.pool.free_block_queue
        forward: list[int] = []
        block = queue.fake_free_list_head.next_free_block
        while block is not queue.fake_free_list_tail:
            forward.append(block.block_id)
            block = block.next_free_block
        backward: list[int] = []
        block = queue.fake_free_list_tail.prev_free_block
        while block is not queue.fake_free_list_head:
            backward.append(block.block_id)
            block = block.prev_free_block
        assert forward == backward[::-1] and len(forward) == self.pool.get_num_free_blocks()
        return forward
