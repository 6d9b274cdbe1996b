"""What a reply format must offer to be watched.

What: the seam between the watchers of `replies` and the three APIs. Why: splitting streams,
bounding memory and surviving bad input is done once, reading an API's objects once per API.
Where: `chat`, `responses` and `messages` implement it; one object per reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any, ClassVar, Protocol

from agentkv.watch.turn_end import Call, TurnEnd

CALL_OVERHEAD_BYTES = 128
"""What a call costs beside its text, so that a million empty ones are not free."""

Json = Mapping[str, Any]


class ReplyFormat(Protocol):
    """Reads one reply. May raise on bad input: the watcher then gives up."""

    markers: ClassVar[tuple[bytes, ...]]
    """After the first event only events with one of these in them are read. Each has a quotation
    mark that JSON would escape inside a text, so that what a model says does not look like one."""

    request_id: str | None
    kept_bytes: int

    def read_event(self, event: Json) -> None:
        """One event of a stream, in order."""

    def end(self) -> TurnEnd | None:
        """How the stream ended, given the events so far; None if that was not the end of a turn."""

    def read_body(self, body: Json) -> TurnEnd | None:
        """How the turn ended, from a whole reply; None if that was not the end of a turn."""


class PartialCall:
    """A call whose arguments arrive in pieces, often of one token."""

    __slots__ = ("_arguments", "tool")

    def __init__(self) -> None:
        self.tool = ""
        self._arguments = StringIO()

    def add(self, piece: str) -> None:
        """More of the arguments."""
        self._arguments.write(piece)

    def whole(self) -> Call:
        """The call as far as it has come."""
        return Call(self.tool, self._arguments.getvalue())


def text_of(value: object) -> str:
    """The value if it is a string, else nothing: replies are not trusted to keep to their types."""
    return value if isinstance(value, str) else ""


def object_of(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def id_of(value: object) -> str | None:
    return text_of(value) or None
