"""A time to live from the distribution of the tool's waits (Continuum, arXiv 2511.02230). A rival.

    τ* = argmax over τ of  P(wait <= τ) · Reload - τ

What: hold for τ*, then let go; Reload is what bringing the KV back takes. Why: it weighs a whole
distribution, as we do, but pays for the time held in full, whether the turn is back or not.
Where: `policy: continuum`.

Simplified: T·η, the queueing delay that the paper adds to Reload, is left out; the distribution is
that of the remaining wait, so τ* is found anew at every look; with fewer than 100 samples of a tool
it takes the overall distribution, here the predictor's own, which leans on coarser classes by
itself; without any it holds 2 s. Its pins are hard, one per program, and pressure unpins the
program that arrived last; here the pause free longest yields first.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.policy.base import Action, Decision, PauseView, give_up_if_useless
from agentkv.policy.lru import let_go, ranked_by_age
from agentkv.policy.outlook import outlook_of
from agentkv.policy.release import release_of, text_of

COLD_TTL_S = 2.0


@dataclass(frozen=True, slots=True)
class ContinuumPolicy:
    """See the module."""

    def decide(self, view: PauseView) -> Decision:
        """See `PausePolicy.decide`."""
        return give_up_if_useless(view) or ranked_by_age(view, _decide(view))


def _decide(view: PauseView) -> Decision:
    release = release_of(view)
    saved_s = release.recompute_s
    if release.can_swap:
        saved_s = min(saved_s, release.reload_s)
    is_cold = view.wait.num_observed == 0
    ttl_s = COLD_TTL_S - view.age_s if is_cold else _best_ttl_s(view, saved_s)
    if ttl_s > 0:
        reason = f"{view.wait.source}: held for {text_of(ttl_s)}"
        return Decision(Action.HOLD, reason, saved_s, review_in_s=ttl_s)
    return let_go(view, f"{view.wait.source}: no time to live is worth {text_of(saved_s)}")


def _best_ttl_s(view: PauseView, saved_s: float) -> float:
    outlook = outlook_of(view.wait)
    utilities = [
        (chance * saved_s - time_s, time_s)
        for time_s, chance in zip(outlook.times_s, outlook.chances, strict=True)
    ]
    return max(utilities)[1]
