"""A time to live by the utility of a lognormal wait (agentinfer's Progress-TTL). A rival.

    U(τ) = I·F(τ) - E[wait; wait <= τ] - τ·(1 - F(τ)),   I = (1 + 0.85)·prefill of the private part

What: hold for the τ of highest utility, or not at all if that is negative. Why: the same weighing
as `expected_cost`, with a fitted shape in place of the distribution seen. Where: `progress_ttl`.

Simplified: F goes through the predictor's 10 % and 90 % quantiles and its median is between them,
where the original fits all gaps between requests; the prefill is the measured one, not its
published curve; τ comes from a grid over 0.05..32 s; its switch for the whole engine (on above
20 s of utility, off below 5 s) is left out, as a pause sees only itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentkv.policy.base import Action, Decision, PauseView, give_up_if_useless
from agentkv.policy.lru import let_go, ranked_by_age
from agentkv.policy.release import seconds, text_of

_GAIN = 1.0 + (1.0 - 0.15)
_Z90 = 1.2815515594  # of the normal distribution
_GRID_S = tuple(0.05 * (32 / 0.05) ** (i / 20) for i in range(21))
_LEAST_S, _LEAST_SIGMA = 1e-4, 1e-3


@dataclass(frozen=True, slots=True)
class ProgressTtlPolicy:
    """See the module."""

    def decide(self, view: PauseView) -> Decision:
        """See `PausePolicy.decide`."""
        return give_up_if_useless(view) or ranked_by_age(view, _decide(view))


def utility_s(ttl_s: float, gain_s: float, mean_log: float, sigma: float) -> float:
    """U(τ) in seconds for a lognormal wait, `gain_s` being I."""
    z = (math.log(ttl_s) - mean_log) / sigma
    within = _normal(z)
    early_s = math.exp(min(mean_log + sigma**2 / 2, 700.0)) * _normal(z - sigma)
    return gain_s * within - early_s - ttl_s * (1 - within)


def _decide(view: PauseView) -> Decision:
    gain_s = _GAIN * seconds(view.recompute_s)
    low, high = (math.log(max(_LEAST_S, seconds(q))) for q in (view.wait.p10_s, view.wait.p90_s))
    mean_log, sigma = (low + high) / 2, max(_LEAST_SIGMA, (high - low) / (2 * _Z90))
    best_s = max(_GRID_S, key=lambda ttl_s: utility_s(ttl_s, gain_s, mean_log, sigma))
    if utility_s(best_s, gain_s, mean_log, sigma) > 0:
        reason = f"{view.wait.source}: held for {text_of(best_s)}"
        return Decision(Action.HOLD, reason, gain_s, review_in_s=best_s)
    return let_go(view, f"{view.wait.source}: no time to live has a use")


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
