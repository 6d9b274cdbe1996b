"""Copies KV blocks between vLLM's CPU KV cache and the DRAM tier.

vLLM's own offloading worker needs CUDA; on the CPU platform this one takes its place behind the
same interface. Small jobs are copied at once (handing them to a thread would take longer), large
ones by a small thread pool, so a copy never blocks an engine step: loads that a turn waits for come
first, then prefetches, then stores. What fails its checksum is reported by its KV block.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from .chunk_sums import ChunkSums
from .host_copies import LOAD, STORE, HostCopies, PageCopies, plan_copies

logger = init_logger("vllm.agentkv")

_INLINE_BYTES = 1 << 20
_TASK_BYTES = 4 << 20
# What runs first; stores are neither waited for nor wanted soon.
_NEEDED_LOAD, _PREFETCH, _STORE, _END = range(4)
# The engine sleeps about as long itself before it asks again.
_IDLE_WAIT_S = 0.002


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
    urgency: int
    tasks_left: int
    started_s: float
    num_bytes: int = 0
    done: threading.Event = field(default_factory=threading.Event)


class CopyPool:
    """Threads that run callables, the most urgent first, then in order of submission."""

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

    def submit(self, urgency: int, task: Callable[[], None]) -> None:
        self._queue.put((urgency, next(self._order), task))

    def close(self) -> None:
        """Runs what is queued, then ends the threads."""
        for _ in self._threads:
            self._queue.put((_END, next(self._order), None))
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
        sums: ChunkSums | None = None,
        rank: int = 0,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.copies = HostCopies(
            kv_caches,
            blocks_per_chunk=blocks_per_chunk,
            make_dram_view=make_dram_view,
            sums=sums,
            rank=rank,
        )
        self._release = release
        self._pool = CopyPool(num_threads)
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._finished: deque[TransferResult] = deque()
        self._refused: deque[RefusedPage] = deque()
        self._prefetches: set[int] = set()
        # Whether the step computes nothing, so that waiting for a load delays nobody.
        self.is_step_idle = False

    def note_prefetches(self, job_ids: Iterable[int]) -> None:
        """These loads are about to be submitted, and no turn waits for them."""
        self._prefetches.update(job_ids)

    # --- OffloadingWorker ---

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        self._submit(job_id, STORE, src_spec, dst_spec)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        self._submit(job_id, LOAD, dst_spec, src_spec)
        return True

    def get_finished(self) -> list[TransferResult]:
        if self._jobs and not self._finished:
            time.sleep(0)  # An engine that steps without computing would keep the GIL from us.
        if self.is_step_idle:
            self._wait_for_needed()
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

    def _wait_for_needed(self) -> None:
        """For a moment: a load that ends now is seen now, not after another round of the engine."""
        deadline_s = time.perf_counter() + _IDLE_WAIT_S
        with self._lock:
            needed = [job for job in self._jobs.values() if job.urgency == _NEEDED_LOAD]
        for job in needed:
            job.done.wait(max(0.0, deadline_s - time.perf_counter()))

    def _submit(
        self, job_id: int, kind: int, gpu_spec: GPULoadStoreSpec, dram_spec: LoadStoreSpec
    ) -> None:
        is_prefetch = job_id in self._prefetches
        self._prefetches.discard(job_id)
        per_chunk = self.copies.blocks_per_chunk
        planned = list(plan_copies(gpu_spec, dram_spec.block_ids, per_chunk))
        total_bytes = sum(len(c) * self.copies.block_bytes(c.group) for c in planned)
        tasks = [task for copies in planned for task in self._split(copies)]
        urgency = _STORE if kind == STORE else _PREFETCH if is_prefetch else _NEEDED_LOAD
        job = _Job(job_id, kind, urgency, len(tasks), time.perf_counter())
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
            self._pool.submit(urgency, lambda task=task: self._run_task(job, task))  # type: ignore[misc]

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
            if job.kind == STORE:
                self.copies.store(copies)
                refused = copies.part(0, 0)
            else:
                refused = self.copies.load(copies)
        except Exception:
            # The end of a thread's stack: let through, it would end the thread, the job would never
            # finish and its turn wait for ever. So it is a miss: of a load every block is refused
            # below and counted; what was not stored whole has no checksum, so no turn loads it.
            logger.exception("agentkv: copy of %d KV blocks failed", len(copies))
        if job.kind == LOAD:
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
