"""How /v1/chat/completions and /v1/completions say that a turn has ended.

What: `finish_reason`, and the tool calls, which a stream sends in pieces with an index. Why one
class for both: a completion is a choice without tool calls. Where: a `ReplyFormat` of `replies`.
Only choice 0 counts: an agent that asks for several goes on with one of them, we cannot know which.
"""

from __future__ import annotations

from typing import ClassVar

from agentkv.watch.formats import (
    CALL_OVERHEAD_BYTES,
    Json,
    PartialCall,
    id_of,
    object_of,
    objects_of,
    text_of,
)
from agentkv.watch.turn_end import Call, TurnEnd

_ENDED_BY_ITSELF = ("stop", "tool_calls")  # a forced call ends with "stop"


class ChatFormat:
    """`finish_reason` is null until the last chunk of a choice, which is what the markers use."""

    markers: ClassVar[tuple[bytes, ...]] = (
        b'"tool_calls"',
        b'"finish_reason":"',
        b'"finish_reason": "',
    )

    def __init__(self) -> None:
        self.request_id: str | None = None
        self.kept_bytes = 0
        self._index_to_call: dict[int, PartialCall] = {}
        self._finish_reason = ""

    def read_event(self, event: Json) -> None:
        """See `ReplyFormat.read_event`."""
        self.request_id = self.request_id or id_of(event.get("id"))
        for choice in objects_of(event.get("choices")):
            if choice.get("index", 0) != 0:
                continue
            for piece in objects_of(object_of(choice.get("delta")).get("tool_calls")):
                self._add(piece)
            self._finish_reason = text_of(choice.get("finish_reason")) or self._finish_reason

    def _add(self, piece: Json) -> None:
        index = piece.get("index")
        if not isinstance(index, int):
            return
        call = self._index_to_call.get(index)
        if call is None:
            call = self._index_to_call[index] = PartialCall()
            self.kept_bytes += CALL_OVERHEAD_BYTES
        function = object_of(piece.get("function"))
        call.tool = call.tool or text_of(function.get("name"))
        arguments = text_of(function.get("arguments"))
        call.add(arguments)
        self.kept_bytes += len(arguments)

    def end(self) -> TurnEnd | None:
        """See `ReplyFormat.end`."""
        calls = tuple(call.whole() for _, call in sorted(self._index_to_call.items()))
        return _turn_end(self.request_id, calls, self._finish_reason)

    def read_body(self, body: Json) -> TurnEnd | None:
        """See `ReplyFormat.read_body`."""
        choices = objects_of(body.get("choices"))
        choice = next((c for c in choices if c.get("index", 0) == 0), {})
        calls = [
            object_of(call.get("function"))
            for call in objects_of(object_of(choice.get("message")).get("tool_calls"))
        ]
        return _turn_end(
            id_of(body.get("id")),
            tuple(Call(text_of(c.get("name")), text_of(c.get("arguments"))) for c in calls),
            text_of(choice.get("finish_reason")),
        )


def _turn_end(request_id: str | None, calls: tuple[Call, ...], finish_reason: str) -> TurnEnd:
    if finish_reason not in _ENDED_BY_ITSELF:
        return TurnEnd(request_id, (), "cut")
    return TurnEnd(request_id, calls, "tool" if calls else "human")
