"""Reads a segment file without the right to change it.

What: its header and table, and the blocks in its slots. Why not by `segments`: that opens
files for writing, and what only looks must not be able to change anything.
Where: `inspect` and `verify`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentkv.tiers.disk.records import PAGE_BYTES, Header, Record, Shape, unpack_table


@dataclass(frozen=True, slots=True)
class Table:
    """What a segment file says that it holds, by slot."""

    shape: Shape
    records: dict[int, Record]
    damaged_slots: list[int]


def read_table(path: Path, digest: str) -> Table | str:
    """The table, or why there is none."""
    try:
        with opened(path) as fd:
            return _table(fd, digest)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor for reading; what was read does not stay in the page cache. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_into(fd: int, view: memoryview, offset: int) -> bool:
    """Whether all of it could be filled. Raises OSError."""
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], offset + done)
        if count == 0:
            return False
        done += count
    return True


def _table(fd: int, digest: str) -> Table | str:
    page = memoryview(bytearray(PAGE_BYTES))
    header = Header.unpack(page) if read_into(fd, page, 0) else None
    if header is None:
        return "its header is damaged"
    if header.namespace != digest:
        return "it is of another namespace"
    shape = header.shape
    if os.fstat(fd).st_size != shape.file_bytes:
        return "its size is not what its header says"
    table = memoryview(bytearray(shape.table_bytes))
    if not read_into(fd, table, PAGE_BYTES):
        return "its table is cut"
    records: dict[int, Record] = {}
    damaged: list[int] = []
    for slot, record in unpack_table(table, header.generation):
        if record is not None and slot < shape.num_slots:
            records[slot] = record
        else:
            damaged.append(slot)
    return Table(shape, records, damaged)
