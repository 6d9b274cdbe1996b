"""The contract of a wait predictor.

What: `WaitEstimate`, the distribution of what is left of a tool wait, and the `WaitPredictor` seam.
Why: tool waits are heavy-tailed, so one number would mislead a policy; three quantiles do not.
Where: the controller asks when a turn ends in a tool call and again as the wait ages, and tells the
predictor the true wait when the session resumes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from agentkv.predict.curve import WaitCurve, from_quantiles


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """Quantiles of the REMAINING wait in seconds: 0 <= p10_s <= p50_s <= p90_s, all finite.

    There is no mean: under a tail this heavy it says nothing. `source` names what the estimate
    rests on, in words fit for a log line; `num_observed` counts the waits seen there.
    `chance_ended`: that no turn will follow. `confidence` in 0..1: 0 where only the age of the wait
    is known, 1 where a figure was stated or much was seen. `points`: more of the distribution.
    """

    p10_s: float
    p50_s: float
    p90_s: float
    source: str
    num_observed: int
    chance_ended: float = 0.0
    confidence: float = 1.0
    points: WaitCurve | None = None

    @property
    def curve(self) -> WaitCurve:
        """The whole distribution, as far as it is known."""
        return self.points or from_quantiles(self.p10_s, self.p50_s, self.p90_s)


class WaitPredictor(Protocol):
    """Owned by the scheduler thread. No method blocks or raises, whatever clients sent.

    `session` is whose wait it is: what a session's own waits tell goes before what others' do.
    """

    def estimate(
        self,
        tool: str | None,
        command: str | None,
        *,
        age_s: float = 0.0,
        expected_wait_s: float | None = None,
        timeout_s: float | None = None,
        session: Hashable | None = None,
    ) -> WaitEstimate:
        """What is left of a wait that began `age_s` ago; changes no estimate.

        `expected_wait_s` is the client's own figure for the whole wait and wins over what was
        learned; `timeout_s` bounds the whole wait. Values that make no sense count as absent.
        """

    def observe(
        self,
        tool: str | None,
        command: str | None,
        wait_s: float,
        *,
        session: Hashable | None = None,
        is_censored: bool = False,
    ) -> None:
        """Learn from one wait; a value that makes no sense is ignored.

        `is_censored`: it took longer than `wait_s`, and nobody knows how much.
        """

    def forget(self, session: Hashable) -> None:
        """The session has ended: its own waits tell nothing more."""
