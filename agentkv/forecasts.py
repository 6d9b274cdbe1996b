"""Whether waits end where they were forecast: the predictor's calibration, counted.

What: the 80 % interval (p10 to p90) of the forecast with which a pause began, or that was made when
more became known of it, held against the wait that it was. Why: a policy trusts these numbers; of
many waits eight in ten must lie inside. Where: the controller notes forecasts and judges them.
"""

from __future__ import annotations

from collections import OrderedDict

from agentkv import metrics
from agentkv.metrics import Recorder
from agentkv.predict import WaitEstimate

MAX_OPEN = 16_384
"""Pauses whose forecast is kept until their turn is back; the oldest is forgotten first."""


class Forecasts:
    """Owned by the scheduler thread; bounded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._intervals_s: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def note(self, pause_id: int, rest: WaitEstimate, *, age_s: float) -> None:
        """A forecast of what is left of a pause; it takes the place of an earlier one."""
        self._intervals_s[pause_id] = (age_s + rest.p10_s, age_s + rest.p90_s)
        if len(self._intervals_s) > MAX_OPEN:
            self._intervals_s.popitem(last=False)

    def judge(self, pause_id: int, wait_s: float) -> None:
        """The pause is over, after so long a wait; without a forecast nothing is counted."""
        interval_s = self._intervals_s.pop(pause_id, None)
        if interval_s is None:
            return
        early_s, late_s = interval_s
        outcome = "earlier" if wait_s < early_s else "later" if wait_s > late_s else "inside"
        self._recorder.count(metrics.FORECASTS, outcome)
