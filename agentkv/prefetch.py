"""When to bring a paused session's KV back to the pool, and what came of it.

What: `choose`, a pure function from what is known of the pauses whose KV is away to those whose
time has come; `PrefetchBook`, which counts the outcomes.
Why early: residency of free blocks costs nothing, a late prefetch forfeits all it could bring. So
idle room is filled at once; only who takes room from others waits for its time.
Where: the connector's prefetcher asks after steps, and does the copying.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from agentkv import metrics
from agentkv.metrics import Recorder
from agentkv.sessions import Pause, Session, SessionKey, Turn


class Trigger(str, Enum):
    """Why a prefetch starts, in the order in which they go first."""

    RESUME = "resume"  # the client said that the tool is done
    PREDICTED = "predicted"  # the return may come before the load would be done
    HEADROOM = "headroom"  # there is room that nobody needs


@dataclass(frozen=True, slots=True)
class AwayPause:
    """A pause whose KV is not in the pool. Seconds count from now: until the load should begin
    (`prefetch_start_s`, for the wait that is exceeded with 90 %), until the return (median).
    `was_brought`: once already, and given up again.
    """

    session: Session
    num_blocks: int
    start_in_s: float
    returns_in_s: float
    is_tool_done: bool
    was_brought: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    session: Session
    trigger: Trigger


def choose(
    pauses: Iterable[AwayPause], *, room_blocks: int, is_dram_short: bool = False
) -> list[Wanted]:
    """Whose KV to bring back now, first things first.

    `room_blocks`: empty or worthless blocks beyond the reserve. A pause that was brought back and
    given up again waits for its tool to be done: else two sessions could push each other out.
    With `is_dram_short` a prediction brings none back: DRAM might not keep what it displaces.
    """
    timed: list[tuple[tuple[int, float], Wanted]] = []
    idle: list[AwayPause] = []
    for pause in pauses:
        if pause.is_tool_done:
            timed.append(((0, pause.returns_in_s), Wanted(pause.session, Trigger.RESUME)))
        elif pause.was_brought:
            continue
        elif pause.start_in_s <= 0 and not is_dram_short:
            timed.append(((1, pause.returns_in_s), Wanted(pause.session, Trigger.PREDICTED)))
        else:
            idle.append(pause)
    wanted = [each for _, each in sorted(timed, key=lambda pair: pair[0])]
    for pause in sorted(idle, key=lambda pause: pause.returns_in_s):
        if pause.num_blocks > room_blocks:
            break
        room_blocks -= pause.num_blocks
        wanted.append(Wanted(pause.session, Trigger.HEADROOM))
    return wanted


class Rests:
    """Who found no room is not tried again for a while: the search walks over other pauses.

    That the client says its tool is done ends the rest of a session.
    """

    _RESUMED_S, _OTHERS_S = 0.1, 1.0

    def __init__(self) -> None:
        self._spans_s: dict[SessionKey, tuple[float, float]] = {}

    def begin(self, wanted: Wanted, now_s: float) -> None:
        rest_s = self._RESUMED_S if wanted.trigger is Trigger.RESUME else self._OTHERS_S
        self._spans_s[wanted.session.key] = now_s, now_s + rest_s

    def hold_back(self, session: Session, pause: Pause, now_s: float) -> bool:
        """Whether it is too early to look for room for this one again."""
        began_s, until_s = self._spans_s.get(session.key, (-math.inf, -math.inf))
        is_news = pause.tool_done_s is not None and pause.tool_done_s > began_s
        return now_s < until_s and not is_news

    def clear(self) -> None:
        self._spans_s.clear()


@dataclass(slots=True)
class _Brought:
    """What was brought for one pause: its tokens from `start_tokens` on."""

    pause_id: int
    start_tokens: int
    kv_bytes: float
    done_at_s: float | None = None


class PrefetchBook:
    """What became of prefetches. Owned by the scheduler thread.

    useful: the turn found it in the pool. late: the turn came before it was there. lost: pushed out
    before the turn came. useless: the session ended, or its next prompt was another.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._brought: dict[SessionKey, _Brought] = {}

    def was_brought(self, session: Session) -> bool:
        record = self._brought.get(session.key)
        pause = session.pause
        return record is not None and pause is not None and record.pause_id == pause.pause_id

    def start(self, session: Session, trigger: Trigger, start_tokens: int, kv_bytes: float) -> None:
        """A load began. One that goes on where an earlier one of the pause ended adds to it."""
        self._recorder.count(metrics.PREFETCHES, trigger.value)
        assert session.pause is not None
        record = self._brought.get(session.key)
        if record is not None and record.pause_id == session.pause.pause_id:
            record.start_tokens = min(record.start_tokens, start_tokens)
            record.kv_bytes += kv_bytes
            record.done_at_s = None
        else:
            self._brought[session.key] = _Brought(session.pause.pause_id, start_tokens, kv_bytes)

    def finish(self, key: SessionKey, now_s: float, *, is_good: bool) -> None:
        """The load is done; a bad one brought nothing."""
        if not is_good:
            self._brought.pop(key, None)
            self._count("failed")
        elif key in self._brought:
            self._brought[key].done_at_s = now_s

    def resumed(self, turn: Turn, gpu_hit_tokens: int) -> None:
        """The next turn got its blocks; this many of its tokens were in the pool."""
        record = self._brought.pop(turn.session.key, None)
        if record is None:
            return
        if record.done_at_s is None or record.done_at_s > turn.arrived_s:
            self._count("late")
        elif gpu_hit_tokens > record.start_tokens:
            self._count("useful")
            early_s = turn.arrived_s - record.done_at_s
            self._recorder.count(metrics.PREFETCH_EARLY, by=record.kv_bytes * early_s)
        else:
            self._count("lost" if turn.known_tokens > record.start_tokens else "useless")

    def drop(self, key: SessionKey) -> None:
        """The session has ended: what was brought for it was for nothing."""
        if self._brought.pop(key, None) is not None:
            self._count("useless")

    def drop_ended(self, is_known: Callable[[SessionKey], bool]) -> None:
        """The same of all sessions that no longer are."""
        for key in [key for key in self._brought if not is_known(key)]:
            self.drop(key)

    def clear(self) -> None:
        """The engine dropped its caches: all is lost."""
        for _ in self._brought:
            self._count("lost")
        self._brought.clear()

    def _count(self, outcome: str) -> None:
        self._recorder.count(metrics.PREFETCH_OUTCOMES, outcome)
