"""KV blocks in an LMCache server (`lmcache_server HOST PORT cpu`), which engines may share.

What: a `TierStore` over LMCache's own protocol. Each value is a header of 32 bytes and the data.
Why a header: the server keeps no checksum, and anybody who reaches it may write; bytes under a
wrong key, cut short or changed must be refused. Where: see `TierStore`.

What the server cannot do, and what stands in for it:
  * It never evicts. With `capacity_bytes` this process gives up the oldest of what it wrote.
  * It cannot delete. An entry is overwritten with nothing, which gives its memory back.
  * It cannot list. `clear` and `usage` know this process's own entries only; after `clear` all
    keys have new names, so that nothing from before is found again, whoever wrote it.
  * It knows no passwords and no TLS: for trusted networks only.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from xxhash import xxh3_64_intdigest

from agentkv.clock import Clock, SystemClock
from agentkv.errors import ConfigError
from agentkv.tiers.base import MAX_KEY_BYTES, Entry, Failures, TierUsage
from agentkv.tiers.lmcache.known import Known
from agentkv.tiers.lmcache.links import Links
from agentkv.tiers.lmcache.wire import MAX_VALUE_BYTES, Command, KeySpace, Link, LinkLost, request
from agentkv.tiers.namespace import Namespace

HEADER_BYTES = 32
_T = TypeVar("_T")

_HEADER = struct.Struct("<8sQQQ")  # magic, bytes of data, sum of the key, sum of the data
_MAGIC = b"AKVLMC\x00\x01"
_WINDOW_BYTES = 16 << 20
_WINDOW_REQUESTS = 64  # unanswered at once: their replies must fit the sockets' buffers


class LMCacheStore:
    """See `TierStore`. The constructor does not connect; it raises `ConfigError`.

    `timeout_s`: a server that makes no progress for so long is left alone for a while.
    `call_timeout_s`: no call takes longer. `capacity_bytes`: for what this process writes; None for
    no limit: then the server's memory is the limit, and it ends when that is used up.
    """

    name = "lmcache"
    is_index_local = False

    def __init__(
        self,
        host: str,
        port: int,
        *,
        block_bytes: int,
        namespace: Namespace,
        capacity_bytes: int | None = None,
        timeout_s: float = 2.0,
        call_timeout_s: float = 10.0,
        connections: int = 4,
        clock: Clock | None = None,
    ) -> None:
        self.block_bytes = block_bytes
        self._value_bytes = HEADER_BYTES + block_bytes
        if not 0 < self._value_bytes <= MAX_VALUE_BYTES:
            raise ConfigError(f"lmcache: KV blocks of {block_bytes} bytes do not fit its protocol")
        max_entries = None if capacity_bytes is None else capacity_bytes // self._value_bytes
        if max_entries == 0:
            raise ConfigError(
                f"lmcache.capacity_bytes: {capacity_bytes} bytes hold 0 KV blocks; "
                f"give at least {self._value_bytes}"
            )
        self._capacity_bytes = capacity_bytes
        self._digest = namespace.digest
        self._keys = KeySpace(self._digest)
        self._known = Known(max_entries)
        self._failures = Failures()
        self._call_timeout_s = call_timeout_s
        self._links = Links(
            f"{host}:{port}",
            lambda deadline_s: Link(host, port, timeout_s, deadline_s),
            max_links=connections,
            clock=clock or SystemClock(),
        )

    @property
    def is_available(self) -> bool:
        return self._links.is_available

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        answers = [False] * len(keys)
        self._run(lambda link: self._look_up(link, keys, answers))
        return answers

    def store(self, entries: Sequence[Entry]) -> list[bool]:
        answers = [False] * len(entries)
        self._run(lambda link: self._store(link, entries, answers))
        return answers

    def load(self, entries: Sequence[Entry]) -> list[bool]:
        answers = [False] * len(entries)
        self._run(lambda link: self._load(link, entries, answers))
        return answers

    def touch(self, keys: Collection[bytes]) -> None:
        self._known.touch(keys)

    def delete(self, keys: Collection[bytes]) -> int:
        doomed = list(keys)
        answers = [False] * len(doomed)

        def work(link: Link) -> None:
            self._look_up(link, doomed, answers)
            self._empty(link, [key for key, has in zip(doomed, answers, strict=True) if has])

        return sum(answers) if self._run(work) else 0

    def clear(self) -> None:
        old_keys, doomed = self._keys, self._known.take_all()
        self._keys = KeySpace(f"{self._digest}-{secrets.token_hex(4)}")
        self._run(lambda link: self._overwrite(link, old_keys, doomed))

    def usage(self) -> TierUsage:
        num_entries = self._known.num_written
        return TierUsage(num_entries, num_entries * self._value_bytes, self._capacity_bytes)

    def take_failures(self) -> Mapping[str, int]:
        return self._failures.take()

    def close(self) -> None:
        self._links.close()

    # --- with a connection ---

    def _run(self, work: Callable[[Link], None]) -> bool:
        """Has `work` done, which may be begun twice; False if it could not be done to its end."""
        if not self._links.is_available:
            return False
        try:
            self._links.run(work, time.monotonic() + self._call_timeout_s)
        except LinkLost as error:
            if error.reason != "closed":
                self._failures.count(error.reason)
            return False
        return True

    def _look_up(self, link: Link, keys: Sequence[bytes], answers: list[bool]) -> None:
        names = self._keys
        for window in _windows(range(len(keys)), _WINDOW_REQUESTS):
            link.send([request(Command.EXIST, names.name(keys[i])) for i in window])
            is_there = [link.reply() is not None for _ in window]
            self._known.note_missing(
                keys[i] for i, has in zip(window, is_there, strict=True) if not has
            )
            for i, has in zip(window, is_there, strict=True):
                answers[i] = has and not self._known.is_empty(keys[i])

    def _store(self, link: Link, entries: Sequence[Entry], answers: list[bool]) -> None:
        fitting = [i for i, entry in enumerate(entries) if self._fits(entry)]
        has = [False] * len(fitting)
        self._look_up(link, [entries[i].key for i in fitting], has)
        for i, is_there in zip(fitting, has, strict=True):
            answers[i] = is_there
        self._known.touch(entries[i].key for i in fitting if answers[i])
        new = [i for i in fitting if not answers[i]]
        new = new[: self._known.room_for(len(new))]
        given_up = self._known.excess(len(new))
        self._empty(link, given_up)
        for i in fitting:
            answers[i] = answers[i] and entries[i].key not in given_up
        for window in _windows(new, self._window_entries):
            self._put(link, [entries[i] for i in window])
            written = [link.reply() is not None for _ in window]
            for i, is_there in zip(window, written, strict=True):
                answers[i] = is_there
            self._known.note_written(entries[i].key for i in window if answers[i])

    def _put(self, link: Link, entries: Sequence[Entry]) -> None:
        """The server answers nothing to a PUT: each is followed by the question if it is there."""
        names = self._keys
        buffers: list[bytes | memoryview] = []
        for entry in entries:
            name = names.name(entry.key)
            buffers += [
                request(Command.PUT, name, self._value_bytes),
                _header(name, entry.data),
                entry.data,
                request(Command.EXIST, name),
            ]
        link.send(buffers)

    def _load(self, link: Link, entries: Sequence[Entry], answers: list[bool]) -> None:
        names = self._keys
        fitting = [i for i, entry in enumerate(entries) if self._fits(entry)]
        damaged: list[bytes] = []
        for window in _windows(fitting, self._window_entries):
            link.send([request(Command.GET, names.name(entries[i].key)) for i in window])
            for i in window:
                entry = entries[i]
                is_whole = self._receive(link, names.name(entry.key), entry)
                answers[i] = bool(is_whole)
                if is_whole is False:
                    damaged.append(entry.key)
        self._failures.count("damaged", len(damaged))
        self._known.touch(entries[i].key for i in fitting if answers[i])
        self._empty(link, damaged)

    def _receive(self, link: Link, name: bytes, entry: Entry) -> bool | None:
        """Whether the entry is what it was; None if the server does not have it."""
        num_bytes = link.reply()
        if num_bytes is None:
            self._known.note_missing([entry.key])
            return None
        if num_bytes == 0:
            self._known.note_empty([entry.key])
            return None
        if num_bytes != self._value_bytes:
            link.drain(num_bytes)
            return False
        header = bytearray(HEADER_BYTES)
        link.fill(memoryview(header))
        link.fill(entry.data)
        return header == _header(name, entry.data)

    def _empty(self, link: Link, keys: Sequence[bytes]) -> None:
        self._overwrite(link, self._keys, keys)
        self._known.note_empty(keys)

    def _overwrite(self, link: Link, names: KeySpace, keys: Sequence[bytes]) -> None:
        """Done on return: asked once more, the server has seen to what came before."""
        for window in _windows(keys, _WINDOW_REQUESTS):
            link.send([request(Command.PUT, names.name(key)) for key in window])
            link.send([request(Command.EXIST, names.name(window[-1]))])
            link.reply()

    @property
    def _window_entries(self) -> int:
        return max(1, min(_WINDOW_REQUESTS, _WINDOW_BYTES // self._value_bytes))

    def _fits(self, entry: Entry) -> bool:
        fits = len(entry.key) <= MAX_KEY_BYTES and len(entry.data) == self.block_bytes
        if not fits:
            self._failures.count("wrong_size")
        return fits


def _header(name: bytes, data: memoryview) -> bytes:
    """Bound to the key and the namespace, which its name holds. Lets other threads run."""
    key_sum = xxh3_64_intdigest(name)
    return _HEADER.pack(_MAGIC, len(data), key_sum, xxh3_64_intdigest(data, seed=key_sum))


def _windows(items: Sequence[_T], size: int) -> Iterator[list[_T]]:
    rest = iter(items)
    while window := list(islice(rest, size)):
        yield window
