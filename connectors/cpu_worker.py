"""Copies KV blocks between vLLM's CPU KV cache and the DRAM tier.

vLLM's own offloading worker needs CUDA; on the CPU platform this one takes its place behind the
same interface. Small jobs are copied at once (handing them to a thread would take longer), large
ones by a small thread pool, loads before stores, so a copy never blocks an engine step. Threads
copy in large NumPy operations, which release the GIL, and hold it for little else: the model's own
thread needs it. Every chunk stored gets an xxh3 checksum that is verified before it is loaded; what
fails is reported by its KV block and recomputed.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
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
Indices = np.ndarray[Any, np.dtype[np.int64]]

_INLINE_BYTES = 1 << 20
_TASK_BYTES = 4 << 20
_LOAD, _STORE = 0, 1
_NO_CHECKSUM = 0
_LONG_RUN = 4  # KV blocks; from here on one copy per run beats gathering and scattering


@dataclass(frozen=True, slots=True)
class PageCopies:
    """KV blocks of one group against their places in DRAM chunks, as parallel arrays.

    Block `blocks[i]` lies in chunk `chunks[i]` at position `subs[i]` of its blocks.
    """

    group: int
    blocks: Indices
    chunks: Indices
    subs: Indices

    def __len__(self) -> int:
        return len(self.blocks)

    def part(self, start: int, stop: int) -> PageCopies:
        return PageCopies(
            self.group, self.blocks[start:stop], self.chunks[start:stop], self.subs[start:stop]
        )

    def where(self, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> PageCopies:
        return PageCopies(self.group, self.blocks[keep], self.chunks[keep], self.subs[keep])


@dataclass(frozen=True, slots=True)
class RefusedPage:
    """A KV block whose load was refused, and the DRAM chunk at fault."""

    job_id: int
    block_id: int
    chunk_id: int


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


class HostCopies:
    """The copies themselves: KV cache pages to and from rows of the DRAM tier, with checksums.

    vLLM's scheduler sees to it that a chunk or block has one transfer at a time, so threads need no
    lock here.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        *,
        blocks_per_chunk: int,
        make_dram_view: Callable[[int], torch.Tensor],
    ) -> None:
        self.blocks_per_chunk = blocks_per_chunk
        self._pages: list[Rows] = []
        self._dram: list[Rows] = []
        for cache in kv_caches.tensors:
            view = make_dram_view(cache.page_size_bytes * blocks_per_chunk)
            self._pages.append(cache.tensor.view(torch.uint8).numpy())
            self._dram.append(view.view(torch.uint8).numpy())
        first = self._dram[0]
        row_bytes = sum(rows.shape[1] for rows in self._dram)
        # The tensors' parts of a chunk lie side by side: one row is one checksum.
        self._rows: Rows = np.lib.stride_tricks.as_strided(
            first, (first.shape[0], row_bytes), (first.strides[0], 1)
        )
        self._sums = np.zeros(first.shape[0], dtype=np.uint64)
        self._tensors_of_group = [
            tuple(dict.fromkeys(ref.tensor_idx for ref in refs))
            for refs in kv_caches.group_data_refs
        ]

    def block_bytes(self, group: int) -> int:
        return sum(self._pages[tensor].shape[1] for tensor in self._tensors_of_group[group])

    def store(self, copies: PageCopies) -> None:
        """Copies blocks into their chunks and notes the chunks' checksums.

        A chunk's blocks must come in one call.
        """
        self._sums[copies.chunks] = _NO_CHECKSUM
        for tensor in self._tensors_of_group[copies.group]:
            self._copy(tensor, copies, kind=_STORE)
        for chunk in np.unique(copies.chunks).tolist():
            self._sums[chunk] = _checksum(self._rows[chunk])

    def load(self, copies: PageCopies) -> PageCopies:
        """Copies blocks out of their chunks; returns those whose chunk does not match its checksum.

        Refused blocks keep what they held.
        """
        is_good = {
            chunk: _checksum(self._rows[chunk]) == int(self._sums[chunk])
            for chunk in np.unique(copies.chunks).tolist()
        }
        keep = np.fromiter((is_good[c] for c in copies.chunks.tolist()), bool, len(copies))
        good = copies if keep.all() else copies.where(keep)
        for tensor in self._tensors_of_group[copies.group]:
            self._copy(tensor, good, kind=_LOAD)
        return copies.where(~keep)

    def release(self) -> None:
        self._pages.clear()
        self._dram.clear()
        self._rows = np.empty((0, 0), np.uint8)

    def _copy(self, tensor: int, copies: PageCopies, *, kind: int) -> None:
        pages, dram = self._pages[tensor], self._dram[tensor]
        if self.blocks_per_chunk > 1:
            self._copy_parts(pages, dram, copies, kind=kind)
            return
        runs = list(_runs(copies))
        if len(copies) >= _LONG_RUN * len(runs):
            for start, stop in runs:
                block, chunk = int(copies.blocks[start]), int(copies.chunks[start])
                page_slice = pages[block : block + stop - start]
                dram_slice = dram[chunk : chunk + stop - start]
                if kind == _STORE:
                    np.copyto(dram_slice, page_slice)
                else:
                    np.copyto(page_slice, dram_slice)
        elif kind == _STORE:
            dram[copies.chunks] = pages[copies.blocks]
        else:
            pages[copies.blocks] = dram[copies.chunks]

    def _copy_parts(self, pages: Rows, dram: Rows, copies: PageCopies, *, kind: int) -> None:
        size = pages.shape[1]
        for block, chunk, sub in zip(
            copies.blocks.tolist(), copies.chunks.tolist(), copies.subs.tolist(), strict=True
        ):
            slot = dram[chunk, sub * size : (sub + 1) * size]
            if kind == _STORE:
                np.copyto(slot, pages[block])
            else:
                np.copyto(pages[block], slot)


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
        self.copies = HostCopies(
            kv_caches, blocks_per_chunk=blocks_per_chunk, make_dram_view=make_dram_view
        )
        self._release = release
        self._pool = CopyPool(num_threads)
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._finished: deque[TransferResult] = deque()
        self._refused: deque[RefusedPage] = deque()

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
        if self._jobs and not self._finished:
            time.sleep(0)  # An engine that steps without computing would keep the GIL from us.
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
        self.copies.release()
        if self._release is not None:
            self._release()
            self._release = None

    # --- failures ---

    def take_refused(self) -> list[RefusedPage]:
        """Every block whose load was refused since the last call.

        A block is here no later than its job is in `get_finished`.
        """
        refused: list[RefusedPage] = []
        while self._refused:
            refused.append(self._refused.popleft())
        return refused

    # --- parts ---

    def _submit(
        self, job_id: int, kind: int, gpu_spec: GPULoadStoreSpec, dram_spec: LoadStoreSpec
    ) -> None:
        per_chunk = self.copies.blocks_per_chunk
        planned = list(plan_copies(gpu_spec, dram_spec.block_ids, per_chunk))
        total_bytes = sum(len(c) * self.copies.block_bytes(c.group) for c in planned)
        tasks = [task for copies in planned for task in self._split(copies)]
        job = _Job(job_id, kind, len(tasks), time.perf_counter())
        if not tasks:
            self._finish(job)
            return
        with self._lock:
            self._jobs[job_id] = job
        if total_bytes <= _INLINE_BYTES:
            for task in tasks:
                self._run_task(job, task)
            return
        for task in tasks:
            self._pool.submit(kind, lambda task=task: self._run_task(job, task))  # type: ignore[misc]

    def _split(self, copies: PageCopies) -> Iterator[PageCopies]:
        """Parts of about `_TASK_BYTES` that share no chunk, for several threads to work on."""
        per_task = max(1, _TASK_BYTES // self.copies.block_bytes(copies.group))
        start = 0
        while start < len(copies):
            stop = min(start + per_task, len(copies))
            while stop < len(copies) and copies.chunks[stop] == copies.chunks[stop - 1]:
                stop += 1
            yield copies.part(start, stop)
            start = stop

    def _run_task(self, job: _Job, copies: PageCopies) -> None:
        refused = copies
        try:
            if job.kind == _STORE:
                self.copies.store(copies)
                refused = copies.part(0, 0)
            else:
                refused = self.copies.load(copies)
        except Exception:
            # Whatever went wrong is a miss of these blocks, never a dead worker. A chunk that was
            # not stored whole has no checksum and will be refused.
            logger.exception("agentkv: copy of %d KV blocks failed", len(copies))
        if job.kind == _LOAD:
            self._refused.extend(
                RefusedPage(job.job_id, block, chunk)
                for block, chunk in zip(
                    refused.blocks.tolist(), refused.chunks.tolist(), strict=True
                )
            )
        num_copied = len(copies) - len(refused)
        with self._lock:
            job.num_bytes += num_copied * self.copies.block_bytes(copies.group)
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


def plan_copies(
    gpu_spec: GPULoadStoreSpec, chunk_ids: np.ndarray[Any, Any], blocks_per_chunk: int
) -> Iterator[PageCopies]:
    """Pairs each KV block of a job with its chunk and its place inside the chunk, group by group.

    The first block of a group may lie inside a chunk: `block_indices` gives its logical index.
    """
    block_start = chunk_start = 0
    for group, (num_blocks, first_index) in enumerate(
        zip(gpu_spec.group_sizes, gpu_spec.block_indices, strict=True)
    ):
        if num_blocks == 0:
            continue
        skipped = first_index % blocks_per_chunk
        places = np.arange(skipped, skipped + num_blocks)
        yield PageCopies(
            group,
            np.asarray(gpu_spec.block_ids[block_start : block_start + num_blocks], np.int64),
            np.asarray(chunk_ids[chunk_start + places // blocks_per_chunk], np.int64),
            places % blocks_per_chunk,
        )
        block_start += num_blocks
        chunk_start += -(-(num_blocks + skipped) // blocks_per_chunk)


def _runs(copies: PageCopies) -> Iterator[tuple[int, int]]:
    """Stretches [start, stop) in which blocks and chunks both count up by one."""
    breaks = np.flatnonzero((np.diff(copies.blocks) != 1) | (np.diff(copies.chunks) != 1)) + 1
    edges = [0, *breaks.tolist(), len(copies)]
    yield from (pair for pair in itertools.pairwise(edges) if pair[0] < pair[1])


def _checksum(row: Rows) -> int:
    # 0 marks a chunk without a checksum; one in 2^64 real chunks pays with a miss.
    return xxhash.xxh3_64_intdigest(row.data) or 1
