"""How long and how much may be held: a hold has a lease and a share of the pool.

What: turns a hold beyond either into a swap. Why: whatever a policy or a client believes, paused
sessions must not keep running ones out. Where: the controller, after every decision.
"""

from __future__ import annotations

from dataclasses import replace

from agentkv.config import HoldConfig
from agentkv.pause_book import PauseBook
from agentkv.policy import Action, Decision
from agentkv.resumes import action_of
from agentkv.sessions import Pause, Session


class HoldLimits:
    """Looks only; owned by the controller."""

    def __init__(self, config: HoldConfig, pauses: PauseBook, *, pool_tokens: int) -> None:
        self._config = config
        self._pauses = pauses
        self._pool_tokens = pool_tokens

    def apply(
        self, decision: Decision, session: Session, pause: Pause, *, now_s: float, pressure: float
    ) -> Decision:
        """The decision, or a swap in its place."""
        if decision.action is not Action.HOLD:
            return decision
        lease_s = self._config.lease_s
        if action_of(pause) is Action.HOLD and now_s - pause.started_s >= lease_s:
            return _swap(decision, f"held for the whole lease of {lease_s:g} s")
        share = self._config.pool_fraction
        held_tokens = pause.context_tokens
        held_tokens += self._pauses.held_tokens(besides=session)
        if pressure > 0 and held_tokens > share * self._pool_tokens:
            return _swap(decision, f"holds would exceed {share:.0%} of the pool")
        return decision


def _swap(decision: Decision, reason: str) -> Decision:
    return replace(decision, action=Action.SWAP, reason=reason)
