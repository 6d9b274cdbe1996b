"""Applies signals from outside to sessions: pause, resume, heartbeat, end.

What: finds the session an event names, checks tenant and order, changes the session, and says what
became of the event. Why apart from `controller`: that one hears what the engine does, this one what
clients claim; a claim may be late, doubled, out of order, foreign or wrong, and must then change
nothing. Where: driven by the connector's control port; decides by way of the controller.
"""

from __future__ import annotations

from dataclasses import replace

from agentkv.appraisal import Deps
from agentkv.controller import Controller
from agentkv.events import TurnTag
from agentkv.sessions import Pause, Session, SessionKey
from agentkv.signals import Event, EventResult, ScopedEvent, Status, ToolCall

HUMAN = "human"
"""The tool of a pause in which a person is awaited."""

_UNKNOWN = EventResult(status=Status.UNKNOWN, detail="no such session")


class EventHandler:
    """Owned by the scheduler thread. Applying an event twice is the same as applying it once."""

    def __init__(self, controller: Controller, deps: Deps, *, can_fetch: bool = True) -> None:
        self._controller = controller
        self._can_fetch = can_fetch
        self._sessions = controller.sessions
        self._deps = deps

    def apply(self, scoped: ScopedEvent) -> EventResult:
        """Changes the session that the event names; never raises for what a client sent."""
        event = scoped.event
        session = self._find(event, scoped.scope)
        if session is None:
            return _UNKNOWN
        if event.seq is not None:
            if event.seq == session.last_seq:
                return EventResult(status=Status.ACCEPTED, detail="applied before")
            if event.seq < session.last_seq:
                detail = f"seq {event.seq} is older than {session.last_seq}"
                return EventResult(status=Status.REJECTED, detail=detail)
            session.last_seq = event.seq
        self._sessions.touch(session, self._deps.clock.monotonic_s())
        if event.event == "pause":
            return self._pause(session, event)
        if event.event == "resume":
            return self._resume(session)
        if event.event == "end":
            return self._end(session)
        return EventResult(status=Status.ACCEPTED)

    def _find(self, event: Event, scope: str) -> Session | None:
        """By the reply if that is known, else by name; inferred names are nobody's to use."""
        if event.request_id is not None:
            return self._sessions.by_reply(scope, event.request_id)
        assert event.session_id is not None
        session = self._sessions.get(SessionKey(scope, event.session_id))
        return session if session is not None and not session.is_inferred else None

    def _pause(self, session: Session, event: Event) -> EventResult:
        pause = session.pause
        if pause is not None:
            pause.tool_done_s = None
            self._controller.pauses.note_done(session)
            self._controller.retag(session, self._tag(pause.tag, event))
            return EventResult(status=Status.ACCEPTED, detail=_described(pause))
        for turn in session.active.values():
            turn.tag_before = turn.tag_before or turn.tag
            turn.tag = self._tag(turn.tag, event)
        return EventResult(
            status=Status.DEFERRED, detail="a turn of the session runs: counts when it ends"
        )

    def _resume(self, session: Session) -> EventResult:
        pause = session.pause
        if pause is None:
            # What was said of a pause that is over already must not count for the next one.
            for turn in session.active.values():
                turn.tag, turn.tag_before = turn.tag_before or turn.tag, None
            return EventResult(status=Status.ACCEPTED, detail="a turn of the session is here")
        if pause.tool_done_s is None:
            pause.tool_done_s = self._deps.clock.monotonic_s()
            self._controller.pauses.note_done(session)
        fetched = "what DRAM has of its KV is fetched if there is room"
        noted = "noted; prefetching is off"
        return EventResult(status=Status.ACCEPTED, detail=fetched if self._can_fetch else noted)

    def _end(self, session: Session) -> EventResult:
        if session.pause is not None:
            self._controller.end(session)
            return EventResult(status=Status.ACCEPTED)
        for turn in session.active.values():
            turn.tag = replace(turn.tag, last_turn=True)
        return EventResult(
            status=Status.DEFERRED, detail="a turn of the session runs: ends with it"
        )

    def _tag(self, tag: TurnTag, event: Event) -> TurnTag:
        """What was said before, with what the event says put over it."""
        said = max(event.calls, key=self._expected_s) if event.calls else event
        tool, command = said.tool, said.command
        if tool is None:
            is_human = event.waits_for == "human" and tag.tool is None
            tool = HUMAN if is_human else tag.tool
            command = command or tag.command
        return replace(
            tag,
            tool=tool,
            command=command,
            expected_wait_s=_first(
                said.expected_wait_s, event.expected_wait_s, tag.expected_wait_s
            ),
            timeout_s=_first(said.timeout_s, event.timeout_s, tag.timeout_s),
        )

    def _expected_s(self, call: ToolCall) -> float:
        self._controller.lessons.learn()
        return self._deps.predictor.estimate(
            call.tool,
            call.command,
            expected_wait_s=call.expected_wait_s,
            timeout_s=call.timeout_s,
        ).p50_s


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _described(pause: Pause) -> str:
    decision = pause.decision
    return f"{decision.action}: {decision.reason}" if decision is not None else ""
