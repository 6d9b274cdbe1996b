"""Room for what requests want: worthless blocks first, then what paused sessions can give.

So that the next allocation finds enough blocks at the front of the free queue and reaches no live
session's KV but that which was chosen to go. Made at every arrival, and after steps in which blocks
came or went otherwise; a few steps of decoding take no more than was counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm.v1.request import Request

from agentkv import metrics
from agentkv.appraisal import Deps
from agentkv.controller import Controller
from agentkv.policy import Action

from .arrived import ArrivedTurns
from .cache_policy import AgentKVCachePolicy
from .layout import Layout
from .pool_order import PoolOrder

_STEPS_AHEAD = 2
_STEPS_BETWEEN = 8


class Room:
    """Owned by the scheduler thread. `requests` are all unfinished ones, kept by the owner."""

    def __init__(
        self,
        controller: Controller,
        deps: Deps,
        arrived: ArrivedTurns,
        requests: Mapping[str, Request],
        *,
        dram: AgentKVCachePolicy,
        layout: Layout,
    ) -> None:
        self._controller = controller
        self._recorder = deps.recorder
        self._arrived = arrived
        self._requests = requests
        self._dram = dram
        self._layout = layout
        self._step_blocks = layout.blocks(deps.costs.max_step_tokens)
        # What was last found: blocks wanted, and whether fewer could be readied.
        self._num_wanted = 0
        self._is_short = False
        self._steps_left = 0

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
        self._steps_left = _STEPS_BETWEEN
        wanted = min(self._wanted_blocks(), order.num_free_blocks)
        num_worthless, num_ready = order.count_front(wanted)
        self._controller.appraiser.observe_demand(
            wanted_blocks=wanted, worthless_blocks=num_worthless
        )
        self._num_wanted, self._is_short = wanted, num_ready < wanted
        if self._is_short:
            self._give_up(order, wanted - num_ready)
        self.protect(order)

    def protect(self, order: PoolOrder) -> None:
        """Keeps what arrived turns have out of reach, if what is ready may not be enough."""
        self._arrived.renew(order, near_blocks=self._num_wanted, is_short=self._is_short)

    def _give_up(self, order: PoolOrder, num_lacking: int) -> None:
        for victim in self._controller.victims():
            num_moved, _ = order.give_up(victim.refs)
            self._recorder.count(metrics.GIVEN_UP_BLOCKS, victim.action.value, by=num_moved)
            if victim.action is Action.RECOMPUTE:
                self._dram.mark_worthless(self._layout.keys(victim.refs))
            num_lacking -= num_moved
            if num_lacking <= 0:
                self._is_short = False
                return

    def _wanted_blocks(self) -> int:
        """Blocks that waiting turns lack and running turns still need, as far as soon matters.

        Beyond a few steps' worth of computing and one whole load, more is not looked at: the walk
        over the free queue stays short however long the queue of requests is.
        """
        wanted, largest = self._arrived.wanted_blocks()
        for request_id, request in self._requests.items():
            if request_id not in self._arrived:
                num_left = max(1, request.num_tokens - request.num_computed_tokens)
                wanted += self._layout.blocks(num_left)
        return min(wanted, _STEPS_AHEAD * self._step_blocks + largest + len(self._requests))
