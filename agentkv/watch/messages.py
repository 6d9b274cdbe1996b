"""How /v1/messages, the API of Anthropic, says that a turn has ended.

What: `stop_reason`, and the blocks of type tool_use, whose input a stream sends in pieces. Where:
a `ReplyFormat` of `replies`. A call that a length limit or a stop sequence cut is not run by
clients, so that it counts only under the stop reason tool_use.
"""

from __future__ import annotations

import json
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

_ENDED_BY_ITSELF = ("end_turn", "stop_sequence")


class MessagesFormat:
    """Blocks have an index; the id comes with message_start, the reason with message_delta."""

    markers: ClassVar[tuple[bytes, ...]] = (
        b'"tool_use"',
        b'"input_json_delta"',
        b'"message_delta"',
    )

    def __init__(self) -> None:
        self.request_id: str | None = None
        self.kept_bytes = 0
        self._index_to_call: dict[object, PartialCall] = {}
        self._stop_reason = ""

    def read_event(self, event: Json) -> None:
        """See `ReplyFormat.read_event`."""
        kind = event.get("type")
        if kind == "message_start":
            self.request_id = id_of(object_of(event.get("message")).get("id"))
        elif kind == "content_block_start":
            self._start(event.get("index"), object_of(event.get("content_block")))
        elif kind == "content_block_delta":
            call = self._index_to_call.get(event.get("index"))
            piece = text_of(object_of(event.get("delta")).get("partial_json"))
            if call is not None and piece:
                call.add(piece)
                self.kept_bytes += len(piece)
        elif kind == "message_delta":
            reason = object_of(event.get("delta")).get("stop_reason")
            self._stop_reason = text_of(reason) or self._stop_reason

    def _start(self, index: object, block: Json) -> None:
        if block.get("type") != "tool_use" or not isinstance(index, int):
            return
        call = self._index_to_call[index] = PartialCall()
        call.tool = text_of(block.get("name"))
        self.kept_bytes += CALL_OVERHEAD_BYTES + len(call.tool)

    def end(self) -> TurnEnd | None:
        """See `ReplyFormat.end`."""
        calls = tuple(call.whole() for call in self._index_to_call.values())
        return _turn_end(self.request_id, calls, self._stop_reason)

    def read_body(self, body: Json) -> TurnEnd | None:
        """See `ReplyFormat.read_body`."""
        calls = tuple(
            Call(text_of(block.get("name")), json.dumps(block.get("input")))
            for block in objects_of(body.get("content"))
            if block.get("type") == "tool_use"
        )
        return _turn_end(id_of(body.get("id")), calls, text_of(body.get("stop_reason")))


def _turn_end(request_id: str | None, calls: tuple[Call, ...], stop_reason: str) -> TurnEnd:
    if stop_reason == "tool_use" and calls:
        return TurnEnd(request_id, calls, "tool")
    if stop_reason in _ENDED_BY_ITSELF and not calls:
        return TurnEnd(request_id, (), "human")
    return TurnEnd(request_id, (), "cut")
