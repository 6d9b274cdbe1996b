"""What one engine step computed and how long it took: the samples the prefill curve learns from."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from vllm.v1.core.sched.output import SchedulerOutput

# Fewer new tokens than this in one request may be decoding, with or without speculation.
_PREFILL_TOKENS = 16


@dataclass(frozen=True, slots=True)
class StepSample:
    """`pairs`: attended positions over all new tokens, new * cached + new * (new + 1) / 2."""

    new_tokens: int
    pairs: float
    seconds: float


class StepTimer:
    """Pairs each scheduled step with the moment its output was processed.

    Only prefill is counted: decoding is bound by memory bandwidth and would spoil the curve. With
    async scheduling steps overlap: a step's time then counts from the end of the one before.
    """

    def __init__(self) -> None:
        self._open: deque[tuple[float, int, float]] = deque()
        self._last_end_s = 0.0

    def scheduled(self, output: SchedulerOutput, now_s: float) -> None:
        prefills = [
            (req_id, num_tokens)
            for req_id, num_tokens in output.num_scheduled_tokens.items()
            if num_tokens >= _PREFILL_TOKENS
        ]
        new_tokens, pairs = 0, 0.0
        if prefills:
            cached = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
            others = output.scheduled_cached_reqs
            cached.update(zip(others.req_ids, others.num_computed_tokens, strict=True))
            for req_id, num_tokens in prefills:
                new_tokens += num_tokens
                pairs += num_tokens * (cached.get(req_id, 0) + (num_tokens + 1) / 2)
        self._open.append((now_s, new_tokens, pairs))

    def finished(self, now_s: float) -> StepSample | None:
        """Closes the oldest open step; None if it prefilled nothing or none is open."""
        if not self._open:
            return None
        started_s, new_tokens, pairs = self._open.popleft()
        seconds = now_s - max(started_s, self._last_end_s)
        self._last_end_s = now_s
        if new_tokens == 0 or seconds <= 0:
            return None
        return StepSample(new_tokens, pairs, seconds)
