"""What the waits that are over teach the predictor, and when."""

from __future__ import annotations

from agentkv.events import TurnTag
from agentkv.predict import WaitPredictor
from agentkv.sessions import SessionKey


class Lessons:
    """Waits in seconds, in the order in which they ended.

    They are kept until the predictor is asked: a turn that is back should not wait for them.
    """

    def __init__(self, predictor: WaitPredictor) -> None:
        self._predictor = predictor
        self._pending: list[tuple[SessionKey, TurnTag, float, bool]] = []

    def note(self, key: SessionKey, tag: TurnTag, wait_s: float) -> None:
        """The turn came back after so long."""
        self._pending.append((key, tag, wait_s, False))

    def note_abandoned(self, key: SessionKey, tag: TurnTag, waited_s: float) -> None:
        """Nobody came back: the wait would have been longer than this."""
        self._pending.append((key, tag, waited_s, True))

    def learn(self) -> None:
        """Tells the predictor of all waits noted: call it before asking for a prediction."""
        for key, tag, wait_s, is_censored in self._pending:
            self._predictor.observe(
                tag.tool, tag.command, wait_s, session=key, is_censored=is_censored
            )
        self._pending.clear()
