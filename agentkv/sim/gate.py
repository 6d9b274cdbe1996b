"""Admission by program in the simulator: tells `agentkv.admission` of turns, returns whom it holds.

As `connectors.admission_gate`.
"""

from __future__ import annotations

from agentkv.admission import ProgramAdmission
from agentkv.sessions import SessionKey
from agentkv.sim.machine import Request


class Gate:
    """`admission` None: everybody may run."""

    def __init__(self, admission: ProgramAdmission | None) -> None:
        self.admission = admission
        self._waiting: dict[str, Request] = {}

    def arrived(self, request: Request) -> None:
        if self.admission is not None:
            self._waiting[request.request_id] = request
            size = request.planned.turn.prompt_tokens
            key = SessionKey("", request.run.name)
            self.admission.arrived(request.request_id, key, prompt_tokens=size)

    def review(self, *, is_idle: bool) -> tuple[list[Request], list[Request]]:
        """Turns held back from now on, and turns that no longer are."""
        if self.admission is None:
            return [], []
        changes = self.admission.review(is_idle=is_idle)
        held = [self._waiting[i] for i in changes.held]
        return held, [self._waiting[i] for i in changes.released]

    def started(self, request: Request) -> None:
        if self.admission is not None:
            del self._waiting[request.request_id]
            self.admission.started(request.request_id)

    def finished(self, request: Request) -> None:
        if self.admission is None:
            return
        turn = request.planned.turn
        size = turn.prompt_tokens + turn.output_tokens
        self.admission.finished(request.request_id, context_tokens=size)

    def recomputed(self, seconds: float) -> None:
        if self.admission is not None:
            self.admission.recomputed(seconds)
