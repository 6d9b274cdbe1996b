"""The system calls of the disk tier, and the memory they need.

What: files read and written at offsets in several pieces of memory at once, past the page cache
where the file system lets us. Why past it: the DRAM tier is our cache; buffered writes are slower
and uneven. Where: `segments` keeps a file each; every call that may wait for the device is
made here, under a watch, with the GIL released.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import weakref
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from agentkv.tiers.disk.guards import StallWatch
from agentkv.tiers.disk.records import PAGE_BYTES

# Looked up here at each call: the one place where tests make a device fail or stall.
preadv = os.preadv
pwritev = os.pwritev
fdatasync = os.fdatasync
posix_fallocate = os.posix_fallocate

_LARGE_BYTES = 1 << 20
_HUGE_PAGE_BYTES = 2 << 20
_O_DIRECT = getattr(os, "O_DIRECT", 0)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CANNOT_ALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)


class BlockFile:
    """An open file. Closed when nobody refers to it any more, so never under a running call."""

    def __init__(self, path: Path, watch: StallWatch, *, is_direct: bool, is_new: bool) -> None:
        """Raises OSError; a new file must not exist."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= (os.O_CREAT | os.O_EXCL) if is_new else 0
        self._fd = os.open(path, flags | (_O_DIRECT if is_direct else 0), 0o600)
        self._watch = watch
        self.is_direct = is_direct
        self.close = weakref.finalize(self, os.close, self._fd)
        """Idempotent; only for a file that no other thread uses."""
        self.close.atexit = False  # Threads may still be at work then.

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more, or is out of reach."""
        try:
            return os.fstat(self._fd).st_nlink == 0
        except OSError:
            return True

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def allocate(self, num_bytes: int) -> None:
        """Gives the file its size and the disk space for it. Raises OSError."""
        with self._watch.io():
            try:
                posix_fallocate(self._fd, 0, num_bytes)
            except OSError as error:
                if error.errno not in _CANNOT_ALLOCATE:
                    raise
                os.ftruncate(self._fd, num_bytes)

    def read(self, views: Sequence[memoryview], offset: int) -> int:
        """Fills the views; returns how many bytes there were before the file's end.

        Raises OSError. With direct I/O all addresses, sizes and the offset are whole pages.
        """
        done = 0
        rest = list(views)
        while rest:
            with self._watch.io():
                count = preadv(self._fd, rest, offset + done)
            if count == 0:
                break
            done += count
            rest = _after(rest, count)
            if rest and self.is_direct and count % PAGE_BYTES:
                break  # The file ends within a page; reading on would be refused.
        return done

    def write(self, views: Sequence[memoryview], offset: int) -> None:
        """Writes all of the views. Raises OSError. With direct I/O as for `read`."""
        done = 0
        rest = list(views)
        while rest:
            with self._watch.io():
                count = pwritev(self._fd, rest, offset + done)
            if count == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += count
            rest = _after(rest, count)

    def sync(self) -> None:
        """Waits until what was written would survive a power loss. Raises OSError."""
        with self._watch.io():
            fdatasync(self._fd)


def reason_of(error: OSError) -> str:
    """What to count an error as."""
    return "disk_full" if error.errno in _NO_SPACE else "io_error"


def takes_direct_io(folder: Path, files: Collection[Path], watch: StallWatch) -> bool:
    """Tries direct I/O: a read of one of the files, which needs no space, else a new small file.

    Raises OSError if nothing can be written.
    """
    if any(_reads_directly(path, watch) for path in list(files)[:3]):
        return True
    path = folder / "probe"
    path.unlink(missing_ok=True)
    page = page_memory(PAGE_BYTES)
    try:
        BlockFile(path, watch, is_direct=True, is_new=True).write([page], 0)
        return _reads_directly(path, watch)
    except OSError as error:
        if reason_of(error) == "disk_full" or error.errno in (errno.EROFS, errno.EACCES):
            raise
        return False
    finally:
        path.unlink(missing_ok=True)


def _reads_directly(path: Path, watch: StallWatch) -> bool:
    try:
        file = BlockFile(path, watch, is_direct=True, is_new=False)
        return file.read([page_memory(PAGE_BYTES)], 0) == PAGE_BYTES
    except OSError:
        return False


def page_memory(num_bytes: int) -> memoryview:
    """Zeroed memory that begins at a page's border, in large pages if it is large.

    A device takes a block in a few large pages 1.4 times as fast as in hundreds of small ones.
    """
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if num_bytes >= _LARGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # Not every kernel has them.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def is_page_aligned(view: memoryview) -> bool:
    """Whether direct I/O can use this memory as it is."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address % PAGE_BYTES == 0 and view.nbytes % PAGE_BYTES == 0


def copy_bytes(source: memoryview, target: memoryview) -> None:
    """Copies `source` to the front of `target` and lets other threads run meanwhile."""
    np.copyto(
        np.frombuffer(target, np.uint8, len(source)), np.frombuffer(source, np.uint8, len(source))
    )


class BounceMemory(threading.local):
    """Page-aligned memory, one piece per thread, for what direct I/O cannot use as it is."""

    def __init__(self) -> None:
        self._memory = page_memory(PAGE_BYTES)

    def of(self, num_bytes: int) -> memoryview:
        """Valid until the thread's next call; holds anything."""
        if len(self._memory) < num_bytes:
            # At least one huge page: the device takes small ones at half the speed.
            self._memory = page_memory(max(num_bytes, _HUGE_PAGE_BYTES))
        return self._memory[:num_bytes]


def _after(views: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of the views when this much of them is done."""
    for index, view in enumerate(views):
        if num_bytes < len(view):
            return [view[num_bytes:], *views[index + 1 :]]
        num_bytes -= len(view)
    return []
