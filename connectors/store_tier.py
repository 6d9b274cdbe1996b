"""A slow tier as vLLM's tiering sees it: rows of the DRAM tier against entries of a `TierStore`.

    scheduler thread: lookup, submit ──► pool's threads: store.load / store.store ──► finished jobs

Nothing here blocks the scheduler thread: an index in another machine is asked by vLLM's own
asynchronous look-up, and what this engine stored there itself is remembered. What leaves DRAM is
checked against the checksum the copy worker noted, what comes back is noted for it to check.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from agentkv.cost_model import LinkSpeed
from agentkv.tiers.base import Entry, TierStore

from .chunk_sums import ChunkSums
from .recent_failures import RecentFailures
from .split_pool import SplitPool

_PART_BYTES = 8 << 20
_MAX_KNOWN = 1 << 20


@dataclass(slots=True)
class _Job:
    """`done`: the keys that were moved. Filled by the pool's threads, read when all have ended."""

    job: TransferJob
    started_s: float = 0.0
    ended_s: float = 0.0
    done: set[OffloadKey] = field(default_factory=set)


class _Row(NamedTuple):
    """A block, its chunk of DRAM, and the entry that pairs both for the store."""

    key: OffloadKey
    chunk_id: int
    entry: Entry


class _RemoteIndex(AsyncLookupManager):
    """Asks the store in a thread which keys it has."""

    def __init__(self, store: TierStore, name: Callable[[OffloadKey], bytes]) -> None:
        self._store = store
        self._name = name
        super().__init__(store.name)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._store.contains([self._name(key) for key in keys])


class StoreTier(SecondaryTierManager):
    """Owned by the scheduler thread. `load_link` and `store_link` learn from what is moved."""

    medium: ClassVar[Medium | None] = Medium.STORAGE

    def __init__(
        self,
        spec: OffloadingSpec,
        primary_kv_view: memoryview,
        store: TierStore,
        *,
        sums: ChunkSums | None,
        num_threads: int,
        load_link: LinkSpeed,
        store_link: LinkSpeed,
    ) -> None:
        super().__init__(spec, primary_kv_view, store.name)
        self.load_link = load_link
        self.store_link = store_link
        self._store = store
        self._sums = sums
        self._num_threads = num_threads
        self._rows = primary_kv_view.cast("B")
        self._index = None if store.is_index_local else _RemoteIndex(store, self.name_of)
        self._pool = SplitPool(num_threads, store.name)
        self._jobs: dict[int, _Job] = {}
        self._errands = itertools.count(-1, -1)  # Ids of work that nobody waits for.
        self._known: OrderedDict[OffloadKey, None] = OrderedDict()
        self._failed = RecentFailures()
        self._epoch = b""
        self._damaged_chunks: list[int] = []
        # Called with the blocks of a store that has ended: those taken, those refused.
        self.on_stored: Callable[[StoreTier, list[OffloadKey], list[OffloadKey]], None] | None = (
            None
        )
        # Called with each block that the tier has now, or perhaps no longer has.
        self.on_change: Callable[[OffloadKey], None] = lambda key: None

    @property
    def store(self) -> TierStore:
        return self._store

    # --- what agentkv asks ---

    @property
    def is_available(self) -> bool:
        return self._store.is_available

    def load_s(self, num_blocks: int) -> float:
        """How long so many blocks take up to DRAM."""
        return self.load_link.seconds(num_blocks * self.block_size_bytes)

    def store_s(self, num_blocks: int) -> float:
        """How long so many blocks take down from DRAM."""
        return self.store_link.seconds(num_blocks * self.block_size_bytes)

    def holds(self, key: OffloadKey) -> bool:
        """Whether the tier has this block as far as is known here; never blocks."""
        return key not in self._failed and self.has(key)

    def has(self, key: OffloadKey) -> bool:
        """As `holds`, of a block that could not be loaded just now, too."""
        if self._index is None:  # And says no while it is not available.
            return self._store.contains([self.name_of(key)])[0]
        return key in self._known and self._store.is_available

    def known(self) -> list[OffloadKey]:
        """The blocks that it has as far as this engine put or found them there; [] if local."""
        return list(self._known)

    def forget(self, keys: Sequence[OffloadKey]) -> None:
        """Drops blocks that no session needs, some time soon."""
        held = [key for key in keys if self.holds(key)]
        if not held:
            return
        for key in held:
            self._known.pop(key, None)
            self.on_change(key)
        self._run_errand(functools.partial(self._store.delete, [self.name_of(k) for k in held]))

    def fence(self) -> None:
        """From now on nothing stored before is found: the weights may have changed in place.

        No copy may be under way. What this engine alone can reach is dropped; entries that others
        share stay theirs.
        """
        self._epoch = secrets.token_bytes(16)
        self._known.clear()
        self._failed.clear()
        if self._index is None:
            self._run_errand(self._store.clear)

    def take_damaged_chunks(self) -> list[int]:
        """Chunks of DRAM that were not written down: they are not what was stored there."""
        damaged, self._damaged_chunks = self._damaged_chunks, []
        return damaged

    # --- SecondaryTierManager ---

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        if self._index is not None:
            self._index.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        if self._index is not None:
            self._index.flush()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if self.holds(key):
            return LookupResult.HIT
        if self._index is None or not self._store.is_available or key in self._failed:
            return LookupResult.MISS
        is_there = self._index.lookup(key, req_context)
        if is_there is None:
            return LookupResult.RETRY
        return LookupResult.HIT if is_there else LookupResult.MISS

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        held = [key for key in keys if self.holds(key)]
        if held:
            self._store.touch([self.name_of(key) for key in held])

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._pool.store(job_metadata.job_id, *self._tasks(job_metadata, self._write))

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._pool.load(job_metadata.job_id, *self._tasks(job_metadata, self._read))

    def get_finished_jobs(self) -> list[JobResult]:
        finished = (self._jobs.pop(job_id, None) for job_id in self._pool.take_finished())
        return [self._result(job) for job in finished if job is not None]

    def drain_jobs(self) -> None:
        self._pool.wait_idle()

    def shutdown(self) -> None:
        if self._index is not None:
            self._index.shutdown()
        self._pool.shutdown()
        self._store.close()
        self._rows.release()

    # --- in the pool's threads ---

    def _write(self, job: _Job, part: slice) -> None:
        rows = self._entries(job.job, part)
        damaged = [row.chunk_id for row in rows if not self._is_sound(row)]
        self._damaged_chunks.extend(damaged)
        good = [row for row in rows if row.chunk_id not in damaged]
        results = self._store.store([row.entry for row in good])
        job.done.update(r.key for r, is_done in zip(good, results, strict=True) if is_done)

    def _read(self, job: _Job, part: slice) -> None:
        rows = self._entries(job.job, part)
        if self._sums is not None:
            for row in rows:
                self._sums.forget(row.chunk_id)
        results = self._store.load([row.entry for row in rows])
        for row, is_done in zip(rows, results, strict=True):
            if is_done:
                if self._sums is not None:
                    self._sums.note(row.chunk_id, row.entry.data)
                job.done.add(row.key)

    def _is_sound(self, row: _Row) -> bool:
        return self._sums is None or self._sums.matches(row.chunk_id, row.entry.data)

    def _entries(self, job: TransferJob, part: slice) -> list[_Row]:
        size = self.block_size_bytes
        return [
            _Row(key, c, Entry(self.name_of(key), self._rows[c * size : (c + 1) * size]))
            for key, c in zip(list(job.keys)[part], job.chunk_ids[part].tolist(), strict=True)
        ]

    # --- parts ---

    def name_of(self, key: OffloadKey) -> bytes:
        """The key under which the store has a block."""
        if not self._epoch:
            return bytes(key)
        return hashlib.sha256(self._epoch + key).digest()

    def _run_errand(self, task: Callable[[], object]) -> None:
        self._pool.store(next(self._errands), 1, [task])

    def _tasks(
        self, metadata: TransferJob, run: Callable[[_Job, slice], None]
    ) -> tuple[int, list[Callable[[], None]]]:
        """The job in parts for several threads; the number of them first."""
        job = self._jobs[metadata.job_id] = _Job(metadata)
        num_keys = len(metadata.chunk_ids)
        num_bytes = num_keys * self.block_size_bytes
        num_parts = max(1, min(self._num_threads, num_keys, num_bytes // _PART_BYTES))
        edges = [i * num_keys // num_parts for i in range(num_parts + 1)]

        def task(part: slice) -> None:
            job.started_s = job.started_s or time.monotonic()
            run(job, part)
            job.ended_s = time.monotonic()

        parts = [slice(*edge) for edge in itertools.pairwise(edges)]
        return num_parts, [functools.partial(task, part) for part in parts]

    def _result(self, job: _Job) -> JobResult:
        """Accounts for a finished job. On the scheduler thread."""
        keys, is_load = list(job.job.keys), job.job.is_promotion
        done = [key for key in keys if key in job.done]
        seconds = job.ended_s - job.started_s
        num_bytes = len(done) * self.block_size_bytes
        (self.load_link if is_load else self.store_link).observe(num_bytes, seconds)
        for key in done:
            self._remember(key)
        failed = [key for key in keys if key not in job.done]
        if is_load:
            self._note_failed(failed)
        elif self.on_stored is not None:
            self.on_stored(self, done, failed)
        return JobResult(
            job_id=job.job.job_id,
            success=len(done) == len(keys),
            successful_keys=tuple(done),
            transfer_time=seconds,
            transfer_bytes=num_bytes,
        )

    def _remember(self, key: OffloadKey) -> None:
        self._failed.discard(key)
        self.on_change(key)
        if self._index is None:
            return
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > _MAX_KNOWN:
            self.on_change(self._known.popitem(last=False)[0])

    def _note_failed(self, keys: list[OffloadKey]) -> None:
        for key in keys:
            self._known.pop(key, None)
            self.on_change(key)
        self._failed.add(keys)
        if self._index is not None:
            self._index.mark_miss(keys)
