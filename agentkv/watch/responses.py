"""How /v1/responses says that a turn has ended.

What: the status of the response, and its items of type function_call and custom_tool_call. Why
only those: what a tool server runs inside the request (MCP, code interpreter, web search) is over
before the reply ends. Where: a `ReplyFormat` of `replies`. A stream repeats every finished item
whole, so that the pieces of arguments are not read at all.
"""

from __future__ import annotations

from typing import ClassVar

from agentkv.watch.formats import CALL_OVERHEAD_BYTES, Json, id_of, object_of, objects_of, text_of
from agentkv.watch.turn_end import Call, TurnEnd

_NOT_OVER = ("queued", "in_progress")  # a background response: its end is not in this reply


class ResponsesFormat:
    """vLLM ends even an incomplete stream with response.completed: the status tells."""

    markers: ClassVar[tuple[bytes, ...]] = (
        b'"response.output_item.done"',
        b'"response.completed"',
        b'"response.incomplete"',
        b'"response.failed"',
    )

    def __init__(self) -> None:
        self.request_id: str | None = None
        self.kept_bytes = 0
        self._calls: list[Call] = []
        self._status = ""

    def read_event(self, event: Json) -> None:
        """See `ReplyFormat.read_event`."""
        response = object_of(event.get("response"))
        self.request_id = self.request_id or id_of(response.get("id"))
        kind = event.get("type")
        if kind == "response.output_item.done":
            for call in _calls([object_of(event.get("item"))]):
                self._calls.append(call)
                self.kept_bytes += CALL_OVERHEAD_BYTES + len(call.tool) + len(call.arguments)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._status = text_of(response.get("status"))

    def end(self) -> TurnEnd | None:
        """See `ReplyFormat.end`."""
        return _turn_end(self.request_id, tuple(self._calls), self._status)

    def read_body(self, body: Json) -> TurnEnd | None:
        """See `ReplyFormat.read_body`."""
        status = text_of(body.get("status"))
        if status in _NOT_OVER:
            return None
        return _turn_end(id_of(body.get("id")), _calls(objects_of(body.get("output"))), status)


def _calls(items: list[Json]) -> tuple[Call, ...]:
    calls = []
    for item in items:
        name = text_of(item.get("name"))
        if item.get("type") == "function_call":
            calls.append(Call(name, text_of(item.get("arguments"))))
        elif item.get("type") == "custom_tool_call":
            calls.append(Call(name, text_of(item.get("input"))))
    return tuple(calls)


def _turn_end(request_id: str | None, calls: tuple[Call, ...], status: str) -> TurnEnd:
    if status != "completed":
        return TurnEnd(request_id, (), "cut")
    return TurnEnd(request_id, calls, "tool" if calls else "human")
