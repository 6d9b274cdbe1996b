"""Turns that have arrived and wait for blocks: what they lack, how what they have is protected.

Until it gets its blocks a turn's KV goes last: in DRAM by rank (`cache_policy`), in the GPU pool by
its place at the back of the free queue (`pool_order`), the turn that arrived first rearmost. Blocks
freed later land behind it, so the order is renewed, but only when the pool might soon reach what is
protected: the walk over all waiting turns' blocks is not for every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.request import Request

from agentkv import metrics
from agentkv.metrics import Recorder

from .cache_policy import AgentKVCachePolicy
from .layout import Layout
from .pool_order import PoolOrder

_ALL = 1 << 60


@dataclass(slots=True)
class _Waiting:
    """`num_secured`: its blocks at the back of the free queue that no earlier turn shares."""

    request: Request
    keys: list[OffloadKey] = field(default_factory=list)
    wanted_blocks: int = 0
    num_secured: int = 0


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
        waiting = _Waiting(request, wanted_blocks=self._layout.blocks(request.num_tokens))
        if self._is_protecting:
            waiting.keys = self._layout.keys(enumerate(request.block_hashes, start=1))
            self._dram.protect(waiting.keys)
        self._turns[request.request_id] = waiting
        self._is_stale = True
        if order is not None:
            self._secure(order, [waiting])

    def remove(self, request_id: str) -> bool:
        """The turn got its blocks, or ended; False if it did not wait."""
        waiting = self._turns.pop(request_id, None)
        if waiting is None:
            return False
        self._dram.unprotect(waiting.keys)
        return True

    def note_freed(self, num_blocks: int) -> None:
        """So many cached blocks were freed at most, behind all that is protected."""
        self._num_behind += num_blocks
        self._is_stale = True

    def mark_stale(self) -> None:
        """Blocks of a waiting turn may have been moved, so none is sure to be at the back."""
        self._is_stale = True
        self._num_behind = _ALL

    def renew(self, order: PoolOrder, *, near_blocks: int) -> None:
        """Puts all waiting turns' blocks last again if `near_blocks` could reach one of them."""
        if not self._is_stale:
            return
        num_secured = sum(waiting.num_secured for waiting in self._turns.values())
        if order.num_free_blocks - num_secured - self._num_behind >= near_blocks:
            return
        self._is_stale = False
        self._num_behind = 0
        self._secure(order, list(self._turns.values()))

    def restore(self) -> None:
        """The DRAM tier was emptied and has forgotten what was protected."""
        for waiting in self._turns.values():
            self._dram.protect(waiting.keys)

    def _secure(self, order: PoolOrder, turns: Sequence[_Waiting]) -> None:
        """Notes what the turns find in the pool; protects it, or at least does not give it up."""
        chains = []
        for waiting in turns:
            hashes = waiting.request.block_hashes
            depth = order.cached_depth(hashes)
            num_known = depth * self._layout.tokens_per_hash
            waiting.wanted_blocks = self._layout.blocks(waiting.request.num_tokens - num_known)
            chains.append([(i, hashes[i - 1]) for i in range(depth, 0, -1)])
        if not self._is_protecting:
            for chain in chains:
                order.keep(chain)
            return
        for waiting, num_moved in zip(turns, order.protect(chains), strict=True):
            waiting.num_secured = num_moved
            self._recorder.count(metrics.PROTECTED_BLOCKS, by=num_moved)
