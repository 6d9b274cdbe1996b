"""Turns that have arrived and wait for blocks: what they lack, the protection of what they have.

Until it gets its blocks a turn's KV goes last: in DRAM by rank (`cache_policy`), in the GPU pool by
its place at the back of the free queue (`pool_order`), the turn that arrived first rearmost. Both
cost a walk over the turn's blocks, so both wait until they matter: DRAM's until something has to be
evicted there, the pool's until what others want could reach a block that somebody needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.request import Request

from agentkv import metrics
from agentkv.metrics import Recorder
from agentkv.sessions import BlockRef

from .cache_policy import AgentKVCachePolicy
from .layout import Layout
from .pool_order import PoolOrder

FIRST_TOKENS = 8
"""So many steps a running turn decodes before room for it is looked for again."""

_ALL = 1 << 60


@dataclass(slots=True)
class _Waiting:
    """`keys`: under protection in DRAM, None until then. `num_secured`: blocks of it at the back of
    the free queue that no earlier turn shares, None while it was not put there.
    """

    request: Request
    wanted_blocks: int
    keys: list[OffloadKey] | None = None
    num_secured: int | None = None


class ArrivedTurns:
    """In order of arrival. Owned by the scheduler thread."""

    def __init__(
        self, dram: AgentKVCachePolicy, layout: Layout, recorder: Recorder, *, is_protecting: bool
    ) -> None:
        self._dram = dram
        self._layout = layout
        self._recorder = recorder
        self._is_protecting = is_protecting
        self._turns: dict[str, _Waiting] = {}
        self._is_stale = False
        self._is_urgent = False
        self._num_behind = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._turns

    def __len__(self) -> int:
        return len(self._turns)

    def wanted_blocks(self) -> tuple[int, int]:
        """What the waiting turns lack in the pool: (all together, the neediest one)."""
        wanted = [waiting.wanted_blocks for waiting in self._turns.values()]
        return sum(wanted), max(wanted, default=0)

    def add(self, request: Request, order: PoolOrder | None) -> None:
        """The turn waits from now on, newly arrived or preempted."""
        waiting = _Waiting(request, wanted_blocks=self._wanted(request, num_known=0))
        self._turns[request.request_id] = waiting
        self._is_stale = True
        if order is None:
            return
        chain = self._find(order, waiting)
        if order.has_marks(chain):
            # Given up or dead until now: at the front of the queue, first to be reused.
            self._put_last(order, [waiting], [chain])

    def remove(self, request_id: str) -> bool:
        """The turn got its blocks, or ended; False if it did not wait."""
        waiting = self._turns.pop(request_id, None)
        if waiting is None:
            return False
        if waiting.keys is not None:
            self._dram.unprotect(waiting.keys)
        return True

    def note_freed(self, num_blocks: int) -> None:
        """So many cached blocks were freed at most, behind all that is protected."""
        self._num_behind += num_blocks
        self._is_stale = True

    def rescue(self, dead: Iterable[BlockRef]) -> None:
        """These blocks were moved to the front: if a waiting turn wants some, they must go back."""
        hashes = {block_hash for _, block_hash in dead}
        self._is_urgent |= any(
            not hashes.isdisjoint(waiting.request.block_hashes) for waiting in self._turns.values()
        )

    def renew(self, order: PoolOrder, *, near_blocks: int, is_short: bool) -> None:
        """Puts all waiting turns' blocks last again if `near_blocks` could reach one of them.

        `is_short`: the front of the queue holds fewer blocks than that which nobody needs.
        """
        if not self._turns or not (self._is_urgent or (is_short and self._is_stale)):
            return
        secured = [waiting.num_secured for waiting in self._turns.values()]
        if not self._is_urgent and None not in secured:
            num_ahead = order.num_free_blocks - sum(n or 0 for n in secured) - self._num_behind
            if num_ahead >= near_blocks:
                return
        self._is_stale = self._is_urgent = False
        self._num_behind = 0
        turns = list(self._turns.values())
        self._put_last(order, turns, [self._find(order, waiting) for waiting in turns])

    def restore(self) -> None:
        """The DRAM tier was emptied and has forgotten what was protected."""
        for waiting in self._turns.values():
            waiting.keys = None

    def protect_in_dram(self) -> None:
        """DRAM is about to evict: the blocks of every waiting turn come last."""
        if not self._is_protecting:
            return
        for waiting in self._turns.values():
            if waiting.keys is None:
                waiting.keys = self._layout.keys(enumerate(waiting.request.block_hashes, start=1))
                self._dram.protect(waiting.keys)

    def _find(self, order: PoolOrder, waiting: _Waiting) -> list[BlockRef]:
        """Notes what the turn lacks in the pool; returns what it finds there, deepest first."""
        hashes = waiting.request.block_hashes
        depth = order.cached_depth(hashes)
        num_known = depth * self._layout.tokens_per_hash
        waiting.wanted_blocks = self._wanted(waiting.request, num_known=num_known)
        return [(i, hashes[i - 1]) for i in range(depth, 0, -1)]

    def _wanted(self, request: Request, *, num_known: int) -> int:
        """Blocks that the turn takes with its first tokens, until room is looked for again."""
        return self._layout.blocks(request.num_tokens + FIRST_TOKENS - num_known)

    def _put_last(
        self, order: PoolOrder, turns: Sequence[_Waiting], chains: Sequence[list[BlockRef]]
    ) -> None:
        if not self._is_protecting:
            for chain in chains:
                order.keep(chain)
            return
        for waiting, num_moved in zip(turns, order.protect(chains), strict=True):
            waiting.num_secured = num_moved
            self._recorder.count(metrics.PROTECTED_BLOCKS, by=num_moved)
