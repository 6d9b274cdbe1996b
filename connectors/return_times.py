"""Which given-up pauses time alone brings back, in the order of their times.

    given up, or decided anew ─► waits for its time ─► due ─► the prefetcher looks at a few per step
                                                         └──► back in the pool, or closed: dropped

Why: among thousands of pauses those whose time has come are found without a walk over the others.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from agentkv.appraisal import Deps
from agentkv.cost_model import prefetch_start_s
from agentkv.pause_book import PauseBook, next_of
from agentkv.sessions import OpenPause, Pause, Session, SessionKey


class ReturnTimes:
    """Owned by the prefetcher. `was_brought`: once already, so that only its client can ask for the
    session's KV again.
    """

    def __init__(
        self, pauses: PauseBook, deps: Deps, was_brought: Callable[[Session], bool]
    ) -> None:
        self._pauses = pauses
        self._deps = deps
        self._was_brought = was_brought
        self._order = itertools.count()
        self._coming: list[tuple[float, int, Session, Pause]] = []
        self._due: dict[SessionKey, Session] = {}

    def __len__(self) -> int:
        return len(self._coming) + len(self._due)

    def due(self, now_s: float, most: int) -> list[OpenPause]:
        """Up to so many pauses whose time has come; with every call the next ones."""
        self._take_news()
        for _ in range(most):
            if not self._coming or self._coming[0][0] > now_s:
                break
            self._pop()
        found = next_of(self._due, most)
        for session, pause in found:
            if not self._is_waiting(session, pause):
                del self._due[session.key]
        return [pair for pair in found if pair[0].key in self._due]

    def next_s(self, now_s: float, most: int) -> float | None:
        """Seconds until the next one is due, beside those that are; None if none will be.

        0 if so many are due at once that it cannot tell yet.
        """
        self._take_news()
        for _ in range(most):
            if not self._coming:
                return None
            start_s, _, session, pause = self._coming[0]
            if start_s > now_s and self._is_waiting(session, pause):
                return start_s - now_s
            self._pop()
        return 0.0 if self._coming else None

    def start_s(self, pause: Pause) -> float:
        """When to begin to bring it back, so that it is there before it may be needed."""
        kv_bytes = self._deps.footprint.bytes_for(pause.context_tokens)
        load_s = self._deps.costs.reload_s(int(kv_bytes)) + pause.slow_s
        return pause.started_s + prefetch_start_s(pause.early_at_s - pause.started_s, load_s)

    def put(self, session: Session, pause: Pause) -> None:
        """The pause waits for its time from now on, or for another one."""
        self._due.pop(session.key, None)
        heapq.heappush(self._coming, (self.start_s(pause), next(self._order), session, pause))

    def drop(self, session: Session) -> None:
        """The session has ended."""
        self._due.pop(session.key, None)

    def clear(self) -> None:
        self._coming.clear()
        self._due.clear()

    def _take_news(self) -> None:
        for session, pause in self._pauses.take_timed():
            self.put(session, pause)
        if len(self._coming) > 2 * self._pauses.num_away + 64:  # Most are of closed pauses.
            self._coming = [each for each in self._coming if self._is_waiting(*each[2:])]
            heapq.heapify(self._coming)

    def _pop(self) -> None:
        _, _, session, pause = heapq.heappop(self._coming)
        if self._is_waiting(session, pause):
            self._due[session.key] = session

    def _is_waiting(self, session: Session, pause: Pause) -> bool:
        if session.pause is not pause or not pause.is_given_up or pause.tool_done_s is not None:
            return False
        return not self._was_brought(session)
