"""How long resumed turns take to their first token, by where their KV was.

vLLM's own time to first token knows no source, and is taken in the API process. This is the same
span, from the request's arrival in the API process, but it ends with the step that made the token:
what the token needs from there to the client (below a millisecond) is not in it.
"""

from __future__ import annotations

from vllm.v1.request import Request

from agentkv import metrics
from agentkv.appraisal import Deps


class FirstTokens:
    """Owned by the scheduler thread; its length is the number of turns it waits for."""

    def __init__(self, deps: Deps) -> None:
        self._recorder, self._clock = deps.recorder, deps.clock
        self._awaited: dict[str, tuple[Request, str]] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    def expect(self, request: Request, source: str | None) -> None:
        """A turn got its blocks; most of its KV came from `source`; None: it resumes nothing."""
        if source is not None:
            self._awaited[request.request_id] = (request, source)

    def after_step(self) -> None:
        """A step was processed; most give no turn its first token."""
        for request, _ in list(self._awaited.values()):
            if request.num_output_tokens:
                self.settle(request)

    def settle(self, request: Request) -> None:
        """Its first token is there, or it ended, perhaps with that."""
        _, source = self._awaited.pop(request.request_id, (None, None))
        if source is not None and request.num_output_tokens:
            took_s = max(0.0, self._clock.wall_s() - request.arrival_time)
            self._recorder.sample(metrics.RESUME_TTFT, source, value=took_s)
