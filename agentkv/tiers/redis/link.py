"""One connection to one server, over which commands are pipelined.

What: `Link` sends commands ahead of their replies, by `Wire` where redis-py's connection has a
socket that we can take over, else by redis-py's own reading and writing (`PlainWire`).
Why within a window: a round trip per value halves the rate, and an unbounded pipeline would pile up
replies in the server's memory.
Where: `servers` opens links and keeps them for the next call.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from redis import exceptions

from agentkv.tiers.redis.bulk import Wire
from agentkv.tiers.redis.commands import Command, ReplyReader
from agentkv.tiers.redis.replies import STOPS_ALL, ErrorReply, LinkLost, Mark, Reply, lost
from agentkv.tiers.redis.trouble import connect_trouble, error_code

_WINDOW_BYTES = 1 << 20  # Much more, and the server's reply buffers fall out of its cache.
_MIN_WINDOW = 2  # commands


class Connection(Protocol):
    """What we use of redis-py's connections, which have no types."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_packed_command(self, command: Sequence[bytes], check_health: bool = True) -> None: ...

    def read_response(self, disable_decoding: bool = False) -> Any: ...


class Transport(ReplyReader, Protocol):
    """How bytes get to the server and back. Any `LinkLost` means: drop the connection."""

    def begin(self, deadline_s: float) -> None:
        """All that follows ends by then."""

    def queue(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Sends these now or at the next flush."""

    def flush(self) -> None:
        """Sends what is queued."""


class Link:
    """Not thread-safe. After an exception its state is unknown: close it."""

    def __init__(self, connection: Connection, transport: Transport) -> None:
        self._connection = connection
        self._transport = transport
        self.was_used = False

    def exchange(self, commands: Iterable[Command], deadline_s: float) -> None:
        """Sends the commands and takes their replies, in order. Blocks until the deadline."""
        self._transport.begin(deadline_s)
        unanswered: deque[Command] = deque()
        weight_bytes = 0
        for command in commands:
            weight_bytes += command.weight_bytes
            while len(unanswered) >= _MIN_WINDOW and weight_bytes > _WINDOW_BYTES:
                self._transport.flush()
                weight_bytes -= self._receive(unanswered)
            if command.refusal.is_set:
                weight_bytes -= command.weight_bytes
                continue
            self._transport.queue(command.buffers())
            unanswered.append(command)
        self._transport.flush()
        while unanswered:
            self._receive(unanswered)

    def _receive(self, unanswered: deque[Command]) -> int:
        command = unanswered.popleft()
        command.receive(self._transport)
        return command.weight_bytes

    def close(self) -> None:
        """Does not block."""
        with contextlib.suppress(Exception):  # There is nothing left to save.
            self._connection.disconnect()


def open_link(connection: Connection, timeout_s: float, deadline_s: float) -> Link:
    """Connects, logs in and asks for a sign of life. Blocks; raises `LinkLost`."""
    try:
        connection.connect()
    except Exception as error:  # redis-py lets many kinds through; none must get further.
        raise LinkLost(connect_trouble(error), is_connect=True) from None
    sock = bulk_socket(connection)
    transport = PlainWire(connection) if sock is None else Wire(sock, timeout_s)
    link = Link(connection, transport)
    try:
        ping = Command("PING")
        link.exchange([ping], min(deadline_s, time.monotonic() + timeout_s))
        # A user who may not ping is logged in all the same.
        if isinstance(ping.reply, ErrorReply) and ping.reply.code in STOPS_ALL:
            raise LinkLost(ping.reply.trouble, is_connect=True)
    except LinkLost as error:
        link.close()
        raise LinkLost(error.trouble, is_connect=True) from None
    return link


def bulk_socket(connection: Connection) -> socket.socket | None:
    """The socket of an open connection; None if this redis-py keeps it elsewhere."""
    sock: Any = getattr(connection, "_sock", None)
    return sock if isinstance(sock, socket.socket) else None


class PlainWire:
    """The same over redis-py's own reading and writing: slower, but nothing of it is private."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unsent: list[bytes] = []
        self._deadline_s = 0.0

    def begin(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s

    def queue(self, buffers: Sequence[bytes | memoryview]) -> None:
        self._unsent += [bytes(buffer) for buffer in buffers]

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._check_deadline()
            try:
                self._connection.send_packed_command([b"".join(unsent)], check_health=False)
            except Exception as error:  # As in `open_link`.
                raise _lost(error) from None

    def read(self) -> Reply:
        self._check_deadline()
        try:
            reply: Reply = self._connection.read_response(disable_decoding=True)
        except Exception as error:  # As in `open_link`.
            if (code := error_code(error)) is not None:
                return ErrorReply(code)
            raise _lost(error) from None
        return reply

    def read_value(self, header: memoryview, data: memoryview) -> Reply:
        value = self.read()
        if not isinstance(value, bytes):
            return value
        if len(value) != len(header) + len(data):
            return Mark.WRONG_LENGTH
        header[:] = value[: len(header)]
        data[:] = memoryview(value)[len(header) :]
        return Mark.FILLED

    def _check_deadline(self) -> None:
        if time.monotonic() >= self._deadline_s:
            raise lost("timeout", "the server did not answer in time")


def _lost(error: Exception) -> LinkLost:
    if isinstance(error, (exceptions.TimeoutError, TimeoutError)):
        return lost("timeout", "the server did not answer in time")
    return lost("connection_lost", f"{type(error).__name__} in use")
