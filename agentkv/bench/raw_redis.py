"""A loop over bare sockets as the measure of a Redis server: what it gives to a program that does
nothing else.

What: as many connections as the tier has, each with a thread; values of the tier's sizes, sent from
and received into their places, a few commands ahead of their replies; no sums, no retries.
Why a few: replies that pile up in the server make it slower.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentkv.bench.memory import BlockMemory
from agentkv.bench.order import batches
from agentkv.bench.rounds import PeerError
from agentkv.tiers.redis.url import Address, RedisAccess
from agentkv.tiers.redis.values import DEFAULT_VALUE_BYTES, HEADER_BYTES, split

_WINDOW_BYTES = 1 << 20
_MIN_WINDOW = 2  # values
_TIMEOUT_S = 30
_TTL_MS = 3_600_000  # If the bench is killed, the server forgets its values.
_OK = b"+OK\r\n"


class RawRedis:
    """See `Mover`. Only for one server, without TLS."""

    name = "raw"

    def __init__(
        self,
        address: Address,
        access: RedisAccess,
        source: BlockMemory,
        target: BlockMemory,
        *,
        num_connections: int,
        prefix: str,
    ) -> None:
        """Connects. Raises PeerError."""
        self._source, self._target = source, target
        # The tier's values hold a header and a part of the block; here all is the block's.
        sizes = [part.num_bytes for part in split(source.block_bytes, DEFAULT_VALUE_BYTES)]
        self._value_bytes = [size + HEADER_BYTES for size in sizes]
        self._keys = [f"{prefix}:{i}".encode() for i in range(source.num_blocks * len(sizes))]
        self._spans = _spans(sizes, source.num_blocks)
        self._padding = bytes(HEADER_BYTES)
        self._threads = ThreadPoolExecutor(num_connections, "bench-redis")
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(num_connections):
                self._sockets.append(_connect(address, access))
        except OSError as error:
            self.close()
            raise PeerError(f"no connection of our own ({type(error).__name__})") from None

    def store(self) -> float:
        self._run(self._drop)
        return self._run(self._set)

    def load(self) -> float:
        self._target.wipe()
        seconds = self._run(self._get)
        if not self._target.equals(self._source):
            raise PeerError("the server gave other bytes back")
        return seconds

    def facts(self) -> Mapping[str, Any]:
        return {
            "connections": len(self._sockets),
            "value_bytes": sorted(set(self._value_bytes)),
            "window_bytes": _WINDOW_BYTES,
        }

    def close(self) -> None:
        if self._sockets and self._sockets[0].fileno() >= 0:
            with contextlib.suppress(PeerError):  # They have a lifetime.
                self._run(self._drop)
        for sock in self._sockets:
            sock.close()
        self._threads.shutdown()

    def _run(self, work: Callable[[socket.socket, Sequence[int]], None]) -> float:
        """Each connection does its part of the values; returns seconds. Raises PeerError."""
        count = len(self._sockets)
        parts = list(batches(range(len(self._keys)), count))
        began_s = time.perf_counter()
        try:
            list(self._threads.map(work, self._sockets, parts))
        except OSError as error:
            raise PeerError(f"a connection of our own broke ({type(error).__name__})") from None
        return time.perf_counter() - began_s

    def _set(self, sock: socket.socket, numbers: Sequence[int]) -> None:
        memory = self._source.view()

        def send(number: int) -> None:
            key, (start, stop) = self._keys[number], self._spans[number]
            head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s" % (
                len(key),
                key,
                stop - start + HEADER_BYTES,
                self._padding,
            )
            tail = b"\r\n$2\r\nPX\r\n$%d\r\n%d\r\n" % (len(str(_TTL_MS)), _TTL_MS)
            _send_all(sock, [memoryview(head), memory[start:stop], memoryview(tail)])

        def receive(_: int) -> None:
            _expect(sock, _OK)

        self._pipeline(numbers, send, receive)

    def _get(self, sock: socket.socket, numbers: Sequence[int]) -> None:
        memory = self._target.view()

        def send(number: int) -> None:
            key = self._keys[number]
            sock.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))

        def receive(number: int) -> None:
            start, stop = self._spans[number]
            line = b"$%d\r\n" % (stop - start + HEADER_BYTES)
            head, tail = bytearray(len(line) + HEADER_BYTES), bytearray(2)
            _receive_all(sock, [memoryview(head), memory[start:stop], memoryview(tail)])
            if not head.startswith(line):
                raise ConnectionError("not the value asked for")

        self._pipeline(numbers, send, receive)

    def _drop(self, sock: socket.socket, numbers: Sequence[int]) -> None:
        for number in numbers:
            key = self._keys[number]
            sock.sendall(b"*2\r\n$6\r\nUNLINK\r\n$%d\r\n%s\r\n" % (len(key), key))
            reply = bytearray(4)
            _receive_all(sock, [memoryview(reply)])

    def _pipeline(
        self,
        numbers: Sequence[int],
        send: Callable[[int], None],
        receive: Callable[[int], None],
    ) -> None:
        waiting: deque[int] = deque()
        waiting_bytes = 0
        for number in numbers:
            start, stop = self._spans[number]
            while len(waiting) >= _MIN_WINDOW and waiting_bytes + stop - start > _WINDOW_BYTES:
                done = waiting.popleft()
                receive(done)
                waiting_bytes -= self._spans[done][1] - self._spans[done][0]
            send(number)
            waiting.append(number)
            waiting_bytes += stop - start
        while waiting:
            receive(waiting.popleft())


def _spans(sizes: Sequence[int], num_blocks: int) -> list[tuple[int, int]]:
    """Where in memory each value's part of a block lies."""
    spans, start = [], 0
    for _ in range(num_blocks):
        for size in sizes:
            spans.append((start, start + size))
            start += size
    return spans


def _connect(address: Address, access: RedisAccess) -> socket.socket:
    """Logged in. Raises OSError."""
    if address.kind == "unix":
        sock = socket.socket(socket.AF_UNIX)
    else:
        sock = socket.socket(_family(address))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        # Python's own timeouts would cost a second system call for each.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _TIMEOUT_S, 0))
        sock.connect(address.path if address.kind == "unix" else address.hosts[0])
        _log_in(sock, address, access)
    except BaseException:
        sock.close()
        raise
    return sock


def _family(address: Address) -> int:
    """IPv4 or IPv6. Raises OSError."""
    return socket.getaddrinfo(*address.hosts[0], type=socket.SOCK_STREAM)[0][0]


def _log_in(sock: socket.socket, address: Address, access: RedisAccess) -> None:
    """Raises OSError, which does not repeat what was sent."""
    commands: list[list[str]] = [["SELECT", str(address.db)]]
    if access.password is not None:
        commands.insert(0, ["AUTH", *filter(None, [access.username]), access.password])
    for words in commands:
        parts = [word.encode() for word in words]
        sock.sendall(
            b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
        )
        _expect(sock, _OK)


def _expect(sock: socket.socket, reply: bytes) -> None:
    got = bytearray(len(reply))
    _receive_all(sock, [memoryview(got)])
    if got != reply:
        raise ConnectionError("the server refuses a command")


def _send_all(sock: socket.socket, views: list[memoryview]) -> None:
    while views:
        views = _after(views, sock.sendmsg(views))


def _receive_all(sock: socket.socket, views: list[memoryview]) -> None:
    while views:
        num_bytes = sock.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]
        if num_bytes == 0:
            raise ConnectionError("the server closed it")
        views = _after(views, num_bytes)


def _after(views: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of the views when this much of them is done."""
    for index, view in enumerate(views):
        if num_bytes < len(view):
            return [view[num_bytes:], *views[index + 1 :]]
        num_bytes -= len(view)
    return []
