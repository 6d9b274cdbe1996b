"""Whether a session of which nothing is known comes back after its first turn.

What: the share of unnamed sessions that did, of those whose first turn told nothing about a tool.
Why: one-shot prompts look like as many new sessions, and a burst of them would flush the sessions
that return; a scan must not count like use (2Q, Johnson and Shasha 1994). It is counted: where such
sessions do come back, they are soon worth what all others are. Where: told by the controller; what
keeping their KV is worth is multiplied by it.
"""

from __future__ import annotations

from agentkv.sessions import Pause, Session

_NUM_ASSUMED, _BACK_ASSUMED = 4.0, 1.0  # before the first was seen
_MEMORY = 1000.0  # sessions; beyond it all that was seen counts half


def is_newcomer(session: Session, pause: Pause) -> bool:
    """Whether the pause could as well be the end of a one-shot prompt."""
    tells_nothing = pause.tag.tool is None and pause.tag.expected_wait_s is None
    return session.is_inferred and pause.turn == 0 and tells_nothing


class Newcomers:
    """Owned by the controller. Those whose first pause is still open count as not back."""

    def __init__(self) -> None:
        self._num = self._num_back = 0.0

    def begin(self) -> None:
        """The first pause of one has begun."""
        if self._num > _MEMORY:
            self._num, self._num_back = self._num / 2, self._num_back / 2
        self._num += 1

    def forget(self) -> None:
        """It was none: something was said of its pause."""
        self._num = max(self._num_back, self._num - 1)

    def note_back(self) -> None:
        """Its next turn is here."""
        self._num_back = min(self._num, self._num_back + 1)

    @property
    def share_back(self) -> float:
        """In (0, 1)."""
        return (self._num_back + _BACK_ASSUMED) / (self._num + _NUM_ASSUMED)
