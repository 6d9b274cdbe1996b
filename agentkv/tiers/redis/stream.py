"""Bytes to and from a socket, with a bound on every wait.

What: `PlainStream` lets the kernel do the waiting, so that a value mostly takes one system call;
`TlsStream` waits by poll, for a TLS socket's timeouts are Python's own and start anew with each
record. Both end a call at its deadline, however slowly a server trickles.
Where: `bulk` reads and writes the protocol over one of them.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from agentkv.tiers.redis.replies import LinkLost, lost

_MAX_BUFFERS = 512  # below IOV_MAX
_TLS_JOIN_BYTES = 16 << 10  # what fits a TLS record is cheaper joined


class Stream(Protocol):
    """Not thread-safe. Both calls block, until `deadline_s` at most, and raise `LinkLost`."""

    deadline_s: float

    def send(self, buffers: Sequence[memoryview]) -> None:
        """Sends all."""

    def receive(self, memory: memoryview, *, is_whole: bool) -> int:
        """Receives at least a byte; with `is_whole`, rather all than a part."""

    def receive_over(self, memory: memoryview, spare: memoryview) -> int:
        """The same into two pieces of memory, the second where the first is full."""


def stream_over(sock: socket.socket, timeout_s: float) -> Stream:
    """The stream for a socket. `timeout_s` is for a wait in which nothing comes."""
    if isinstance(sock, ssl.SSLSocket):
        return TlsStream(sock, timeout_s)
    return PlainStream(sock, timeout_s)


class PlainStream:
    """The kernel's timeouts are set once, and shortened only near the deadline."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._timeout_s = timeout_s
        self._set_s = 0.0
        self.deadline_s = 0.0

    def send(self, buffers: Sequence[memoryview]) -> None:
        unsent = list(buffers)
        first = 0
        while first < len(unsent):
            self._prepare()
            try:
                num_bytes = self._sock.sendmsg(unsent[first : first + _MAX_BUFFERS])
            except OSError as error:
                raise _lost(error) from None
            first = _skip(unsent, first, num_bytes)

    def receive(self, memory: memoryview, *, is_whole: bool) -> int:
        self._prepare()
        try:
            num_bytes = self._sock.recv_into(memory, 0, socket.MSG_WAITALL if is_whole else 0)
        except OSError as error:
            raise _lost(error) from None
        return _some(num_bytes)

    def receive_over(self, memory: memoryview, spare: memoryview) -> int:
        self._prepare()
        try:
            return _some(self._sock.recvmsg_into((memory, spare))[0])
        except OSError as error:
            raise _lost(error) from None

    def _prepare(self) -> None:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise _late()
        if self._set_s == self._timeout_s <= left_s:
            return
        wait_s = min(self._timeout_s, left_s)
        if self._set_s != wait_s:
            wait_us = max(1000, int(wait_s * 1e6))
            timeval = struct.pack("ll", wait_us // 1_000_000, wait_us % 1_000_000)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            self._set_s = wait_s


class TlsStream:
    """TLS knows no scattered sends, and has bytes of its own that poll does not see."""

    def __init__(self, sock: ssl.SSLSocket, timeout_s: float) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._timeout_s = timeout_s
        self._polls = {event: _poll(sock, event) for event in (select.POLLIN, select.POLLOUT)}
        self.deadline_s = 0.0

    def send(self, buffers: Sequence[memoryview]) -> None:
        unsent = _joined(buffers)
        first = 0
        while first < len(unsent):
            num_bytes = self._try(self._sock.send, unsent[first])
            first = _skip(unsent, first, num_bytes)

    def receive(self, memory: memoryview, *, is_whole: bool) -> int:
        return self._try(self._sock.recv_into, memory)

    def receive_over(self, memory: memoryview, spare: memoryview) -> int:
        return self._try(self._sock.recv_into, memory)

    def _try(self, call: Callable[[memoryview], int], memory: memoryview) -> int:
        """Calls until it does something; waits for the socket in between."""
        while True:
            try:
                return _some(call(memory))
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise _lost(error) from None

    def _wait(self, event: int) -> None:
        wait_s = min(self._timeout_s, self.deadline_s - time.monotonic())
        if wait_s <= 0 or not self._polls[event].poll(wait_s * 1000):
            raise _late()


def _poll(sock: socket.socket, event: int) -> select.poll:
    poll = select.poll()
    poll.register(sock, event)
    return poll


def _some(num_bytes: int) -> int:
    if num_bytes == 0:
        raise lost("connection_lost", "the server closed a connection")
    return num_bytes


def _late() -> LinkLost:
    return lost("timeout", "the server did not answer in time")


def _lost(error: OSError) -> LinkLost:
    if isinstance(error, BlockingIOError):  # The kernel's timeout.
        return _late()
    return lost("connection_lost", f"{type(error).__name__} in use")


def _skip(buffers: list[memoryview], first: int, num_bytes: int) -> int:
    """The first buffer that is not all sent yet, cut to its rest."""
    while first < len(buffers) and num_bytes >= len(buffers[first]):
        num_bytes -= len(buffers[first])
        first += 1
    if num_bytes:
        buffers[first] = buffers[first][num_bytes:]
    return first


def _joined(buffers: Sequence[memoryview]) -> list[memoryview]:
    """The same bytes with neighbouring small buffers made one."""
    joined: list[memoryview] = []
    small = bytearray()
    for buffer in buffers:
        if len(buffer) < _TLS_JOIN_BYTES:
            small += buffer
            continue
        if small:
            joined.append(memoryview(bytes(small)))
            small = bytearray()
        joined.append(buffer)
    if small:
        joined.append(memoryview(bytes(small)))
    return joined
