"""Predictors for comparison: one that knows only how long a wait has lasted, one that is told.

What: `AgeOnly` hides tool, command, session and stated figures from a real predictor; `Told` is
given every true wait before the pause begins. Why: the first shows what prediction earns beyond the
age curve, the second what a perfect one could. Where: `<policy>_nopredict` and `oracle`.
"""

from __future__ import annotations

from collections.abc import Hashable

from agentkv.predict import WaitEstimate, WaitPredictor
from agentkv.predict.curve import SOON_S, WaitCurve

_JUST = 1 - 1e-9


class AgeOnly:
    """A `WaitPredictor`: the same distribution for every wait, given its age."""

    def __init__(self, inner: WaitPredictor) -> None:
        self._inner = inner

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
        return self._inner.estimate(None, None, age_s=age_s)

    def observe(
        self,
        tool: str | None,
        command: str | None,
        wait_s: float,
        *,
        session: Hashable | None = None,
        is_censored: bool = False,
    ) -> None:
        self._inner.observe(None, None, wait_s, is_censored=is_censored)

    def forget(self, session: Hashable) -> None:
        """See `WaitPredictor`; there is nothing of a session."""


class Told:
    """A `WaitPredictor` that knows each session's next wait."""

    def __init__(self) -> None:
        self.waits_s: dict[Hashable, float] = {}

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
        rest_s = max(SOON_S, self.waits_s.get(session, 0.0) - age_s)
        curve = WaitCurve((rest_s * _JUST, rest_s), (0.0, 1.0))
        return WaitEstimate(rest_s, rest_s, rest_s, "told", 1, points=curve)

    def observe(
        self,
        tool: str | None,
        command: str | None,
        wait_s: float,
        *,
        session: Hashable | None = None,
        is_censored: bool = False,
    ) -> None:
        """See `WaitPredictor`; nothing to learn."""

    def forget(self, session: Hashable) -> None:
        self.waits_s.pop(session, None)
