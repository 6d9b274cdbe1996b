"""Turns that have arrived and wait for blocks: what they lack, and how what they have is kept.

As `connectors.arrived`: their KV goes last, in DRAM from the moment that something must be evicted
there, in the pool as soon as what others want could reach it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentkv.sim.machine import Machine, Request


@dataclass(slots=True)
class _Waiting:
    """`num_secured`: its blocks at the back of the free queue; None while not put there."""

    request: Request
    wanted_blocks: int
    is_protected_in_dram: bool = False
    num_secured: int | None = None


class ArrivedTurns:
    """In order of arrival."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pool = machine.pool
        self._turns: dict[str, _Waiting] = {}
        self._is_stale = False
        self._is_urgent = False
        self._num_behind = 0

    def __len__(self) -> int:
        return len(self._turns)

    def wanted_blocks(self) -> tuple[int, int]:
        """What the waiting turns lack in the pool: (all together, the neediest one)."""
        wanted = [waiting.wanted_blocks for waiting in self._turns.values()]
        return sum(wanted), max(wanted, default=0)

    def add(self, request: Request) -> None:
        waiting = _Waiting(request, request.planned.num_total)
        self._turns[request.request_id] = waiting
        self._is_stale = True
        depth = self._find(waiting)
        if depth and request.chain[depth - 1] in self._pool.front:
            waiting.num_secured = self._pool.protect(reversed(request.chain[:depth]))

    def remove(self, request: Request) -> None:
        waiting = self._turns.pop(request.request_id, None)
        if waiting is not None and waiting.is_protected_in_dram:
            self._machine.dram.unprotect(request.prompt_chain)

    def note_freed(self, num_blocks: int) -> None:
        """So many cached blocks were freed at most, behind all that is protected."""
        self._num_behind += num_blocks
        self._is_stale = True

    def rescue(self, dead: Iterable[bytes]) -> None:
        """These blocks went to the front: a waiting turn's must go back."""
        if not self._turns:
            return
        blocks = set(dead)
        self._is_urgent |= any(
            not blocks.isdisjoint(waiting.request.chain) for waiting in self._turns.values()
        )

    def renew(self, *, near_blocks: int, is_short: bool) -> None:
        """Puts all waiting turns' blocks last again if `near_blocks` could reach one of them."""
        if not self._turns or not (self._is_urgent or (is_short and self._is_stale)):
            return
        secured = [waiting.num_secured for waiting in self._turns.values()]
        if not self._is_urgent and None not in secured:
            num_secured = sum(num or 0 for num in secured)
            if self._pool.num_free - num_secured - self._num_behind >= near_blocks:
                return
        self._is_stale = self._is_urgent = False
        self._num_behind = 0
        for waiting in reversed(self._turns.values()):
            depth = self._find(waiting)
            waiting.num_secured = self._pool.protect(reversed(waiting.request.chain[:depth]))

    def protect_in_dram(self) -> None:
        """DRAM is about to evict."""
        for waiting in self._turns.values():
            if not waiting.is_protected_in_dram:
                waiting.is_protected_in_dram = True
                self._machine.dram.protect(waiting.request.prompt_chain)

    def _find(self, waiting: _Waiting) -> int:
        """Notes what the turn lacks in the pool; returns the depth of what it finds there."""
        planned = waiting.request.planned
        depth = self._pool.cached_depth(waiting.request.chain, planned.num_prompt)
        waiting.wanted_blocks = planned.num_total - depth
        return depth
