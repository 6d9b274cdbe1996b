"""What the endpoint counts about itself, shown by GET /v1/agentkv/state.

Why: a fault of ours must change no reply and fail no request, so that nobody would notice it;
each is counted, and the first of a kind is logged.
Where: one object per API process, written on its event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pydantic import BaseModel, Field

logger = logging.getLogger("vllm.agentkv")


class Counters(BaseModel):
    """Counted since this API process started. With several such processes each has its own."""

    requests_watched: int = Field(0, description="Generation requests whose reply was watched.")
    sessions_named: int = Field(
        0, description="Requests that were given a session from what their client sends anyway."
    )
    hints_seen: int = Field(0, description="Requests with a hint in a known dialect.")
    hints_by_source: dict[str, int] = Field(
        default_factory=dict, description="The same, by dialect and carrier."
    )
    hints_ignored: int = Field(0, description="Keys in such hints that were not understood.")
    hints_not_followed: int = Field(
        0, description="Wishes in such hints to keep KV for a time or before other KV."
    )
    turns_tool: int = Field(0, description="Replies that ended in tool calls.")
    turns_human: int = Field(0, description="Replies that ended by themselves without one.")
    turns_cut: int = Field(0, description="Replies that were cut off, or not understood.")
    pauses_sent: int = Field(0, description="Pauses told to the engine, seen in a reply.")
    ends_sent: int = Field(0, description="Ends of sessions told to the engine, from hints.")
    events_received: int = Field(0, description="Events that came by POST /v1/agentkv/events.")
    ticks_sent: int = Field(0, description="Times the engine was told what time it is.")
    unanswered: int = Field(0, description="Messages to the engine without a reply in time.")
    problems: int = Field(0, description="Faults inside agentkv that no request noticed.")

    def saw_hints(self, sources: Iterable[str], *, ignored: int, wishes: int) -> None:
        """Count the hints of one request."""
        for number, source in enumerate(sources):
            self.hints_seen += number == 0
            self.hints_by_source[source] = self.hints_by_source.get(source, 0) + 1
        self.hints_ignored += ignored
        self.hints_not_followed += wishes

    def problem(self, where: str, error: BaseException | str) -> None:
        """Count a fault; log the first at each place, with its trace if it has one."""
        self.problems += 1
        if where in _logged:
            return
        _logged.add(where)
        trace = error if isinstance(error, BaseException) else None
        logger.warning("agentkv: %s: %s (logged once)", where, error, exc_info=trace)


_logged: set[str] = set()
