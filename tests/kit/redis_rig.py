"""What tests of the Redis tier share: canaries, a store that must end cleanly, a slow way to it.

What: `entry` makes an entry whose every byte follows from its number, `blank` one to load into;
`open_store` gives a store that retries fast and must leave no thread, `fill` stores what a test
begins with; `Proxy` stands between a store and a real server and passes bytes slowly, late or not
at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentkv.tiers.base import Entry
from agentkv.tiers.namespace import Namespace
from agentkv.tiers.redis.store import RedisStore

BLOCK_BYTES = 40_000
NAMESPACE = Namespace({"model": "tiny", "kv_dtype": "float16"})


def key(number: int) -> bytes:
    """The key of an entry, as long as vLLM's."""
    return hashlib.sha256(b"key %d" % number).digest() + b"\0\0\0\1"


def canary(number: int, num_bytes: int = BLOCK_BYTES) -> bytes:
    """What an entry must hold."""
    return np.random.default_rng(number).bytes(num_bytes)


def entry(number: int, num_bytes: int = BLOCK_BYTES) -> Entry:
    return Entry(key(number), memoryview(canary(number, num_bytes)))


def entries(numbers: Sequence[int], num_bytes: int = BLOCK_BYTES) -> list[Entry]:
    return [entry(number, num_bytes) for number in numbers]


def blank(number: int, num_bytes: int = BLOCK_BYTES) -> Entry:
    """Filled with what no canary holds for long."""
    return Entry(key(number), memoryview(bytearray(b"\xff" * num_bytes)))


def loaded(store: RedisStore, numbers: Sequence[int]) -> list[bool]:
    """Loads these; each must come whole and right, or not at all."""
    blanks = [blank(number, store.block_bytes) for number in numbers]
    results = store.load(blanks)
    for number, is_loaded, into in zip(numbers, results, blanks, strict=True):
        if is_loaded:
            assert bytes(into.data) == canary(number, store.block_bytes), f"wrong bytes: {number}"
    return results


@contextlib.contextmanager
def open_store(url: str, *, is_inner: bool = False, **options: Any) -> Iterator[RedisStore]:
    """A store that retries fast; it must not leave a thread behind.

    It waits long for a server that is alive: where a test wants less patience, it says so.
    An inner one is checked with the one around it, whose threads cannot be told from its own.
    """
    settings: dict[str, Any] = {
        "block_bytes": BLOCK_BYTES,
        "namespace": NAMESPACE,
        "connect_timeout_s": 30.0,
        "timeout_s": 30.0,
        "call_timeout_s": 60.0,
        "first_retry_s": 0.05,
        "max_retry_s": 0.2,
        **options,
    }
    before = set(threading.enumerate())
    store = RedisStore(url, **settings)
    try:
        yield store
    finally:
        store.close()
        if not is_inner:
            _assert_ended(set(threading.enumerate()) - before)


def _assert_ended(threads: set[threading.Thread]) -> None:
    """`close` waits for its threads as long as a call may take, which a test makes short."""
    for thread in threads:
        if thread.name.startswith("agentkv"):
            thread.join(30)
            assert not thread.is_alive(), f"a thread is left: {thread.name}"


def fill(url: str, numbers: Sequence[int], **options: Any) -> None:
    """Stores these, with a patience that the store under test may not have."""
    with open_store(url, is_inner=True, **options) as store:
        num_bytes = store.block_bytes
        assert store.store(entries(numbers, num_bytes)) == [True] * len(numbers)


class Proxy:
    """Passes bytes to a server and back; slowly, if told, or not at all while stalled."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.bytes_per_s: float | None = None
        self.may_reply = threading.Event()
        self.may_reply.set()
        self.num_passed_bytes = 0
        self.num_connections = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.num_connections += 1
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets += [client, server]
                for ends in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(target=self._pump, args=ends, name="proxy")
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(4096):
                if is_reply:
                    self.may_reply.wait()
                if self.bytes_per_s is not None:
                    time.sleep(len(content) / self.bytes_per_s)
                target.sendall(content)
                self.num_passed_bytes += len(content)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(30)  # There are no more connections than these.
        self._listener.close()
        self.may_reply.set()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for end in self._sockets:
            end.close()


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
