"""What of `agentkv bench store` needs vLLM: the DRAM tier's copies, and vLLM's own disk tier.

The copies run as in an engine on the CPU platform: pages of several layers, scattered over the KV
cache and over the DRAM tier, handed to `CpuCopyWorker` by the job. vLLM's disk tier, one file for
each block, is measured by the functions that it stores and loads with, in its own thread pool.
Loaded by name when vLLM is installed; the rest of the bench is in `agentkv.bench`.
"""

from __future__ import annotations

import functools
import mmap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.tiering.fs.io import batch_load_block, batch_store_block, probe_o_direct
from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool

from .cpu_worker import CpuCopyWorker


class EngineCopies:
    """A KV cache of random bytes, a DRAM tier of the same size, and a worker between them."""

    def __init__(
        self, *, num_blocks: int, block_bytes: int, num_layers: int, num_threads: int, seed: int
    ) -> None:
        """`block_bytes` is shared by all layers and must be a multiple of their number."""
        rng = np.random.default_rng(seed)
        page_bytes = block_bytes // num_layers
        pages = [
            torch.from_numpy(rng.integers(-128, 128, (num_blocks, page_bytes), np.int8))
            for _ in range(num_layers)
        ]
        self._pages = [page.numpy() for page in pages]
        self._expected = [page.copy() for page in self._pages]
        self._blocks = rng.permutation(num_blocks)
        self._chunks = rng.permutation(num_blocks)
        self._next_job = 0
        rows = torch.frombuffer(mmap.mmap(-1, num_blocks * block_bytes), dtype=torch.int8)
        rows.fill_(0)  # vLLM too touches every page of the tier at the start.
        columns = iter(rows.view(num_blocks, num_layers, page_bytes).unbind(1))
        self._worker = CpuCopyWorker(
            CanonicalKVCaches(
                [CanonicalKVCacheTensor(page, page_bytes) for page in pages],
                [[CanonicalKVCacheRef(layer, page_bytes) for layer in range(num_layers)]],
            ),
            blocks_per_chunk=1,
            make_dram_view=lambda _: next(columns),
            num_threads=num_threads,
        )

    def store(self) -> float:
        """Copies all blocks into the tier; returns seconds."""
        return self._run(self._worker.submit_store, is_store=True)

    def load(self) -> float:
        """Copies all blocks back, over memory that was wiped; returns seconds."""
        for page in self._pages:
            page.fill(0)
        return self._run(self._worker.submit_load, is_store=False)

    def is_intact(self) -> bool:
        """Whether the KV cache holds what it held at the start, and no load was refused."""
        pairs = zip(self._pages, self._expected, strict=True)
        return not self._worker.take_refused() and all(np.array_equal(*pair) for pair in pairs)

    def close(self) -> None:
        self._worker.shutdown()
        self._pages.clear()
        self._expected.clear()

    def _run(self, submit: Callable[..., bool], *, is_store: bool) -> float:
        self._next_job += 1
        blocks = GPULoadStoreSpec(self._blocks.tolist(), [len(self._blocks)], [0])
        chunks = CPULoadStoreSpec(self._chunks.tolist())
        began_s = time.perf_counter()
        submit(self._next_job, *((blocks, chunks) if is_store else (chunks, blocks)))
        self._worker.wait({self._next_job})
        seconds = time.perf_counter() - began_s
        self._worker.get_finished()
        return seconds


class BlockFiles:
    """vLLM's tier of one file for each block, in a directory of its own."""

    def __init__(self, folder: Path, memory: memoryview, block_bytes: int, num_threads: int):
        self._folder = folder
        self._memory = memory
        self._block_bytes = block_bytes
        self._num_threads = num_threads
        self.is_direct = bool(probe_o_direct(str(folder)))
        self._pool = DualQueueThreadPool(num_threads, num_threads, "bench-fs")
        self._num_jobs = 0

    def path(self, name: str) -> Path:
        """Where a block lies; in folders of folders, as vLLM has them."""
        return self._folder / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"

    def store(self, names: Sequence[str]) -> float:
        """Writes block i of the memory under `names[i]`; returns seconds. Raises OSError."""
        order = range(len(names))
        return self._run(self._pool.enqueue_store, batch_store_block, self._memory, names, order)

    def load(self, names: Sequence[str], order: Sequence[int], into: memoryview) -> float:
        """Reads the blocks in this order, block i to its place; returns seconds. Raises OSError."""
        return self._run(self._pool.enqueue_load, batch_load_block, into, names, order)

    def close(self) -> None:
        self._pool.shutdown()

    def _run(
        self,
        enqueue: Callable[..., None],
        move: Callable[..., None],
        memory: memoryview,
        names: Sequence[str],
        order: Sequence[int],
    ) -> float:
        """A job of as many parts as there are threads."""
        paths = [str(self.path(name)) for name in names]
        parts = [order[i :: self._num_threads] for i in range(self._num_threads)]
        tasks = [
            functools.partial(
                move,
                [paths[i] for i in part],
                memory,
                [i * self._block_bytes for i in part],
                self._block_bytes,
                self.is_direct,
            )
            for part in parts
            if part
        ]
        self._num_jobs += 1
        began_s = time.perf_counter()
        enqueue(self._num_jobs, len(tasks), tasks)
        self._pool.wait_idle()
        seconds = time.perf_counter() - began_s
        if not all(is_done for _, is_done, _ in self._pool.get_finished()):
            raise OSError("vLLM's disk tier failed; its log says why")
        return seconds
