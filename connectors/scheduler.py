"""vLLM's scheduler with the waiting turns in a better order, for `--scheduler-cls`.

What: `agentkv.connectors.scheduler.AsyncAgentScheduler`, and `AgentScheduler` for engines without
async scheduling. Before each step the queue is put in the order of `turn_order`; a stall drops all
holds. Why a mixin: everything else is vLLM's own, and the connector works without it just as well.
Queues by priority are left as they are.
"""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler

from .connector import AgentKVConnector
from .probe import SCHEDULER_SYMBOLS, check_vllm
from .turn_order import TurnOrder

logger = init_logger("vllm.agentkv")


class _Ordered(Scheduler):
    """Put before one of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_vllm(SCHEDULER_SYMBOLS)
        super().__init__(*args, **kwargs)
        self.turn_order = _order_of(self.connector)
        if self.turn_order is None:
            logger.warning("agentkv: AgentScheduler without agentkv's connector does nothing")

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        order = self.turn_order
        if order is None:
            return super().schedule(*args, **kwargs)
        if isinstance(self.waiting, FCFSRequestQueue):
            arranged = order.arrange(self.waiting)
            if arranged is not None:
                self.waiting.clear()
                self.waiting.extend(arranged)
        output = super().schedule(*args, **kwargs)
        order.note_step(output.total_num_scheduled_tokens, len(self.waiting))
        return output


class AgentScheduler(_Ordered, Scheduler):
    """For engines without async scheduling."""


class AsyncAgentScheduler(_Ordered, AsyncScheduler):
    """For engines with async scheduling, vLLM's default on GPUs."""


def _order_of(connector: object) -> TurnOrder | None:
    """That of agentkv's connector, which may be a part of vLLM's MultiConnector."""
    for part in (connector, *getattr(connector, "_connectors", ())):
        if isinstance(part, AgentKVConnector) and part.scheduler_side is not None:
            return TurnOrder(part.scheduler_side, part.config.admission.max_overtaken)
    return None
