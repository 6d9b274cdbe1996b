"""The checksums of the DRAM tier's chunks, shared between the processes that fill and read them.

The copy worker notes one when it has stored a chunk and verifies it before it loads one. The tiers
below DRAM are filled and read in the scheduler's process: what leaves DRAM must be what the worker
stored, and what comes back must be verifiable by the worker. So the table lies in shared memory,
beside the region of vLLM's that holds the chunks. One row of the table for each worker.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any

import numpy as np
import xxhash

from agentkv.errors import ConfigError

Sums = np.ndarray[Any, np.dtype[np.uint64]]

NO_SUM = 0
"""Marks a chunk without a checksum, which no load accepts."""


def checksum(data: Any) -> int:
    """xxh3, never `NO_SUM`: one in 2^64 real chunks pays with a miss."""
    return xxhash.xxh3_64_intdigest(data) or 1


class ChunkSums:
    """Of shape (workers, chunks). `page_bytes` of each chunk belong to one worker.

    Without a path the table is this object's own. Raises ConfigError if there is no room for it.
    """

    def __init__(
        self, *, num_workers: int, num_chunks: int, page_bytes: int, path: str | None = None
    ) -> None:
        self.page_bytes = page_bytes
        self._path = path
        self._is_creator = False
        shape = (num_workers, num_chunks)
        if path is None:
            self._table: Sums = np.zeros(shape, np.uint64)
        else:
            self._table = self._map(path, 8 * num_workers * num_chunks).reshape(shape)

    def of_worker(self, rank: int) -> Sums:
        """The worker's part, to be read and written in place."""
        part: Sums = self._table[rank]
        return part

    def matches(self, chunk_id: int, row: memoryview) -> bool:
        """Whether every worker's page of this chunk is what was noted."""
        noted = self._table[:, chunk_id].tolist()
        return all(
            total != NO_SUM and checksum(page) == total
            for total, page in zip(noted, self._pages(row), strict=True)
        )

    def note(self, chunk_id: int, row: memoryview) -> None:
        """The chunk was filled with verified content."""
        self._table[:, chunk_id] = [checksum(page) for page in self._pages(row)]

    def forget(self, chunk_id: int) -> None:
        """The chunk is about to be overwritten."""
        self._table[:, chunk_id] = NO_SUM

    def take_name_away(self) -> None:
        """All processes have mapped the table: without a name it goes when the last one ends."""
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._is_creator = False

    def close(self) -> None:
        """Removes the name if this object made it and nobody took it away."""
        if self._is_creator:
            self.take_name_away()

    def _pages(self, row: memoryview) -> list[memoryview]:
        size = self.page_bytes
        return [row[rank * size : (rank + 1) * size] for rank in range(len(self._table))]

    def _map(self, path: str, num_bytes: int) -> Sums:
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            self._is_creator = True
        except FileExistsError:
            fd = os.open(path, os.O_RDWR)
        try:
            # Zeros, and room for them: a lack of it found later would be a fatal signal.
            os.posix_fallocate(fd, 0, num_bytes)
            shared = mmap.mmap(fd, num_bytes)
        except OSError as error:
            self.close()
            raise ConfigError(
                f"{path}: no room for {num_bytes} bytes of checksums ({error.strerror}); give "
                "/dev/shm more, or make dram.size_bytes less"
            ) from None
        finally:
            os.close(fd)
        return np.frombuffer(shared, np.uint64)
