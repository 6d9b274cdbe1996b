"""Hold for a fixed time, then let go: what retention settings of other engines do. A baseline.

What: hold until the wait is `ttl_s` old. Why: the simplest rule that knows of time; TensorRT-LLM
(priority with a duration) and Continuum before its first samples (2 s) do so.
Where: `policy: fixed_ttl`.

Simplified: pauses within their time are ranked by age among each other and yield to pressure, as
every hold here does; a hard pin would not.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.policy.base import Action, Decision, PauseView, give_up_if_useless
from agentkv.policy.lru import let_go, ranked_by_age

DEFAULT_TTL_S = 2.0


@dataclass(frozen=True, slots=True)
class FixedTtlPolicy:
    """See the module; `ttl_s` in seconds."""

    ttl_s: float = DEFAULT_TTL_S

    def decide(self, view: PauseView) -> Decision:
        """See `PausePolicy.decide`."""
        return give_up_if_useless(view) or ranked_by_age(view, self._decide(view))

    def _decide(self, view: PauseView) -> Decision:
        left_s = self.ttl_s - view.age_s
        if left_s > 0:
            reason = f"held for {self.ttl_s:g} s, as every pause"
            return Decision(Action.HOLD, reason, self.ttl_s, review_in_s=left_s)
        return let_go(view, f"the wait has outlived the {self.ttl_s:g} s that every pause is held")
