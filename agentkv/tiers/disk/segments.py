"""One segment file: its table in memory and on the disk, and its slots.

What: reads and writes runs of slots, and keeps the table's pages on the disk in step with those in
memory. Why the table is kept in memory: 64 records share a page, and a page is written whole.
Where: `slab` opens and creates segments; `transfer` moves blocks in and out of them.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentkv.tiers.disk.guards import StallWatch
from agentkv.tiers.disk.io import BlockFile, page_memory
from agentkv.tiers.disk.records import (
    NO_RECORD,
    PAGE_BYTES,
    RECORD_BYTES,
    RECORDS_PER_PAGE,
    Header,
    Record,
    Shape,
    pack_record,
    unpack_table,
)


class DamagedSegmentError(Exception):
    """A file that is not a segment of this store: cut, overwritten, or of another one."""


class Segment:
    """Slots may be read and written by any thread; whose they are is the index's matter."""

    def __init__(self, number: int, path: Path, file: BlockFile, header: Header) -> None:
        self.number = number
        self.path = path
        self.shape = header.shape
        self._file = file
        self._header = header
        self._table = page_memory(header.shape.table_bytes)
        self._dirty_pages: set[int] = set()
        # Held while table pages are written, so that they are on the disk in the order of changes.
        self._table_lock = threading.Lock()

    @classmethod
    def create(
        cls,
        number: int,
        path: Path,
        shape: Shape,
        namespace: str,
        *,
        watch: StallWatch,
        is_direct: bool,
    ) -> Segment:
        """A new file of full size without entries. Raises OSError and then leaves no file."""
        file = BlockFile(path, watch, is_direct=is_direct, is_new=True)
        try:
            file.allocate(shape.file_bytes)
            segment = cls(number, path, file, Header(shape, secrets.randbits(64), namespace))
            segment._write_header()
        except OSError:
            file.close()
            path.unlink(missing_ok=True)
            raise
        return segment

    @classmethod
    def open(
        cls,
        number: int,
        path: Path,
        block_bytes: int,
        namespace: str,
        *,
        watch: StallWatch,
        is_direct: bool,
    ) -> Segment:
        """A file that is there. Raises OSError and DamagedSegmentError; does not change it."""
        file = BlockFile(path, watch, is_direct=is_direct, is_new=False)
        page = page_memory(PAGE_BYTES)
        header = Header.unpack(page) if file.read([page], 0) == PAGE_BYTES else None
        if header is None or (header.shape.block_bytes, header.namespace) != (
            block_bytes,
            namespace,
        ):
            raise DamagedSegmentError("its header is damaged or of another store")
        if file.size_bytes != header.shape.file_bytes:
            raise DamagedSegmentError("its size is not what its header says")
        segment = cls(number, path, file, header)
        if file.read([segment._table], PAGE_BYTES) != len(segment._table):
            raise DamagedSegmentError("its table is cut")
        return segment

    def records(self) -> tuple[dict[int, Record], int]:
        """What the table says, by slot, and how many records were damaged. Those are erased."""
        records: dict[int, Record] = {}
        num_damaged = 0
        for slot, record in unpack_table(self._table, self._header.generation):
            if slot < self.shape.num_slots and record is not None:
                records[slot] = record
            else:
                num_damaged += 1
                self._put(slot, NO_RECORD)
        return records, num_damaged

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has deleted the file. Does not wait for the device."""
        return self._file.is_deleted

    @property
    def is_direct(self) -> bool:
        return self._file.is_direct

    def read_slots(self, first_slot: int, views: Sequence[memoryview]) -> int:
        """Reads on from a slot; returns how many bytes came. Raises OSError."""
        return self._file.read(views, self.shape.slot_offset(first_slot))

    def write_slots(self, first_slot: int, views: Sequence[memoryview]) -> None:
        """Writes on from a slot. Raises OSError."""
        self._file.write(views, self.shape.slot_offset(first_slot))

    def set_records(self, records: Mapping[int, Record | None]) -> None:
        """Writes the records of slots, None for none, page by page.

        Raises OSError. Then the slots have no records in memory, and their pages are written with
        the next that are.
        """
        with self._table_lock:
            for slot, record in records.items():
                generation = self._header.generation
                raw = NO_RECORD if record is None else pack_record(record, slot, generation)
                self._put(slot, raw)
            try:
                self._flush()
            except OSError:
                for slot in records:
                    self._put(slot, NO_RECORD)
                raise

    def erase_all(self) -> None:
        """Sets all slots to no record and waits until that would survive a power loss.

        Raises OSError; then the file should be deleted. The header's one page does it: from then
        on all that the table says is of another generation.
        """
        with self._table_lock:
            self._header = Header(self.shape, secrets.randbits(64), self._header.namespace)
            self._table[:] = bytes(len(self._table))
            self._dirty_pages.clear()
            self._write_header()
            self._file.write([self._table], PAGE_BYTES)
            self._file.sync()

    def _put(self, slot: int, record: bytes) -> None:
        start = slot * RECORD_BYTES
        if self._table[start : start + RECORD_BYTES] != record:
            self._table[start : start + RECORD_BYTES] = record
            self._dirty_pages.add(slot // RECORDS_PER_PAGE)

    def _flush(self) -> None:
        for page in sorted(self._dirty_pages):
            start = page * PAGE_BYTES
            self._file.write([self._table[start : start + PAGE_BYTES]], PAGE_BYTES + start)
            self._dirty_pages.discard(page)

    def _write_header(self) -> None:
        page = page_memory(PAGE_BYTES)
        page[:] = self._header.pack()
        self._file.write([page], 0)
