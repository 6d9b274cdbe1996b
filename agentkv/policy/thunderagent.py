"""Pauses that count less by the second, shortest context first (ThunderAgent). A rival.

What: a pause is kept while its weight 2^-t, t its age in seconds, is at least the share of the
memory wanted that only live KV can provide; victims are the shortest contexts first, as a recompute
costs the square of the length. Why: a rule without any prediction, best if waits have no memory.
Where: `policy: thunderagent`.

Simplified: it pauses programs when the capacity is below the sum of the running contexts and of the
paused ones, each times 2^-t; one pause does not see the others, so that comparison of sums becomes
one of the pause's weight with the pressure. It drops KV; here a copy is kept where that is quicker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentkv.policy.base import Action, Decision, PauseView, give_up_if_useless
from agentkv.policy.lru import let_go

HALF_LIFE_S = 1.0


@dataclass(frozen=True, slots=True)
class ThunderAgentPolicy:
    """See the module."""

    def decide(self, view: PauseView) -> Decision:
        """See `PausePolicy.decide`."""
        return give_up_if_useless(view) or _decide(view)


def weight(age_s: float) -> float:
    """How much of a paused context still counts as demand."""
    return float(0.5 ** (min(max(0.0, age_s), 1e3) / HALF_LIFE_S))


def _decide(view: PauseView) -> Decision:
    share = weight(view.age_s)
    if share >= view.pressure:
        text = f"counts {share:.2g} after {view.age_s:.3g} s, the pressure is {view.pressure:.2g}"
        decision = Decision(Action.HOLD, text)
    else:
        text = f"counts only {share:.2g} after {view.age_s:.3g} s, below pressure"
        decision = let_go(view, f"{text} {view.pressure:.2g}")
    return replace(decision, keep_value=1.0 + max(0, view.context_tokens))
