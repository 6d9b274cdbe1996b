"""How an entry lies on the server: the names of its keys, its parts, and each part's header.

What: an entry is cut into parts of at most `value_bytes`; each part is a value of a header and a
slice of the data. Why: a server's allocator charges a value of 2^k bytes as 1.25 of that, and
values over 4 MiB travel slowly. Why a header: bytes under a wrong key, of another write, cut short
or changed must be refused, whoever did that to them.
Where: `commands` reads and writes these values.

Keys. The braces are a cluster's hash tag: one entry's parts share a slot, entries spread.

    agentkv:1:<namespace>:{<key, hexadecimal>}:<first byte>-<byte after the last>
    agentkv:1:manifest:<namespace>      the namespace's fields
    agentkv:1:namespaces                the set of namespaces, for explaining misses
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

HEADER_BYTES = 32
ALLOCATION_OVERHEAD_BYTES = 64
DEFAULT_VALUE_BYTES = (4 << 20) - ALLOCATION_OVERHEAD_BYTES
NAMESPACES_KEY = b"agentkv:1:namespaces"

_MAGIC = b"AKV1"
_HEADER = struct.Struct("<4sHHQQQ")  # magic, part, parts, bytes of the entry, write, checksum
_CHECKED_BYTES = 24  # all before the checksum
_MIN_TAIL_BYTES = 256 << 10  # below, one more command costs more than the memory it saves


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of an entry's data."""

    number: int
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        return self.stop - self.start


def split(block_bytes: int, value_bytes: int) -> tuple[Part, ...]:
    """The parts of an entry, such that no value is over `value_bytes`, header and all."""
    limit = value_bytes - HEADER_BYTES
    sizes = [limit] * (block_bytes // limit)
    rest = block_bytes % limit
    if rest:
        sizes += _without_waste(rest)
    parts: list[Part] = []
    start = 0
    for number, size in enumerate(sizes):
        parts.append(Part(number, start, start + size))
        start += size
    return tuple(parts)


def _without_waste(num_bytes: int) -> list[int]:
    """One size, or two if a lone value would be charged more than an eighth over its size."""
    needed = num_bytes + HEADER_BYTES + ALLOCATION_OVERHEAD_BYTES
    step = _class_step(needed)
    charged = -(-needed // step) * step
    head = charged - step - HEADER_BYTES - ALLOCATION_OVERHEAD_BYTES
    if num_bytes < _MIN_TAIL_BYTES or charged - needed <= needed // 8 or head <= 0:
        return [num_bytes]
    return [head, num_bytes - head]


def _class_step(num_bytes: int) -> int:
    """The distance between the sizes that jemalloc hands out near this one: four per doubling."""
    return int(1 << max(4, (num_bytes - 1).bit_length() - 3))


class KeySpace:
    """The names of one namespace's keys."""

    def __init__(self, digest: str, parts: tuple[Part, ...]) -> None:
        self._prefix = f"agentkv:1:{digest}:".encode()
        self._suffixes = [f":{part.start}-{part.stop}".encode() for part in parts]
        self.pattern = self._prefix + b"*"
        self.entry_pattern = self._prefix + b"*" + self._suffixes[0]
        self.manifest_key = manifest_key(digest)

    def part_keys(self, key: bytes) -> list[bytes]:
        """An entry's keys, in the order of its parts."""
        stem = b"%s{%s}" % (self._prefix, key.hex().encode())
        return [stem + suffix for suffix in self._suffixes]


def manifest_key(digest: str) -> bytes:
    """Where a namespace's fields lie."""
    return f"agentkv:1:manifest:{digest}".encode()


def make_header(
    part_key: bytes, part: Part, num_parts: int, num_bytes: int, write: int, data: memoryview
) -> bytes:
    """The header of one part. `write` is one number for all parts of one write of an entry."""
    checked = _HEADER.pack(_MAGIC, part.number, num_parts, num_bytes, write, 0)[:_CHECKED_BYTES]
    return checked + _checksum(part_key, checked, data).to_bytes(8, "little")


def written_as(
    part_key: bytes, part: Part, num_parts: int, num_bytes: int, header: bytearray, data: memoryview
) -> int | None:
    """The number of the write that a part comes from; None if it is not what it should be."""
    magic, number, of_parts, of_bytes, write, checksum = _HEADER.unpack(header)
    expected = (_MAGIC, part.number, num_parts, num_bytes)
    if (magic, number, of_parts, of_bytes) != expected:
        return None
    if checksum != _checksum(part_key, bytes(header[:_CHECKED_BYTES]), data):
        return None
    return int(write)


def _checksum(part_key: bytes, checked: bytes, data: memoryview) -> int:
    """Bound to the key, which holds the namespace, and to the rest of the header."""
    return xxhash.xxh3_64_intdigest(data, seed=xxhash.xxh3_64_intdigest(part_key + checked))
