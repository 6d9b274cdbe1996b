"""Copies KV blocks between vLLM's CPU KV cache and the DRAM tier.

vLLM's own offloading worker needs CUDA; on the CPU platform this one takes its place behind the
same interface. A job is split into tasks over a small thread pool (NumPy's row copies release the
GIL), loads before stores, so a copy never blocks an engine step. Every page stored gets an xxh3
checksum that is verified after the load; a page that fails is reported by its block and recomputed.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xxhash
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

logger = init_logger("vllm.agentkv")

Rows = np.ndarray[Any, np.dtype[np.uint8]]

_TASK_BYTES = 4 << 20
_LOAD, _STORE = 0, 1
_NO_CHECKSUM = 0


@dataclass(frozen=True, slots=True)
class PageCopy:
    """One KV block of one group against its place in a DRAM chunk."""

    group: int
    block_id: int
    chunk_id: int
    sub: int


@dataclass(slots=True)
class _Job:
    job_id: int
    kind: int
    tasks_left: int
    started_s: float
    num_bytes: int = 0
    done: threading.Event = field(default_factory=threading.Event)


class CopyPool:
    """Threads that run callables, the most urgent kind first, then in order of submission."""

    def __init__(self, num_threads: int) -> None:
        self._queue: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = (
            queue.PriorityQueue()
        )
        self._order = itertools.count()
        self._threads = [
            threading.Thread(target=self._run, name=f"agentkv-copy-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, kind: int, task: Callable[[], None]) -> None:
        self._queue.put((kind, next(self._order), task))

    def close(self) -> None:
        """Runs what is queued, then ends the threads."""
        for _ in self._threads:
            self._queue.put((_STORE + 1, next(self._order), None))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            task = self._queue.get()[2]
            if task is None:
                return
            task()


class CpuCopyWorker(OffloadingWorker):
    """`OffloadingWorker` over `CanonicalKVCaches` in host memory.

    `make_dram_view(page_bytes)` returns the DRAM tier's int8 view of shape (chunks, page_bytes) for
    the next cache tensor; a chunk holds `blocks_per_chunk` pages of each tensor. `release` is
    called once at shutdown, after the last copy.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        *,
        blocks_per_chunk: int,
        make_dram_view: Callable[[int], torch.Tensor],
        num_threads: int,
        release: Callable[[], None] | None = None,
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._release = release
        self._pages: list[Rows] = []
        self._dram: list[Rows] = []
        self._sums: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        for cache in kv_caches.tensors:
            page_bytes = cache.page_size_bytes
            pages = cache.tensor.view(torch.uint8).numpy()
            view = make_dram_view(page_bytes * blocks_per_chunk)
            num_chunks = view.shape[0]
            rows = view.view(torch.uint8).numpy()
            self._pages.append(pages)
            self._dram.append(rows)
            self._sums.append(np.zeros((num_chunks, blocks_per_chunk), dtype=np.uint64))
        self._tensors_of_group = [
            tuple(dict.fromkeys(ref.tensor_idx for ref in refs))
            for refs in kv_caches.group_data_refs
        ]
        self._pool = CopyPool(num_threads)
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._finished: deque[TransferResult] = deque()
        self._refused: deque[tuple[int, PageCopy]] = deque()

    # --- OffloadingWorker ---

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        self._submit(job_id, _STORE, src_spec, dst_spec)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        self._submit(job_id, _LOAD, dst_spec, src_spec)
        return True

    def get_finished(self) -> list[TransferResult]:
        finished: list[TransferResult] = []
        while self._finished:
            finished.append(self._finished.popleft())
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Blocks until the copies of these jobs are done; unknown and finished ids are ignored."""
        with self._lock:
            jobs = [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]
        for job in jobs:
            job.done.wait()

    def shutdown(self) -> None:
        self._pool.close()
        self._pages.clear()
        self._dram.clear()
        if self._release is not None:
            self._release()
            self._release = None

    # --- failures ---

    def take_refused(self) -> list[tuple[int, PageCopy]]:
        """(job id, page) of every load that was refused since the last call.

        A page is here no later than its job is in `get_finished`.
        """
        refused: list[tuple[int, PageCopy]] = []
        while self._refused:
            refused.append(self._refused.popleft())
        return refused

    # --- parts ---

    def _submit(
        self, job_id: int, kind: int, gpu_spec: GPULoadStoreSpec, dram_spec: LoadStoreSpec
    ) -> None:
        copies = list(plan_copies(gpu_spec, dram_spec.block_ids, self._blocks_per_chunk))
        tasks = list(self._split(copies))
        job = _Job(job_id, kind, len(tasks), time.perf_counter())
        if not tasks:
            self._finish(job)
            return
        with self._lock:
            self._jobs[job_id] = job
        for task in tasks:
            self._pool.submit(kind, lambda task=task: self._run_task(job, task))  # type: ignore[misc]

    def _split(self, copies: Sequence[PageCopy]) -> Iterator[list[PageCopy]]:
        """Runs of pages of about `_TASK_BYTES`, so that threads share large jobs."""
        task: list[PageCopy] = []
        task_bytes = 0
        for copy in copies:
            task.append(copy)
            task_bytes += self._page_bytes(copy)
            if task_bytes >= _TASK_BYTES:
                yield task
                task, task_bytes = [], 0
        if task:
            yield task

    def _page_bytes(self, copy: PageCopy) -> int:
        return sum(self._pages[t].shape[1] for t in self._tensors_of_group[copy.group])

    def _run_task(self, job: _Job, copies: Sequence[PageCopy]) -> None:
        copy_page = self._store_page if job.kind == _STORE else self._load_page
        num_bytes = 0
        for copy in copies:
            try:
                is_good = copy_page(copy)
            except Exception:
                # Whatever went wrong with one page is a miss of that page, never a dead worker.
                logger.exception("agentkv: copy of KV block %d failed", copy.block_id)
                is_good = False
                self._forget(copy)
            if is_good:
                num_bytes += self._page_bytes(copy)
            elif job.kind == _LOAD:
                self._refused.append((job.job_id, copy))
        with self._lock:
            job.num_bytes += num_bytes
            job.tasks_left -= 1
            is_last = job.tasks_left == 0
        if is_last:
            self._finish(job)

    def _finish(self, job: _Job) -> None:
        self._finished.append(
            TransferResult(
                job_id=job.job_id,
                success=True,
                transfer_size=job.num_bytes,
                transfer_time=time.perf_counter() - job.started_s,
            )
        )
        with self._lock:
            self._jobs.pop(job.job_id, None)
        job.done.set()

    def _store_page(self, copy: PageCopy) -> bool:
        for tensor in self._tensors_of_group[copy.group]:
            source = self._pages[tensor][copy.block_id]
            target = self._slot(tensor, copy)
            np.copyto(target, source)
            self._sums[tensor][copy.chunk_id, copy.sub] = _checksum(target)
        return True

    def _load_page(self, copy: PageCopy) -> bool:
        is_good = True
        for tensor in self._tensors_of_group[copy.group]:
            target = self._pages[tensor][copy.block_id]
            np.copyto(target, self._slot(tensor, copy))
            is_good &= _checksum(target) == int(self._sums[tensor][copy.chunk_id, copy.sub])
        return is_good

    def _forget(self, copy: PageCopy) -> None:
        for tensor in self._tensors_of_group[copy.group]:
            self._sums[tensor][copy.chunk_id, copy.sub] = _NO_CHECKSUM

    def _slot(self, tensor: int, copy: PageCopy) -> Rows:
        page_bytes = self._pages[tensor].shape[1]
        return self._dram[tensor][
            copy.chunk_id, copy.sub * page_bytes : (copy.sub + 1) * page_bytes
        ]


def plan_copies(
    gpu_spec: GPULoadStoreSpec, chunk_ids: np.ndarray[Any, Any], blocks_per_chunk: int
) -> Iterator[PageCopy]:
    """Pairs each KV block of a job with its chunk and its place inside the chunk.

    The first block of a group may lie inside a chunk: `block_indices` gives its logical index.
    """
    block_start = chunk_start = 0
    for group, (num_blocks, first_index) in enumerate(
        zip(gpu_spec.group_sizes, gpu_spec.block_indices, strict=True)
    ):
        if num_blocks == 0:
            continue
        skipped = first_index % blocks_per_chunk
        blocks = gpu_spec.block_ids[block_start : block_start + num_blocks].tolist()
        for offset, block_id in enumerate(blocks, start=skipped):
            chunk, sub = divmod(offset, blocks_per_chunk)
            yield PageCopy(group, block_id, int(chunk_ids[chunk_start + chunk]), sub)
        block_start += num_blocks
        chunk_start += -(-(num_blocks + skipped) // blocks_per_chunk)


def _checksum(page: Rows) -> int:
    # 0 marks a page without a checksum; one in 2^64 real pages pays with a miss.
    return xxhash.xxh3_64_intdigest(page.data) or 1
