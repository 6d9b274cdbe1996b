"""What a session's own waits told: the strongest hint on its next one.

What: `SessionMemory`, the last waits and the own levels of one session, and `SessionMemories`, a
bounded number of them. Why: the same command again takes about as long, and a session on a slow
harness stays slow. Where: `hierarchical` asks it for the past of a place.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable

from agentkv.predict.contexts import ALL, Past, Seen, View, tool_key
from agentkv.predict.histogram import MIN_WAIT_S, Mass
from agentkv.predict.levels import Key, Levels
from agentkv.predict.place import Place
from agentkv.predict.stated import StatedTrust

_MAX_LEVELS = 32
_MAX_LAST_WAITS = 256
_KEEP = 0.9  # of the own waits' weight at each new one: the last ten or so count
_SLOW_FROM_S = 1.0  # the pace is of waits that are worth predicting
_PACE_KEEP = 0.75

_LastKey = tuple[str, str, str]


class SessionMemory:
    """About 30 kB at most."""

    __slots__ = ("_last_s", "_log_paces", "levels", "num_observed", "stated")

    def __init__(self) -> None:
        self.levels = Levels(_MAX_LEVELS)
        self.num_observed = 0
        self.stated = StatedTrust()
        self._last_s: OrderedDict[_LastKey, float] = OrderedDict()
        self._log_paces: dict[str, float] = {}

    def seen(self, place: Place) -> Seen:
        """Whether the session ran this very command before."""
        if not place.signature:
            return "first_time"
        return "repeated" if _command(place) in self._last_s else "first_time"

    def past(self, place: Place) -> Past:
        """What is known of the session at this place."""
        log_pace = self._log_paces.get(place.tool)
        return Past(
            self._last_s.get(_command(place)) if place.signature else None,
            self._last_s.get(("class", place.tool, place.cls)),
            None if log_pace is None else math.exp(log_pace),
        )

    def own_views(self, place: Place, seen: Seen, finest: Key) -> tuple[View, View]:
        """The session's own levels: of the tool, and of the command's first words."""
        tool = Key("own tool", (place.tool, seen))
        head = Key("own head", (place.tool, place.cls, place.head, seen))
        return (
            View("own tool", tool, tool_key(place, seen)),
            View("own head", head, finest),
        )

    def add(self, place: Place, seen: Seen, wait: Mass, wait_s: float | None) -> None:
        """One more wait; `wait_s` is None where only its least length is known."""
        self.num_observed += 1
        for view in self.own_views(place, seen, ALL):
            self.levels.add(view.key, wait, keep=_KEEP)
        if wait_s is None:
            return
        self._remember(("class", place.tool, place.cls), wait_s)
        if place.signature:
            self._remember(_command(place), wait_s)
        if wait_s > _SLOW_FROM_S:
            log_s = math.log(wait_s)
            before = self._log_paces.get(place.tool, log_s)
            if place.tool in self._log_paces or len(self._log_paces) < _MAX_LEVELS:
                self._log_paces[place.tool] = _PACE_KEEP * before + (1 - _PACE_KEEP) * log_s

    def _remember(self, key: _LastKey, wait_s: float) -> None:
        self._last_s[key] = max(wait_s, MIN_WAIT_S)
        self._last_s.move_to_end(key)
        if len(self._last_s) > _MAX_LAST_WAITS:
            self._last_s.popitem(last=False)


class SessionMemories:
    """The sessions that observed or stated a wait last, at most `max_sessions`."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._memories: OrderedDict[Hashable, SessionMemory] = OrderedDict()

    def get(self, session: Hashable) -> SessionMemory | None:
        return self._memories.get(session)

    def touch(self, session: Hashable) -> SessionMemory:
        """The session's memory, made if there is none."""
        memory = self._memories.get(session)
        if memory is None:
            memory = self._memories[session] = SessionMemory()
            if len(self._memories) > self._max_sessions:
                self._memories.popitem(last=False)
        self._memories.move_to_end(session)
        return memory

    def forget(self, session: Hashable) -> None:
        self._memories.pop(session, None)

    def __len__(self) -> int:
        return len(self._memories)


def _command(place: Place) -> _LastKey:
    return "command", place.tool, place.signature
