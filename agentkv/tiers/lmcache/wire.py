"""The protocol of LMCache's server: `lmcache_server HOST PORT cpu`, in LMCache's settings `lm://`.

What: a `Link` is one connection; requests of 186 bytes, replies of 36, values behind them. They are
as in `lmcache/v1/protocol.py`, the same from LMCache 0.3.6 to 0.5.6.
Why not LMCache's client: it needs torch, an event loop, and memory that LMCache allocated.
Why quick acknowledgements: the server leaves Nagle's algorithm on, and its small replies would wait
40 ms for ours. Where: `links` opens and keeps links, `lmcache` uses them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Sequence
from enum import IntEnum

MAX_VALUE_BYTES = (1 << 31) - 1
"""Lengths travel as signed 32-bit numbers."""

# command, length, format, dtype, location, shape (4), key; in the machine's byte order, as there.
_REQUEST = struct.Struct("=9i150s")
# code, length, format, dtype, shape (4), location
_REPLY = struct.Struct("=9i")
_BINARY = 4  # MemoryFormat.BINARY
_UINT8 = 6
_FOUND, _NOT_FOUND = 200, 400
_MAX_DRAINED_BYTES = 64 << 20
_PIECE_BYTES = 64 << 10
_MAX_BUFFERS = 256  # below IOV_MAX
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


class Command(IntEnum):
    """What the server understands; it has no command to list or to delete."""

    PUT = 1
    GET = 2
    EXIST = 3
    HEALTH = 5


class LinkLost(Exception):
    """A connection is of no use any more, or there is none."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class KeySpace:
    """The server's names for the entries of one namespace.

    The server takes keys of one form only: model, world size, worker, a hexadecimal number, dtype.
    The dtype is one that all versions know; the value's own is told in the request.
    """

    def __init__(self, namespace: str) -> None:
        self._prefix = f"agentkv-{namespace}@1@0@1".encode()

    def name(self, key: bytes) -> bytes:
        """The leading 1 keeps a key's leading zeros: the server reads it as a number."""
        return b"%s%s@half" % (self._prefix, key.hex().encode())


def request(command: Command, name: bytes, num_bytes: int = 0) -> bytes:
    """A request; a PUT's value of so many bytes has to follow it."""
    shape = (num_bytes, 0, 0, 0)
    return _REQUEST.pack(command, num_bytes, _BINARY, _UINT8, 0, *shape, name.ljust(150))


class Link:
    """Not thread-safe. After a `LinkLost` its state is unknown: close it."""

    def __init__(self, host: str, port: int, timeout_s: float, deadline_s: float) -> None:
        """Connects and asks for a sign of life. Blocks; raises `LinkLost`."""
        self._timeout_s = timeout_s
        self.deadline_s = deadline_s
        self.was_used = False
        self._small = memoryview(bytearray(_REPLY.size))
        try:
            self._socket = socket.create_connection((host, port), self._time_left_s())
        except OSError as error:
            raise LinkLost("connect", f"no connection ({type(error).__name__})") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.send([request(Command.HEALTH, KeySpace("health").name(b""))])
            if self.reply() is None:
                raise LinkLost("protocol", "it says that it is not well")
        except LinkLost:
            self.close()
            raise

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Sends these. Blocks."""
        unsent = [memoryview(buffer) for buffer in buffers]
        first = 0
        while first < len(unsent):
            num_bytes = self._send_some(unsent[first : first + _MAX_BUFFERS])
            while first < len(unsent) and num_bytes >= len(unsent[first]):
                num_bytes -= len(unsent[first])
                first += 1
            if num_bytes:
                unsent[first] = unsent[first][num_bytes:]

    def reply(self) -> int | None:
        """The next reply: the length of the value behind it, None for "not found". Blocks."""
        self.fill(self._small)
        code, num_bytes, *_ = _REPLY.unpack(self._small)
        if code == _NOT_FOUND:
            return None
        if code != _FOUND or num_bytes < 0:
            raise LinkLost("protocol", "it answers what is not LMCache's protocol")
        return int(num_bytes)

    def fill(self, memory: memoryview) -> None:
        """Receives into all of this memory. Blocks."""
        num_filled = 0
        while num_filled < len(memory):
            num_filled += self._receive_some(memory[num_filled:])

    def drain(self, num_bytes: int) -> None:
        """Receives a value that nobody wants. Blocks."""
        if num_bytes > _MAX_DRAINED_BYTES:
            raise LinkLost("protocol", "it sent a value of absurd length")
        waste = memoryview(bytearray(min(num_bytes, _PIECE_BYTES)))
        while num_bytes > 0:
            piece = waste[:num_bytes]
            self.fill(piece)
            num_bytes -= len(piece)

    def close(self) -> None:
        """Does not block."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _send_some(self, buffers: list[memoryview]) -> int:
        try:
            self._socket.settimeout(self._time_left_s())
            return self._socket.sendmsg(buffers)
        except OSError as error:
            raise _lost(error) from None

    def _receive_some(self, memory: memoryview) -> int:
        try:
            self._socket.settimeout(self._time_left_s())
            if _QUICKACK is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            num_bytes = self._socket.recv_into(memory)
        except OSError as error:
            raise _lost(error) from None
        if num_bytes == 0:
            raise LinkLost("connection_lost", "it closed a connection")
        return num_bytes

    def _time_left_s(self) -> float:
        """For one system call: it must not go beyond the deadline, nor sit on a silent server."""
        left_s = min(self._timeout_s, self.deadline_s - time.monotonic())
        if left_s <= 0:
            raise LinkLost("timeout", "it did not answer in time")
        return left_s


def _lost(error: OSError) -> LinkLost:
    if isinstance(error, TimeoutError):
        return LinkLost("timeout", "it did not answer in time")
    return LinkLost("connection_lost", f"{type(error).__name__} in use")
