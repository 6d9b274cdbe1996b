"""The way back of a pause: what clients say of it, and its KV in the pool before the turn.

What the connector calls for signals from the API process and for prefetches. Beside
`scheduler_side`, which hears of turns; a fault in here is counted, and the turn loads on arrival.
"""

from __future__ import annotations

from collections.abc import Collection

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.request import Request

from agentkv import metrics
from agentkv.appraisal import Deps
from agentkv.controller import Controller

from .below import Below
from .control import ControlPort
from .guard import Faults, never_raises
from .patience import LoadPatience
from .pool_order import PoolOrder
from .prefetcher import Prefetcher


class Returns:
    """Owned by the scheduler thread. `order` must be set before the first step."""

    def __init__(
        self,
        controller: Controller,
        deps: Deps,
        prefetcher: Prefetcher,
        below: Below,
        faults: Faults,
        load_timeout_s: float,
    ) -> None:
        self.faults = faults
        self.prefetcher = prefetcher
        self._below = below
        self._sessions = controller.sessions
        self.order: PoolOrder | None = None
        self.patience = LoadPatience(deps.clock, load_timeout_s)
        self._recorder = deps.recorder
        self._port = ControlPort(controller, deps, can_fetch=prefetcher.is_enabled)

    # --- signals ---

    @never_raises
    def on_control(self, request: Request) -> None:
        """A message from the API process."""
        pool: dict[str, int] = {}
        if self.order is not None:
            pool["pool_blocks"] = self.order.num_blocks
            pool["free_blocks"] = self.order.num_free_blocks
        self._port.receive(request, **pool)
        self.prefetcher.note_signal()

    @property
    def has_replies(self) -> bool:
        return self._port.has_unsent

    @never_raises
    def add_replies(self, stats: OffloadingConnectorStats) -> None:
        """What is to be said to the API process goes out with these statistics."""
        if self._port.has_unsent:  # Asking costs a walk over all pauses.
            self._port.add_to(stats, self._next_look_s())

    # --- prefetches ---

    @property
    def has_work(self) -> bool:
        """Whether a step is needed to begin a load."""
        return self.prefetcher.has_wanted

    @never_raises
    def before_meta(self) -> None:
        """A step's blocks are all given out; its metadata is about to be put together."""
        if self.order is not None:
            self.prefetcher.start(self.order)

    @never_raises
    def receive(
        self, request_ids: Collection[str], failed: Collection[str], turns: Collection[str] = ()
    ) -> None:
        """Loads are done, those of turns and ours; `failed` of ours, `turns` whose load failed."""
        for request_id in turns:
            turn = self._sessions.turn(request_id)
            if turn is not None:
                turn.is_load_failed = True
        self.prefetcher.receive(request_ids, failed)

    @never_raises
    def has_waited_enough(self, request_id: str, *, is_told_to_wait: bool) -> bool:
        """Whether a turn should compute instead of waiting on for copies that others began.

        So it should whose load has failed: vLLM holds what it reserved for that against the turn's
        own next load, for which a turn of half the pool would wait for ever.
        """
        turn = self._sessions.turn(request_id)
        if turn is not None and turn.is_load_failed:
            return True
        is_over = self.patience.is_over(request_id, is_told_to_wait=is_told_to_wait)
        if is_over:
            self.patience.forget(request_id)
            self._recorder.count(metrics.LOAD_TIMEOUTS)
        return is_over

    @never_raises
    def after_step(self, order: PoolOrder, *, num_waiting: int, is_idle: bool) -> None:
        """A step was processed, and the pool is in order."""
        self.prefetcher.consider(order, num_waiting=num_waiting)
        if is_idle:
            self._port.note_idle(self._next_look_s())

    def _next_look_s(self) -> float | None:
        """Seconds until time alone gives something to do; None if it does not."""
        looks = (self.prefetcher.next_look_s(), self._below.next_look_s())
        return min((seconds for seconds in looks if seconds is not None), default=None)
