"""What an engine does by itself: keep everything, give up what was free longest. A baseline.

What: always hold; ranked by the age of the wait alone. Why: native prefix caching and offloading
work so, and every other policy must not do worse. Where: `policy: lru`.

Simplified: vLLM ages blocks one by one, the tail of a session first; here a session ages as one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentkv.policy.base import Action, Decision, PauseView, give_up_if_useless
from agentkv.policy.keep_value import rate_by_age
from agentkv.policy.release import release_of

_LET_GO = 1e-12


@dataclass(frozen=True, slots=True)
class LruPolicy:
    """See the module."""

    def decide(self, view: PauseView) -> Decision:
        """See `PausePolicy.decide`."""
        useless = give_up_if_useless(view)
        return useless or ranked_by_age(view, Decision(Action.HOLD, "policy lru keeps everything"))


def ranked_by_age(view: PauseView, decision: Decision) -> Decision:
    """The decision with a worth that puts the pause free longest first, whatever its size; those
    let go before all that are held.
    """
    rate = rate_by_age(view.age_s)
    if decision.action is not Action.HOLD:
        rate *= _LET_GO
    return replace(decision, keep_value=rate, keep_value_by_age=rate, fading=1.0)


def let_go(view: PauseView, reason: str) -> Decision:
    """How a baseline without a rule of its own lets go: by a copy if that brings the turn back
    sooner than computing does."""
    release = release_of(view)
    return Decision(Action.SWAP if release.is_swap_shorter else Action.RECOMPUTE, reason)
