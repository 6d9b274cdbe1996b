"""Which pauses are open, and how their blocks stand: kept in the pool, or given up.

    opened ──► kept ──given up──► away ──back──► kept
                 └───── the next turn arrives, or the session ends ─────► gone

Kept by `controller`. A pause that closed otherwise (its session ended) leaves a stale entry behind,
which is dropped when it is met.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator

from agentkv.sessions import Pause, Session, SessionKey

OpenPause = tuple[Session, Pause]

# DRAM has room for all if it evicted no live session's KV for so long.
_DRAM_CALM_S = 10.0


class PauseBook:
    """Owned by the controller."""

    def __init__(self) -> None:
        self._robbed_at_s = -math.inf  # When DRAM last evicted KV of a live session.
        self._kept: dict[SessionKey, Session] = {}
        self._away: dict[SessionKey, Session] = {}
        self._done: dict[SessionKey, Session] = {}
        # Given-up sessions of which DRAM evicted something since they were last looked at.
        self._robbed: dict[SessionKey, Session] = {}
        # In the order in which the leases of holds end.
        self._leases: deque[OpenPause] = deque()

    def open(self, session: Session, pause: Pause) -> None:
        self._kept[session.key] = session
        self._leases.append((session, pause))

    def close(self, session: Session) -> None:
        """The next turn is here."""
        self._kept.pop(session.key, None)
        self._away.pop(session.key, None)

    def give_up(self, session: Session, pause: Pause) -> None:
        pause.is_given_up, pause.is_fetched = True, False
        self._kept.pop(session.key, None)
        self._away[session.key] = session

    def take_back(self, session: Session) -> None:
        """The blocks of a given-up pause are in the pool again."""
        self._away.pop(session.key, None)
        if session.pause is not None:
            session.pause.is_given_up = False
            self._kept[session.key] = session

    def rob(self, session: Session, now_s: float) -> None:
        """DRAM evicted something of it; it is worse off only if the pool has given it up, too."""
        self._robbed_at_s = now_s
        if session.pause is not None and session.pause.is_given_up:
            self._robbed[session.key] = session

    def is_dram_short(self, now_s: float) -> bool:
        """Whether a copy in DRAM pushes one out that somebody counts on: it did lately."""
        return now_s - self._robbed_at_s < _DRAM_CALM_S

    def kept(self) -> list[OpenPause]:
        """Open pauses whose blocks were not given up."""
        return _open_pauses(self._kept)

    def away(self) -> list[OpenPause]:
        """Open pauses whose blocks were given up."""
        return _open_pauses(self._away)

    @property
    def num_away(self) -> int:
        """Pauses whose blocks were given up, some that have closed since among them."""
        return len(self._away)

    def next_away(self, most: int) -> list[OpenPause]:
        """Some of the pauses whose blocks were given up; with every call the next ones."""
        keys = list(itertools.islice(self._away, most))
        for key in keys:
            self._away[key] = self._away.pop(key)
        return _open_pauses({key: self._away[key] for key in keys})

    def note_done(self, session: Session) -> None:
        """The client said that what the session was paused for is done."""
        self._done[session.key] = session

    def done(self) -> list[OpenPause]:
        """Open pauses of which the client said so."""
        for key, session in list(self._done.items()):
            if session.pause is None or session.pause.tool_done_s is None:
                del self._done[key]
        return _open_pauses(self._done)

    def take_robbed(self) -> list[OpenPause]:
        """Given-up pauses of which DRAM evicted something since the last call."""
        robbed, self._robbed = self._robbed, {}
        return _open_pauses(robbed)

    def take_expired(self, started_before_s: float) -> Iterator[OpenPause]:
        """Pauses that began up to then and are still open; each once."""
        while self._leases and self._leases[0][1].started_s <= started_before_s:
            session, pause = self._leases.popleft()
            if session.pause is pause:
                yield session, pause

    def drop_stale(self) -> None:
        """Forgets what closed by other ways; else ended sessions would be kept alive here."""
        for sessions in (self._kept, self._away, self._done):
            for key in [key for key, session in sessions.items() if session.pause is None]:
                del sessions[key]

    def clear(self) -> None:
        self._kept.clear()
        self._away.clear()
        self._done.clear()
        self._robbed.clear()
        self._leases.clear()


def _open_pauses(sessions: dict[SessionKey, Session]) -> list[OpenPause]:
    """The pauses among `sessions`; those without one are dropped from it."""
    pairs: list[OpenPause] = []
    for key, session in list(sessions.items()):
        if session.pause is None:
            del sessions[key]
        else:
            pairs.append((session, session.pause))
    return pairs
