"""Admission by program in the engine: turns that are held back get no blocks, and their KV goes.

The decision is `agentkv.admission`'s. vLLM asks the connector about every waiting turn; answered
with None it skips that turn and goes on with the next one, so a turn that is held back blocks
nobody. It does not count as arrived: what only its session has goes before all that others will
use. A request that nothing else stands beside is never held back for longer than one empty step.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from agentkv.admission import ProgramAdmission
from agentkv.appraisal import Deps
from agentkv.controller import Controller

from .arrived import ArrivedTurns
from .cache_policy import AgentKVCachePolicy
from .guard import Faults, never_raises
from .layout import Layout
from .pool_order import PoolOrder
from .room import Room

# Fewer new tokens than this may be decoding, with or without speculation.
_PREFILL_TOKENS = 16


class AdmissionGate:
    """Owned by the scheduler thread. `requests` are all unfinished ones, kept by the owner."""

    def __init__(
        self,
        admission: ProgramAdmission | None,
        controller: Controller,
        deps: Deps,
        parts: tuple[Layout, Mapping[str, Request], ArrivedTurns, AgentKVCachePolicy, Room],
        faults: Faults,
    ) -> None:
        self.admission = admission
        self.faults = faults
        self.order: PoolOrder | None = None
        self._controller = controller
        self._costs = deps.costs
        self._layout, self._requests, self._arrived, self._dram, self._room = parts

    def is_held(self, request: Request) -> bool:
        """Whether the turn must wait; vLLM asks at every step."""
        return self.admission is not None and self.admission.is_held(request.request_id)

    @never_raises
    def arrived(self, request: Request) -> None:
        """A turn came, and its session is known."""
        turn = self._controller.sessions.turn(request.request_id)
        if self.admission is None or turn is None:
            return
        self.admission.arrived(
            request.request_id, turn.session.key, prompt_tokens=request.num_prompt_tokens
        )
        self.review()

    @never_raises
    def started(self, request: Request) -> None:
        """The turn got its blocks."""
        if self.admission is not None:
            self.admission.started(request.request_id)

    @never_raises
    def scheduled(self, output: SchedulerOutput) -> None:
        """A step was put together: how much of it was known before."""
        if self.admission is None:
            return
        prefills = {i: n for i, n in output.num_scheduled_tokens.items() if n >= _PREFILL_TOKENS}
        if not prefills:
            return
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        others = output.scheduled_cached_reqs
        computed.update(zip(others.req_ids, others.num_computed_tokens, strict=True))
        for request_id, num_tokens in prefills.items():
            start = computed.get(request_id, 0)
            end = min(start + num_tokens, self._known_tokens(request_id))
            if end > start:
                self.admission.recomputed(self._costs.recompute_s(end, start))

    @never_raises
    def finished(self, request: Request) -> None:
        """The turn is over."""
        if self.admission is not None:
            self.admission.finished(request.request_id, context_tokens=request.num_tokens)

    @never_raises
    def review(self) -> None:
        """Holds back and lets go; after every step and arrival."""
        if self.admission is None:
            return
        is_idle = len(self.admission) == len(self._requests)
        changes = self.admission.review(is_idle=is_idle)
        for request_id in changes.held:
            self._arrived.remove(request_id)
            self._give_up(request_id)
        for request_id in changes.released:
            self._arrived.add(self._requests[request_id], self.order)
        if changes.held or changes.released:
            self._room.note_change()

    def _known_tokens(self, request_id: str) -> int:
        """Tokens of the turn that were computed before; all of it where it was preempted."""
        request = self._requests.get(request_id)
        turn = self._controller.sessions.turn(request_id)
        if request is None or turn is None:
            return 0
        return int(request.num_tokens) if request.num_preemptions else turn.known_tokens

    def _give_up(self, request_id: str) -> None:
        turn = self._controller.sessions.turn(request_id)
        if turn is None or self.order is None:
            return
        refs = self._controller.sessions.private_blocks(turn.session)
        self.order.give_up(refs)
        self._dram.mark_worthless(self._layout.keys(refs))
