"""Which pauses are open, and how their blocks stand: kept in the pool, or given up.

    opened ──► kept ──given up──► away ──back──► kept
                 └───── the next turn arrives, or the session ends ─────► gone

Kept by `controller`, which tells it of all that happens: nobody has to walk over the pauses to see
what has become of them.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator

from agentkv.pause_table import PauseTable
from agentkv.policy import Action
from agentkv.sessions import OpenPause, Pause, Session, SessionKey

# DRAM has room for all if it evicted no live session's KV for so long.
_DRAM_CALM_S = 10.0


class PauseBook:
    """Owned by the controller."""

    def __init__(self) -> None:
        self.table = PauseTable()
        self._robbed_at_s = -math.inf  # When DRAM last evicted KV of a live session.
        self._kept: dict[SessionKey, Session] = {}
        self._away: dict[SessionKey, Session] = {}
        self._done: dict[SessionKey, Session] = {}
        # Tokens of those that are kept because they are to be held, and their sum.
        self._held: dict[SessionKey, int] = {}
        self._num_held_tokens = 0
        # Given-up sessions of which DRAM evicted something since they were last looked at.
        self._robbed: dict[SessionKey, Session] = {}
        # Given up, or decided anew since then; not yet taken by `take_timed`.
        self._timed: dict[SessionKey, Session] = {}
        # In the order in which the leases of holds end.
        self._leases: deque[OpenPause] = deque()

    def open(self, session: Session, pause: Pause) -> None:
        self.close(session)
        self._kept[session.key] = session
        self._leases.append((session, pause))

    def close(self, session: Session) -> None:
        """The next turn is here, or none will follow."""
        for sessions in (self._kept, self._away, self._done, self._robbed, self._timed):
            sessions.pop(session.key, None)
        self._count_held(session.key, 0)
        self.table.drop(session.key)

    def note(self, session: Session, pause: Pause) -> None:
        """An open pause was decided, or more is known of it: to be told of every change."""
        self.table.put(session, pause)
        if pause.is_given_up:
            self._timed[session.key] = session
        self._note_held(session, pause)

    def give_up(self, session: Session, pause: Pause) -> None:
        pause.is_given_up, pause.is_fetched = True, False
        self._kept.pop(session.key, None)
        self._away[session.key] = self._timed[session.key] = session
        self.table.move(session.key, is_kept=False)
        self._note_held(session, pause)

    def take_back(self, session: Session) -> None:
        """The blocks of a given-up pause are in the pool again."""
        self._away.pop(session.key, None)
        if session.pause is not None:
            session.pause.is_given_up = False
            self._kept[session.key] = session
            self.table.move(session.key, is_kept=True)
            self._note_held(session, session.pause)

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

    def is_kept(self, session: Session, pause: Pause) -> bool:
        """Whether this pause is one of them."""
        return session.pause is pause and self._kept.get(session.key) is session

    def held_tokens(self, besides: Session) -> int:
        """Context of the kept pauses that are to be held, of all other sessions."""
        return self._num_held_tokens - self._held.get(besides.key, 0)

    def away(self) -> list[OpenPause]:
        """Open pauses whose blocks were given up."""
        return _open_pauses(self._away)

    @property
    def num_away(self) -> int:
        """Pauses whose blocks were given up."""
        return len(self._away)

    def next_away(self, most: int) -> list[OpenPause]:
        """Some of the pauses whose blocks were given up; with every call the next ones."""
        return next_of(self._away, most)

    def take_timed(self) -> list[OpenPause]:
        """Given-up pauses that may have another time to come back than before the last call."""
        timed, self._timed = self._timed, {}
        return _open_pauses(timed)

    def note_done(self, session: Session) -> None:
        """The client said that what the session is paused for is done, or that it is not."""
        assert session.pause is not None
        if session.pause.tool_done_s is None:
            self._done.pop(session.key, None)
        else:
            self._done[session.key] = session
        self.note(session, session.pause)

    def next_done(self, most: int) -> list[OpenPause]:
        """Some of the open pauses of which the client said so; with every call the next ones."""
        return next_of(self._done, most)

    def is_robbed(self, session: Session) -> bool:
        """Whether DRAM evicted something of this given-up pause, and nobody took it yet."""
        return session.key in self._robbed

    def take_robbed(self, most: int | None = None) -> list[OpenPause]:
        """Given-up pauses of which DRAM evicted something since they were last taken; some."""
        keys = list(itertools.islice(self._robbed, most))
        return _open_pauses({key: self._robbed.pop(key) for key in keys})

    def take_expired(self, started_before_s: float) -> Iterator[OpenPause]:
        """Pauses that began up to then and are still open; each once."""
        while self._leases and self._leases[0][1].started_s <= started_before_s:
            session, pause = self._leases.popleft()
            if session.pause is pause:
                yield session, pause

    def clear(self) -> None:
        for sessions in (self._kept, self._away, self._done, self._robbed, self._timed):
            sessions.clear()
        self._leases.clear()
        self._held.clear()
        self._num_held_tokens = 0
        self.table.clear()

    def _note_held(self, session: Session, pause: Pause) -> None:
        decision = pause.decision
        is_held = decision is not None and decision.action is Action.HOLD
        is_held = is_held and not pause.is_given_up
        self._count_held(session.key, pause.context_tokens if is_held else 0)

    def _count_held(self, key: SessionKey, num_tokens: int) -> None:
        self._num_held_tokens += num_tokens - self._held.pop(key, 0)
        if num_tokens:
            self._held[key] = num_tokens


def next_of(sessions: dict[SessionKey, Session], most: int) -> list[OpenPause]:
    """The first of these with their pauses; they become the last."""
    keys = list(itertools.islice(sessions, most))
    for key in keys:
        sessions[key] = sessions.pop(key)
    return _open_pauses({key: sessions[key] for key in keys})


def _open_pauses(sessions: dict[SessionKey, Session]) -> list[OpenPause]:
    return [(each, each.pause) for each in sessions.values() if each.pause is not None]
