"""Looks for anything a finished workload left behind: blocks, references, jobs, request ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kit.engine_config import Kind

from agentkv.ledger import Ledger
from agentkv.predict import HierarchicalWaitPredictor
from agentkv.reply_index import ReplyIndex
from agentkv.sessions import SessionState

if TYPE_CHECKING:
    from kit.rig import Rig

_OWNERS = ("agentkv", "vllm.distributed.kv_transfer", "vllm.v1.kv_offload")
_MAX_DEPTH = 12


class Leak(AssertionError):
    """Something outlived the requests it belonged to."""


def find_leaks(rig: Rig) -> None:
    """Raises Leak with all that was found. The engine must be idle."""
    found = list(engine_leaks(rig))
    if rig.config.kind is not Kind.NONE:
        found += _left_request_ids(rig)
    if rig.config.kind is Kind.AGENTKV:
        found += _agentkv_leaks(rig)
    if found:
        raise Leak("; ".join(found))


def engine_leaks(rig: Rig) -> Iterator[str]:
    """What is left behind in vLLM's own books, those of its offloading included."""
    yield from _pool_leaks(rig)
    yield from _scheduler_leaks(rig)
    if rig.config.kind is not Kind.NONE:
        yield from _offloading_leaks(rig)
        yield from _dram_leaks(rig)
        yield from _worker_leaks(rig)


def _pool_leaks(rig: Rig) -> Iterator[str]:
    pool = rig.pool
    if pool.get_num_free_blocks() != rig.config.pool_blocks:
        yield f"{pool.get_num_free_blocks()} of {rig.config.pool_blocks} blocks free"
    used = [b.block_id for b in pool.blocks if b.ref_cnt and not b.is_null]
    if used:
        yield f"blocks with references: {used}"
    queue = pool.free_block_queue
    block = queue.fake_free_list_head.next_free_block
    seen: set[int] = set()
    while block is not queue.fake_free_list_tail and len(seen) <= pool.num_gpu_blocks:
        seen.add(block.block_id)
        block = block.next_free_block
    if len(seen) != pool.get_num_free_blocks():
        yield f"free queue links {len(seen)} blocks, counts {pool.get_num_free_blocks()}"


def _scheduler_leaks(rig: Rig) -> Iterator[str]:
    scheduler = rig.scheduler
    names = (
        "requests",
        "running",
        "waiting",
        "kv_holding_waiting",
        "deferred_waiting",
        "finished_req_ids",
        "finished_recving_kv_req_ids",
        "failed_recving_kv_req_ids",
        "_inflight_prefills",
    )
    yield from _not_empty(scheduler, names)
    if getattr(scheduler, "deferred_frees", None):
        yield f"deferred frees: {scheduler.deferred_frees}"
    if rig.runner.num_sequences:
        yield f"{rig.runner.num_sequences} sequences in the runner"


def _offloading_leaks(rig: Rig) -> Iterator[str]:
    offloading = rig.connector.connector_scheduler
    yield from _not_empty(
        offloading,
        (
            "_req_status",
            "_jobs",
            "_block_id_to_pending_jobs",
            "_chunks_being_loaded",
            "_current_batch_load_jobs",
            "_current_batch_jobs_to_flush",
            "_current_batch_allocated_block_ids",
        ),
    )
    yield from _not_empty(offloading.manager, ("_req_state", "_jobs", "_request_load_sources"))


def _dram_leaks(rig: Rig) -> Iterator[str]:
    primary, policy = rig.primary, rig.dram
    busy = {chunk.chunk_id: chunk.ref_cnt for chunk in policy.chunks.values() if chunk.ref_cnt}
    if busy:
        yield f"DRAM chunks in use: {busy}"
    if primary._num_evictable_cache_chunks != len(policy.chunks):
        yield f"{primary._num_evictable_cache_chunks} of {len(policy.chunks)} chunks evictable"
    if policy._evictable != policy.chunks.keys() or policy._ranks.keys() != policy.chunks.keys():
        yield "the DRAM policy's books do not agree"
    if primary._num_write_pending_chunks:
        yield f"{primary._num_write_pending_chunks} writes pending"
    used = [chunk.chunk_id for chunk in policy.chunks.values()] + list(primary._free_list)
    if len(set(used)) != len(used) or len(used) != primary._num_allocated_chunks:
        yield f"{len(used)} chunks ({len(set(used))} distinct) of {primary._num_allocated_chunks}"


def _worker_leaks(rig: Rig) -> Iterator[str]:
    yield from _not_empty(rig.worker.connector_worker, ("_load_jobs", "_unsubmitted_store_jobs"))
    yield from _not_empty(rig.copies, ("_jobs", "_finished", "_refused", "_late"))


def _agentkv_leaks(rig: Rig) -> Iterator[str]:
    yield from _not_empty(
        rig.worker._refused, ("_block_ids", "_chunks", "_requests", "_prefetches")
    )
    prefetcher = rig.side.returns.prefetcher
    yield from _not_empty(prefetcher, ("_wanted", "_loading", "_failed"))
    if prefetcher._bytes_loading or (prefetcher._loader is not None and len(prefetcher._loader)):
        yield f"prefetches under way: {prefetcher._bytes_loading} bytes"
    yield from _not_empty(
        rig.side,
        ("_requests", "_arrived", "_hits", "_loads", "_preemptions", "_dead", "_damaged"),
    )
    yield from _not_empty(rig.dram, ("_arrived",))
    yield from _not_empty(rig.side._timer, ("_open",))
    if rig.side.gate.admission is not None:
        yield from _not_empty(rig.side.gate.admission, ("_turns", "_held"))
    rig.clock.advance(2.0)
    rig.side.on_step_end()  # tidies up, as it does once a second
    sessions = rig.controller.sessions
    yield from _not_empty(sessions, ("_turns", "_dead"))
    for session in sessions:
        if session.active or session.state is not SessionState.PAUSED:
            yield f"session {session.key} is {session.state}, active {list(session.active)}"
    pauses = rig.controller.pauses
    for key, session in (*pauses._kept.items(), *pauses._away.items()):
        if sessions.get(key) is not session:
            yield f"a forgotten session is still kept: {key}"
    for key in (*sessions._replies._ids, *prefetcher._kept._prefixes, *prefetcher._book._brought):
        if sessions.get(key) is None:
            yield f"something of a forgotten session is still known: {key}"
    if rig.counter("agentkv:faults"):
        yield f"faults: {rig.counters['agentkv:faults']}"


def _not_empty(owner: Any, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value = getattr(owner, name)
        if value:
            yield f"{type(owner).__name__}.{name}: {_first(value)}"


def _first(value: Any) -> Any:
    return list(value)[:5] if isinstance(value, Iterable) else len(value)


def _left_request_ids(rig: Rig) -> list[str]:
    """Every place below the connectors, however deep, that still names a request."""
    found: list[str] = []
    for root in (rig.connector, rig.worker):
        walk = _Walk(set(rig.results), found)
        walk.visit(root, type(root).__name__, 0)
    return found


class _Walk:
    """Follows attributes and containers, not into vLLM's config, its scheduler or the ledger."""

    def __init__(self, request_ids: set[str], found: list[str]) -> None:
        self._request_ids = request_ids
        self._found = found
        self._seen: set[int] = set()

    def visit(self, value: Any, path: str, depth: int) -> None:
        if isinstance(value, str):
            if value in self._request_ids:
                self._found.append(f"request id {value!r} left in {path}")
            return
        if depth > _MAX_DEPTH or id(value) in self._seen:
            return
        for name, inner in self._parts(value):
            self._seen.add(id(value))
            self.visit(inner, f"{path}{name}", depth + 1)

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping):
            for key, inner in list(value.items()):
                yield ".keys", key
                yield f"[{str(key)[:16]}]", inner
        elif isinstance(value, list | tuple | set | frozenset) or type(value).__name__ == "deque":
            for inner in list(value)[:10_000]:
                yield "[]", inner
        elif _is_ours(value):
            for name in (*getattr(value, "__dict__", ()), *getattr(value, "__slots__", ())):
                if name == "cache_salt":  # may be any word
                    continue
                yield f".{name}", getattr(value, name, None)


def _is_ours(value: Any) -> bool:
    """Not what keeps request ids on purpose, or any words that clients use for tools and sessions:
    its bounds are tested elsewhere."""
    kept = (Ledger, ReplyIndex, HierarchicalWaitPredictor)
    return type(value).__module__.startswith(_OWNERS) and not isinstance(value, kept)
