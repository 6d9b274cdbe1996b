"""The blocks that are moved: random bytes in memory of the kind that the DRAM tier has.

Why shared memory: the DRAM tier lies in a shared mapping, whose small pages make system calls
dearer than an allocator's large ones. Why all of it is touched first: a page's first use costs more
than its copy.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class BlockMemory:
    """`num_blocks` blocks side by side, page-aligned."""

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self._memory = mmap.mmap(-1, num_blocks * block_bytes)
        self.array: Bytes = np.frombuffer(self._memory, np.uint8)
        self.wipe()

    @classmethod
    def random(cls, num_blocks: int, block_bytes: int, seed: int) -> BlockMemory:
        """Bytes that no file system or server can compress."""
        blocks = cls(num_blocks, block_bytes)
        generator = np.random.default_rng(seed)
        for view in blocks.views():
            view[:] = generator.bytes(block_bytes)
        return blocks

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    def view(self) -> memoryview:
        """All of it, writable."""
        return memoryview(self._memory)

    def views(self) -> list[memoryview]:
        """Each block, writable."""
        size, whole = self.block_bytes, self.view()
        return [whole[i * size : (i + 1) * size] for i in range(self.num_blocks)]

    def wipe(self) -> None:
        """So that a load that did nothing is seen."""
        self.array.fill(0)

    def equals(self, other: BlockMemory) -> bool:
        return bool(np.array_equal(self.array, other.array))
