"""Public bug report about copies that race with the reuse of their blocks.

Named after its report in `tests/BUG_REPORTS.md`. On a GPU these are stream races; here threads.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from agentkv.connectors import cpu_worker
from agentkv.connectors.cpu_worker import CpuCopyWorker
from agentkv.connectors.host_copies import HostCopies, PageCopies

NUM_BLOCKS = NUM_CHUNKS = 12
PAGE_BYTES = 512


class PausingCopies(HostCopies):
    """Stops for a random while between the layers of a block."""

    def _copy(self, tensor: int, copies: PageCopies, *, kind: int) -> None:
        if random.random() < 0.3:
            time.sleep(random.random() * 0.001)
        super()._copy(tensor, copies, kind=kind)


def _canary(key: int, layer: int) -> np.ndarray:
    return np.random.default_rng((key, layer)).integers(0, 256, PAGE_BYTES, dtype=np.uint8)


@dataclass
class Memory:
    """Blocks and chunks with what they should hold, and the jobs under way."""

    pages: list[np.ndarray]
    worker: CpuCopyWorker
    blocks: dict[int, int] = field(default_factory=dict)
    chunks: dict[int, int] = field(default_factory=dict)
    stores: dict[int, tuple[int, int]] = field(default_factory=dict)
    loads: dict[int, tuple[int, int]] = field(default_factory=dict)
    num_jobs: int = 0
    num_checked: int = 0

    def write(self, block: int, key: int) -> None:
        """Another request gets the block: vLLM first flushes the stores that still read it."""
        self._flush(block)
        for layer, pages in enumerate(self.pages):
            pages[block] = _canary(key, layer)
        self.blocks[block] = key

    def store(self, block: int, chunk: int) -> None:
        self.num_jobs += 1
        self.stores[self.num_jobs] = (block, chunk)
        self.chunks[chunk] = self.blocks[block]
        self.worker.submit_store(self.num_jobs, _gpu(block), CPULoadStoreSpec([chunk]))

    def load(self, chunk: int, block: int) -> None:
        self._flush(block)
        for pages in self.pages:
            pages[block] = 0xFF
        self.num_jobs += 1
        self.loads[self.num_jobs] = (block, chunk)
        self.blocks[block] = self.chunks[chunk]
        self.worker.submit_load(self.num_jobs, CPULoadStoreSpec([chunk]), _gpu(block))

    def poll(self) -> None:
        for result in self.worker.get_finished():
            if self.stores.pop(result.job_id, None) is None:
                block, _ = self.loads.pop(result.job_id)
                self.check(block)
        assert self.worker.take_refused() == []

    def check(self, block: int) -> None:
        self.num_checked += 1
        for layer, pages in enumerate(self.pages):
            expected = _canary(self.blocks[block], layer)
            assert (pages[block] == expected).all(), f"block {block} holds another's bytes"

    def free_blocks(self) -> list[int]:
        loading = {block for block, _ in self.loads.values()}
        return [block for block in range(NUM_BLOCKS) if block not in loading]

    def idle_chunks(self) -> list[int]:
        busy = {chunk for _, chunk in (*self.loads.values(), *self.stores.values())}
        return [chunk for chunk in range(NUM_CHUNKS) if chunk not in busy]

    def _flush(self, block: int) -> None:
        self.worker.wait({job for job, (source, _) in self.stores.items() if source == block})


def _gpu(block: int) -> GPULoadStoreSpec:
    return GPULoadStoreSpec([block], group_sizes=[1], block_indices=[0])


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    monkeypatch.setattr(cpu_worker, "_INLINE_BYTES", 0)  # everything goes to the threads
    monkeypatch.setattr(cpu_worker, "HostCopies", PausingCopies)
    tensors = [torch.zeros((NUM_BLOCKS, PAGE_BYTES), dtype=torch.int8) for _ in range(2)]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, PAGE_BYTES) for tensor in tensors],
        [[CanonicalKVCacheRef(0, PAGE_BYTES), CanonicalKVCacheRef(1, PAGE_BYTES)]],
    )
    dram = torch.zeros((NUM_CHUNKS, 2 * PAGE_BYTES), dtype=torch.int8)
    views = iter((dram[:, :PAGE_BYTES], dram[:, PAGE_BYTES:]))
    worker = CpuCopyWorker(
        caches, blocks_per_chunk=1, make_dram_view=lambda _: next(views), num_threads=3
    )
    yield Memory([tensor.view(torch.uint8).numpy() for tensor in tensors], worker)
    worker.shutdown()


def test_a24_two_thousand_copies_never_mix_up_blocks(memory: Memory) -> None:
    """Stores whose blocks are reused at once, and loads into blocks that were just freed."""
    rng = random.Random(24)
    for key in range(2000):
        memory.poll()
        block = rng.choice(memory.free_blocks())
        chunks = memory.idle_chunks()
        stored = [chunk for chunk in chunks if chunk in memory.chunks]
        move = rng.choice(["write", "store", "store", "load", "load"])
        if move == "write" or block not in memory.blocks:
            memory.write(block, key)
        elif move == "store" and chunks:
            memory.store(block, rng.choice(chunks))
            memory.write(rng.choice(memory.free_blocks()), key)
        elif move == "load" and stored:
            memory.load(rng.choice(stored), block)
    memory.worker.wait({*memory.loads, *memory.stores})
    memory.poll()
    for block in memory.blocks:
        memory.check(block)
    assert not memory.loads and not memory.stores and memory.num_checked > 500
