"""Room for what requests want: worthless blocks first, then what paused sessions can give.

So that the next allocation finds enough blocks at the front of the free queue and reaches no live
session's KV but that which was chosen to go. Made at every arrival, and after steps in which blocks
came or went otherwise; a few steps of decoding take no more than was counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vllm.v1.request import Request

from agentkv import metrics
from agentkv.appraisal import Deps
from agentkv.controller import Controller
from agentkv.policy import Action
from agentkv.portfolio import Victim
from agentkv.sessions import Session

from .arrived import FIRST_TOKENS, ArrivedTurns
from .exclusive import Exclusive
from .layout import Layout
from .pool_order import PoolOrder

_STEPS_AHEAD = 2


class Room:
    """Owned by the scheduler thread. `requests` are all unfinished ones, kept by the owner."""

    def __init__(
        self,
        controller: Controller,
        deps: Deps,
        arrived: ArrivedTurns,
        requests: Mapping[str, Request],
        layout: Layout,
        exclusive: Exclusive,
    ) -> None:
        self._controller = controller
        self._recorder = deps.recorder
        self._arrived = arrived
        self._requests = requests
        self._dram = exclusive.dram
        self._exclusive = exclusive
        self._layout = layout
        self._step_blocks = layout.blocks(deps.costs.max_step_tokens)
        # What was last found: blocks wanted, and whether fewer could be readied.
        self._num_wanted = 0
        self._is_short = False
        self._steps_left = 0

    def record(self, order: PoolOrder) -> None:
        """The pool's own gauges. What paused sessions share counts for each, so kept is a bound."""
        num_free = order.num_free_blocks
        table = self._controller.pauses.table
        contexts = table.rows()["context_tokens"][table.kept()]
        num_kept = min(self._layout.blocks_of_all(contexts), num_free)
        self._recorder.gauge(metrics.BLOCKS, "used", value=order.num_blocks - num_free)
        self._recorder.gauge(metrics.BLOCKS, "kept", value=num_kept)
        self._recorder.gauge(metrics.BLOCKS, "free", value=num_free - num_kept)

    def note_change(self) -> None:
        """Blocks were freed, moved, or are wanted by somebody new."""
        self._steps_left = 0

    def after_step(self, order: PoolOrder) -> None:
        """Makes room again if it may have become too little since the last time."""
        self._steps_left -= 1
        if self._steps_left < 0 or self._is_short:
            self.make(order)

    def make(self, order: PoolOrder) -> None:
        """Readies as many blocks as requests want now, as far as pauses can give them."""
        self._steps_left = FIRST_TOKENS
        wanted = min(self._wanted_blocks(), order.num_free_blocks)
        num_worthless, num_ready = order.count_front(wanted)
        self._controller.appraiser.observe_demand(
            wanted_blocks=wanted, worthless_blocks=num_worthless
        )
        self._num_wanted, self._is_short = wanted, num_ready < wanted
        if self._is_short:
            self._give_up(order, wanted - num_ready)
        self.protect(order)

    def worthless_beyond(self, order: PoolOrder, num_reserved: int, most: int) -> int:
        """Up to `most` blocks that nobody needs, beyond a reserve and what requests want."""
        num_kept_back = num_reserved + self._all_wanted()[0]
        num_worthless, _ = order.count_front(most + num_kept_back)
        return min(most, max(0, num_worthless - num_kept_back))

    def for_return(
        self, order: PoolOrder, session: Session, *, num_blocks: int, after_s: float
    ) -> int:
        """Readies blocks for the KV of a session that will be back; returns how many may be taken.

        What requests want is left alone. Sessions expected later than `after_s` make room for it.
        """
        wanted = self._all_wanted()[0]
        num_blocks = min(num_blocks, order.num_free_blocks - wanted)
        if num_blocks <= 0:
            return 0
        num_lacking = num_blocks + wanted - order.count_front(num_blocks + wanted)[1]
        if num_lacking > 0:
            victims = self._controller.portfolio.later_returns(after_s, besides=session)
            num_lacking -= self._take(order, victims, num_lacking)
        return max(0, num_blocks - max(0, num_lacking))

    def give_all_up(self, order: PoolOrder) -> int:
        """Nothing moves although somebody waits: every pause gives what it has; blocks moved."""
        return self._take(order, self._controller.victims(), order.num_blocks)

    def protect(self, order: PoolOrder) -> None:
        """Keeps what arrived turns have out of reach, if what is ready may not be enough."""
        self._arrived.renew(order, near_blocks=self._num_wanted, is_short=self._is_short)

    def _give_up(self, order: PoolOrder, num_lacking: int) -> None:
        if self._take(order, self._controller.victims(), num_lacking) >= num_lacking:
            self._is_short = False

    def _take(self, order: PoolOrder, victims: Iterable[Victim], num_lacking: int) -> int:
        """Gives up one victim after the other until there is enough; returns the blocks moved."""
        num_taken = 0
        for victim in victims:
            if victim.action is not Action.RECOMPUTE:
                self._exclusive.before_give_up(victim.session, victim.refs)
            num_moved, _ = order.give_up(victim.refs)
            self._recorder.count(metrics.GIVEN_UP_BLOCKS, victim.action.value, by=num_moved)
            if victim.action is Action.RECOMPUTE:
                self._dram.mark_worthless(self._layout.keys(victim.refs))
            num_taken += num_moved
            if num_taken >= num_lacking:
                break
        return num_taken

    def _wanted_blocks(self) -> int:
        """What requests want, as far as soon matters.

        Beyond a few steps' worth of computing and one whole load, more is not looked at: the walk
        over the free queue stays short however long the queue of requests is.
        """
        wanted, largest = self._all_wanted()
        return min(wanted, _STEPS_AHEAD * self._step_blocks + largest + len(self._requests))

    def _all_wanted(self) -> tuple[int, int]:
        """Blocks that waiting turns lack and running turns still need; the neediest one's."""
        wanted, largest = self._arrived.wanted_blocks()
        for request_id, request in self._requests.items():
            if request_id not in self._arrived:
                num_left = max(1, request.num_tokens - request.num_computed_tokens)
                wanted += self._layout.blocks(num_left)
        return wanted, largest
