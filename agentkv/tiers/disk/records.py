"""The byte format of a segment file.

What: a header page, a table of 64-byte records, then the slots, one block each.
Why a table at the start: a restart reads megabytes of tables, not gigabytes of slots. Why sums of
three kinds: a damaged header drops the file, a torn table page drops its records, and damaged data
drops its entry when it is loaded; none of them can bring wrong bytes.

    page 0        header: magic, version, block_bytes, num_slots, generation, namespace; its sum
    page 1 ...    records: sum, data sum, stored at, key; all zero where there is no entry
    data_offset   slot 0, slot 1, ... each `slot_bytes` long

A record's sum depends on its slot and on the file's generation: a new generation voids all records
at once. The data sum depends on the key and the namespace: right bytes under a wrong key fail.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from agentkv.tiers.base import MAX_KEY_BYTES

PAGE_BYTES = 4096
RECORD_BYTES = 64
RECORDS_PER_PAGE = PAGE_BYTES // RECORD_BYTES
NO_RECORD = bytes(RECORD_BYTES)

_MAGIC = b"agentkv\x01"
_HEADER = struct.Struct("<8sQQQ32s")
_SUM = struct.Struct("<Q")
_RECORD = struct.Struct(f"<QQQB{MAX_KEY_BYTES}s3x")
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """How a segment file is divided."""

    block_bytes: int
    num_slots: int

    @property
    def slot_bytes(self) -> int:
        return _round_up(self.block_bytes)

    @property
    def table_bytes(self) -> int:
        return _round_up(self.num_slots * RECORD_BYTES)

    @property
    def data_offset(self) -> int:
        return PAGE_BYTES + self.table_bytes

    @property
    def file_bytes(self) -> int:
        return self.data_offset + self.num_slots * self.slot_bytes

    @property
    def disk_bytes(self) -> int:
        """With what the file system may need to keep track of the file's extents."""
        return self.file_bytes + 2 * PAGE_BYTES + self.file_bytes // 1024

    def slot_offset(self, slot: int) -> int:
        return self.data_offset + slot * self.slot_bytes

    @classmethod
    def fitting(cls, block_bytes: int, disk_bytes: int) -> Shape | None:
        """The largest that takes no more than this of the disk; None if not even one slot fits."""
        num_slots = disk_bytes // (_round_up(block_bytes) + RECORD_BYTES)
        while num_slots > 0:
            shape = cls(block_bytes, num_slots)
            if (excess_bytes := shape.disk_bytes - disk_bytes) <= 0:
                return shape
            num_slots -= max(1, excess_bytes // (shape.slot_bytes + RECORD_BYTES))
        return None


@dataclass(frozen=True, slots=True)
class Header:
    """What a segment file says of itself."""

    shape: Shape
    generation: int
    namespace: str

    def pack(self) -> bytes:
        """A whole page."""
        fields = _HEADER.pack(
            _MAGIC,
            self.shape.block_bytes,
            self.shape.num_slots,
            self.generation,
            self.namespace.encode(),
        )
        return (fields + _SUM.pack(xxh3_64_intdigest(fields))).ljust(PAGE_BYTES, b"\0")

    @classmethod
    def unpack(cls, page: memoryview) -> Header | None:
        """None if it is not a header or a damaged one."""
        fields = page[: _HEADER.size]
        magic, block_bytes, num_slots, generation, namespace = _HEADER.unpack(fields)
        (digest,) = _SUM.unpack_from(page, _HEADER.size)
        if magic != _MAGIC or digest != xxh3_64_intdigest(fields):
            return None
        return cls(Shape(block_bytes, num_slots), generation, namespace.decode("ascii", "replace"))


@dataclass(frozen=True, slots=True)
class Record:
    """What a table says of a slot."""

    key: bytes
    data_sum: int
    stored_at_us: int


def pack_record(record: Record, slot: int, generation: int) -> bytes:
    """64 bytes. The key is not longer than `MAX_KEY_BYTES`."""
    raw = _RECORD.pack(0, record.data_sum, record.stored_at_us, len(record.key), record.key)
    body = raw[_SUM.size :]
    return _SUM.pack(xxh3_64_intdigest(body, _record_seed(slot, generation))) + body


def unpack_table(table: memoryview, generation: int) -> Iterator[tuple[int, Record | None]]:
    """Slots that are not empty, with their records; None for a damaged one."""
    for slot, fields in enumerate(_RECORD.iter_unpack(table)):
        digest, data_sum, stored_at_us, key_bytes, key = fields
        if not (digest or key_bytes) and table[slot * RECORD_BYTES :][:RECORD_BYTES] == NO_RECORD:
            continue
        body = table[slot * RECORD_BYTES + _SUM.size : (slot + 1) * RECORD_BYTES]
        is_whole = digest == xxh3_64_intdigest(body, _record_seed(slot, generation))
        if is_whole and 0 < key_bytes <= MAX_KEY_BYTES:
            yield slot, Record(key[:key_bytes], data_sum, stored_at_us)
        else:
            yield slot, None


class DataSums:
    """Sums of blocks' bytes, bound to their keys and namespace."""

    def __init__(self, namespace: str) -> None:
        self._seed = xxh3_64_intdigest(namespace.encode())

    def of(self, key: bytes, data: memoryview) -> int:
        """Lets other threads run meanwhile."""
        return xxh3_64_intdigest(data, xxh3_64_intdigest(key, self._seed))


def _record_seed(slot: int, generation: int) -> int:
    return (generation + slot * 0x9E3779B97F4A7C15) & _MASK


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
