"""Policies that always do the same: baselines to measure against, and a user's override.

What: always hold, always swap, always recompute; each still drops ended sessions.
Why: `break_even` must beat each of them where it claims to, and a user may know better.
Where: chosen by name in `POLICIES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.policy.base import Action, Decision, PauseView, give_up_if_useless


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Answers `action` for every session that may come back."""

    action: Action

    def decide(self, view: PauseView) -> Decision:
        """See `PausePolicy.decide`."""
        return give_up_if_useless(view) or Decision(
            self.action, f"policy always_{self.action} says so"
        )
