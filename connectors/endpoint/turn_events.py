"""The event that a reply amounts to. Pure.

What: calls make a pause for a tool, an end without one a pause for a human, a last turn an end; a
reply that was cut off says nothing. Why: this is detection without any change to the agent. Where:
from what `agentkv.watch` saw of a reply and a request, to what the engine is told.
"""

from __future__ import annotations

from typing import Any

from agentkv.signals import Event
from agentkv.watch.calls import tool_calls
from agentkv.watch.turn_end import TurnEnd

from .request_facts import RequestFacts

_HINTS = ("tool", "command", "expected_wait_s", "timeout_s")


def event_of(end: TurnEnd, facts: RequestFacts) -> Event | None:
    """What to tell the engine, None if there is nothing to tell.

    Raises ValueError if the reply's id or a hint is not fit for an event.
    """
    if end.stop == "cut" or (end.request_id is None and facts.session_id is None):
        return None
    name: dict[str, Any] = {"request_id": end.request_id}
    if end.request_id is None:
        name = {"session_id": facts.session_id}
    if facts.is_last:
        return Event(event="end", **name)
    calls = tool_calls(end)
    # What the model called is known better than what the client expected it to call.
    keys = ("expected_wait_s", "timeout_s") if calls else _HINTS
    hints = {key: value for key in keys if (value := getattr(facts.hints, key)) is not None}
    if end.stop == "tool":
        return Event(event="pause", waits_for="tool", calls=calls, **name, **hints)
    if facts.offers_tools:
        return Event(event="pause", waits_for="human", **name, **hints)
    # The agent may find its calls in the text itself; the engine knows of the pause anyway.
    return Event(event="pause", **name, **hints) if hints else None
