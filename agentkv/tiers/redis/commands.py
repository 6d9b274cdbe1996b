"""Commands to a server, each with the place for its reply.

What: `Command` is one of Redis's own; `StorePart` and `LoadPart` move a part of an entry between
the server and the caller's memory. Why objects: a call sends many before the first is answered, to
several servers, and some twice; each keeps what became of it.
Where: `redis` makes them, `link` sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentkv.tiers.redis.replies import STOPS_WRITES, ErrorReply, LinkLost, Mark, Reply
from agentkv.tiers.redis.values import HEADER_BYTES, Part, make_header, written_as

Argument = bytes | str | int


class ReplyReader(Protocol):
    """Reads the replies of one connection in order. Its calls block and raise `LinkLost`."""

    def read(self) -> Reply:
        """The next reply."""

    def read_value(self, header: memoryview, data: memoryview) -> Reply:
        """The next reply; a value of just this length goes into this memory."""


class Refusal:
    """Shared by the commands of one call: set once the server takes no more values."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


_NEVER = Refusal()


class Command:
    """A command for the server that holds `key`; for any server if it is None.

    `weight_bytes` is what it and its reply take on the way. It is not sent once `refusal` is set.
    """

    __slots__ = ("_args", "key", "refusal", "reply", "weight_bytes")

    def __init__(self, *args: Argument, key: bytes | None = None) -> None:
        self.key = key
        self.weight_bytes = 64
        self.refusal = _NEVER
        self.reply: Reply = Mark.UNANSWERED
        self._args = args

    def buffers(self) -> Sequence[bytes | memoryview]:
        """What is to be sent."""
        return (encode(self._args),)

    def receive(self, reader: ReplyReader) -> None:
        """Takes its reply."""
        self.reply = reader.read()


class RenewPart(Command):
    """Lets a part live its full time from now on; answered with 1 if it is there."""

    __slots__ = ("_layout",)

    def __init__(self, part_key: bytes, layout: Layout) -> None:
        super().__init__(key=part_key)
        self._layout = layout

    def buffers(self) -> Sequence[bytes | memoryview]:
        key = self.key or b""
        return (b"*3\r\n$7\r\nPEXPIRE\r\n$%d\r\n%s%s" % (len(key), key, self._layout.ttl_end),)


class PartCommand(Command):
    """Moves one part of an entry."""

    __slots__ = ("_data", "_layout", "_part", "_part_key")

    def __init__(self, part_key: bytes, part: Part, layout: Layout, data: memoryview) -> None:
        self.key: bytes = part_key
        self.weight_bytes = HEADER_BYTES + part.stop - part.start
        self.refusal = _NEVER
        self.reply = Mark.UNANSWERED
        self._part = part
        self._layout = layout
        self._data = data if layout.num_parts == 1 else data[part.start : part.stop]


class StorePart(PartCommand):
    """Writes a part of an entry; sets `refusal` if the server takes no values."""

    __slots__ = ("write",)

    def __init__(
        self, part_key: bytes, part: Part, layout: Layout, data: memoryview, write: int, no: Refusal
    ) -> None:
        super().__init__(part_key, part, layout, data)
        self.write = write
        self.refusal = no

    def buffers(self) -> Sequence[bytes | memoryview]:
        layout, key, data = self._layout, self.key, self._data
        header = make_header(key, self._part, layout.num_parts, layout.num_bytes, self.write, data)
        start = b"*5\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s" % (
            len(key),
            key,
            HEADER_BYTES + len(data),
            header,
        )
        return (start, data, layout.set_end)

    def receive(self, reader: ReplyReader) -> None:
        self.reply = reader.read()
        if isinstance(self.reply, ErrorReply) and self.reply.code in STOPS_WRITES:
            self.refusal.is_set = True


class LoadPart(PartCommand):
    """Reads a part of an entry into the entry's memory and verifies it."""

    __slots__ = ("write",)

    def __init__(self, part_key: bytes, part: Part, layout: Layout, data: memoryview) -> None:
        super().__init__(part_key, part, layout, data)
        self.write: int | None = None  # which write it comes from, once verified

    def buffers(self) -> Sequence[bytes | memoryview]:
        return (b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(self.key), self.key),)

    def receive(self, reader: ReplyReader) -> None:
        header = bytearray(HEADER_BYTES)
        try:
            self.reply = reader.read_value(memoryview(header), self._data)
        except LinkLost as error:
            if error.trouble.reason == "oversized":  # Dropped, or it would break each connection.
                self.reply = Mark.WRONG_LENGTH
            raise
        if self.reply is Mark.FILLED:
            layout = self._layout
            self.write = written_as(
                self.key, self._part, layout.num_parts, layout.num_bytes, header, self._data
            )


class Layout:
    """What all entries of a store have in common."""

    def __init__(self, num_bytes: int, num_parts: int, ttl_ms: int) -> None:
        self.num_bytes = num_bytes
        self.num_parts = num_parts
        self.ttl_end = b"\r\n$%d\r\n%d\r\n" % (len(str(ttl_ms)), ttl_ms)
        self.set_end = b"\r\n$2\r\nPX" + self.ttl_end


def encode(args: Sequence[Argument]) -> bytes:
    """A command as the protocol has it."""
    pieces = [b"*%d\r\n" % len(args)]
    for arg in args:
        raw = arg if isinstance(arg, bytes) else str(arg).encode()
        pieces.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(pieces)
