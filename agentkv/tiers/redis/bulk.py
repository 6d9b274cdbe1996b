"""Values between a socket and the caller's memory, without a copy in between.

What: `Wire` sends buffers as they are and reads RESP2 replies, values straight into given memory.
Why not redis-py's: its parsers make an object of each value and copy it, four to eight times slower
for the sizes of KV blocks.
Where: `link` gives it the socket of a redis-py connection that nobody else reads.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from agentkv.tiers.redis.replies import ErrorReply, Mark, Reply, lost
from agentkv.tiers.redis.stream import stream_over

_BUFFER_BYTES = 4096  # What of a value comes with the line before it is copied once more.
_SEND_AT_BYTES = 128 << 10
_SEND_AT_BUFFERS = 512
_MAX_OWN_BYTES = 1 << 20  # of a reply that is read into memory of our own
_MAX_DRAINED_BYTES = 8 << 20


class Wire:
    """One socket. Not thread-safe. Any `LinkLost` means that its state is unknown: drop it."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._stream = stream_over(sock, timeout_s)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._unsent: list[memoryview] = []
        self._num_unsent_bytes = 0

    def begin(self, deadline_s: float) -> None:
        """All that follows ends by then."""
        self._stream.deadline_s = deadline_s

    # --- sending ---

    def queue(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Sends these, or keeps them until it is worth a system call. May block."""
        for buffer in buffers:
            self._unsent.append(memoryview(buffer))
            self._num_unsent_bytes += len(buffer)
        if self._num_unsent_bytes >= _SEND_AT_BYTES or len(self._unsent) >= _SEND_AT_BUFFERS:
            self.flush()

    def flush(self) -> None:
        """Sends what is queued. Blocks."""
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._num_unsent_bytes = 0
            self._stream.send(unsent)

    # --- replies ---

    def read(self) -> Reply:
        """The next reply. Blocks."""
        return self._reply_to(self._line())

    def read_value(self, header: memoryview, data: memoryview) -> Reply:
        """The next reply; a value of exactly these lengths goes into this memory (`FILLED`)."""
        line = self._line()
        if line[:1] != b"$":
            return self._reply_to(line)
        num_bytes = _number(line)
        if num_bytes < 0:
            return None
        if num_bytes != len(header) + len(data):
            self._drain(num_bytes)
            self._end_value()
            return Mark.WRONG_LENGTH
        self._fill(header)
        self._fill(data)
        self._end_value()
        return Mark.FILLED

    def _reply_to(self, line: bytes) -> Reply:
        kind = line[:1]
        if kind == b"+":
            return line[1:]
        if kind == b"-":
            return ErrorReply(line[1:].split(b" ", 1)[0].decode("ascii", "replace"))
        if kind == b":":
            return _number(line)
        if kind == b"$":
            return self._own_value(_number(line))
        if kind == b"*":
            num_items = _number(line)
            if num_items > _MAX_OWN_BYTES:
                raise lost("protocol", "the server sent a list of absurd length")
            return None if num_items < 0 else [self.read() for _ in range(num_items)]
        if kind == b"_":
            return None
        raise lost("protocol", "the server sent what is not a reply")

    def _own_value(self, num_bytes: int) -> bytes | None:
        if num_bytes < 0:
            return None
        if num_bytes > _MAX_OWN_BYTES:
            raise lost("protocol", "the server sent a reply of absurd length")
        value = bytearray(num_bytes)
        self._fill(memoryview(value))
        self._end_value()
        return bytes(value)

    def _end_value(self) -> None:
        if self._buffer.startswith(b"\r\n", self._start, self._end):
            self._start += 2
        elif self._line():
            raise lost("protocol", "a value was longer than announced")

    # --- bytes ---

    def _line(self) -> bytes:
        while (at := self._buffer.find(b"\r\n", self._start, self._end)) < 0:
            if self._start:
                num_left = self._end - self._start
                self._view[:num_left] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, num_left
            if self._end == _BUFFER_BYTES:
                raise lost("protocol", "the server sent an endless line")
            self._end += self._stream.receive(self._view[self._end :], is_whole=False)
        line = bytes(self._view[self._start : at])
        self._start = at + 2
        return line

    def _fill(self, memory: memoryview) -> None:
        start, num_wanted = self._start, len(memory)
        num_filled = self._end - start
        if num_filled >= num_wanted:
            self._start = start + num_wanted
            memory[:] = self._view[start : self._start]
            return
        memory[:num_filled] = self._view[start : self._end]
        # What has come already, and the beginning of the next reply with it; then the kernel waits.
        num_bytes = self._stream.receive_over(memory[num_filled:], self._view)
        self._start, self._end = 0, max(0, num_bytes - (num_wanted - num_filled))
        num_filled += num_bytes - self._end
        while num_filled < num_wanted:
            num_filled += self._stream.receive(memory[num_filled:], is_whole=True)

    def _drain(self, num_bytes: int) -> None:
        if num_bytes > _MAX_DRAINED_BYTES:
            raise lost("oversized", "the server sent a value of absurd length")
        waste = memoryview(bytearray(min(num_bytes, 64 << 10)))
        while num_bytes > 0:
            self._fill(waste[:num_bytes])
            num_bytes -= len(waste[:num_bytes])


def _number(line: bytes) -> int:
    try:
        return int(line[1:])
    except ValueError:
        raise lost("protocol", "the server sent what is not a number") from None
