"""In which order waiting turns get their blocks, and what is done when none gets any.

What: turns whose KV is in the pool go before those that must load it, those before turns that
compute it again, and all of them before new programs. Why: a turn whose KV is there costs a step
and gives its blocks back soon; behind a long prefill it would lose them. Bounded: a turn that has
been overtaken `max_overtaken` times for itself and each turn that was there before it goes first.
Where: `scheduler.AgentScheduler` asks before each step. Without it the order is vLLM's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from vllm.logger import init_logger
from vllm.v1.request import Request

from .guard import never_raises
from .pool_order import PoolOrder
from .scheduler_side import SchedulerSide

logger = init_logger("vllm.agentkv")

RANK_FOR_STEPS = 32
"""A waiting turn's place is looked up anew after so many steps."""

STALLED_STEPS = 200
"""So many steps without a token, while somebody waits who is not held back, are a stall."""


class Place(IntEnum):
    FIRST = 0  # preempted, or overtaken often enough
    RESIDENT = 1
    RELOAD = 2
    RECOMPUTE = 3
    NEW = 4


@dataclass(slots=True)
class _Waiting:
    """`num_left_before`: turns that had left the queue when this one came, `most`: that may leave
    it before this one goes first."""

    num_left_before: int
    most: int
    place: Place = Place.NEW
    ranked_at_step: int = -RANK_FOR_STEPS


class TurnOrder:
    """Owned by the scheduler thread."""

    def __init__(self, side: SchedulerSide, max_overtaken: int) -> None:
        self.faults = side.faults
        self._side = side
        self._max_overtaken = max_overtaken
        self._waiting: dict[str, _Waiting] = {}
        self._num_left = 0
        self._num_steps = 0
        self._num_stalled = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @never_raises
    def arrange(self, queue: Iterable[Request]) -> list[Request] | None:
        """The waiting turns in the order in which they should get blocks; None: as it is."""
        self._num_steps += 1
        requests = list(queue)
        self._note(requests)
        order = self._side.returns.order
        if len(requests) < 2 or order is None:
            return None
        places = [self._place(request, order) for request in requests]
        if all(before <= after for before, after in itertools.pairwise(places)):
            return None
        return [requests[i] for i in sorted(range(len(requests)), key=places.__getitem__)]

    @never_raises
    def note_step(self, num_tokens: int, num_waiting: int) -> None:
        """A step was put together. Where nothing moves, all holds are dropped, once."""
        admission = self._side.gate.admission
        num_held = len(admission) if admission is not None else 0
        if num_tokens or num_waiting <= num_held:
            self._num_stalled = 0
            return
        self._num_stalled += 1
        if self._num_stalled == STALLED_STEPS:
            self._drop_holds(num_waiting, num_held)

    def _drop_holds(self, num_waiting: int, num_held: int) -> None:
        side, order = self._side, self._side.returns.order
        if order is None:
            return
        if side.gate.admission is not None:
            side.gate.admission.let_all_go()
        num_blocks = side.room.give_all_up(order)
        logger.warning(
            "agentkv: no token for %d steps while %d turns wait (%d held back), %d of %d blocks "
            "free: gave up the %d blocks of all pauses",
            STALLED_STEPS,
            num_waiting,
            num_held,
            order.num_free_blocks,
            order.num_blocks,
            num_blocks,
        )

    def _note(self, requests: list[Request]) -> None:
        """Who came and who left since the last step."""
        ids = {request.request_id for request in requests}
        for request_id in [i for i in self._waiting if i not in ids]:
            del self._waiting[request_id]
            self._num_left += 1
        for num_before, request in enumerate(requests):
            if request.request_id not in self._waiting:
                most = self._max_overtaken * (num_before + 1)
                self._waiting[request.request_id] = _Waiting(self._num_left, most)

    def _place(self, request: Request, order: PoolOrder) -> Place:
        waiting = self._waiting[request.request_id]
        if request.num_preemptions or self._num_left - waiting.num_left_before >= waiting.most:
            return Place.FIRST
        if self._num_steps - waiting.ranked_at_step >= RANK_FOR_STEPS:
            waiting.place = self._rank(request, order)
            waiting.ranked_at_step = self._num_steps
        return waiting.place

    def _rank(self, request: Request, order: PoolOrder) -> Place:
        turn = self._side.controller.sessions.turn(request.request_id)
        if turn is None or turn.known_tokens == 0:
            return Place.NEW
        depth = turn.known_tokens // self._side.layout.tokens_per_hash
        hashes = request.block_hashes[:depth]
        resident = order.cached_depth(hashes)
        if resident >= depth:
            return Place.RESIDENT
        refs = list(enumerate(hashes[resident:], start=resident + 1))
        is_lost = self._side.whereabouts.locate(refs).num_missing > 0
        return Place.RECOMPUTE if is_lost else Place.RELOAD
