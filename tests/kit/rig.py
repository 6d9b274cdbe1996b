"""The rig itself: one engine without a model, stepped by hand."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kit.build import build, watch_new_blocks
from kit.canary import VOCABULARY, answer
from kit.clean import find_leaks
from kit.copies import CopyScript, ScriptedCopyWorker
from kit.engine_config import BLOCK_TOKENS, Kind, RigConfig
from kit.runner import StubRunner
from kit.tier_waits import let_tiers_work, wait_for_tiers
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.request import Request, RequestStatus

from agentkv.clock import ManualClock
from agentkv.connectors.control import take_replies
from agentkv.signals import ControlReply

_MAX_STEPS = 3000


def prompt(seed: int, num_tokens: int) -> list[int]:
    """Token ids that no other seed gives."""
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(num_tokens)]


def blocks(num_blocks: float) -> int:
    """Tokens in so many KV blocks."""
    return int(num_blocks * BLOCK_TOKENS)


@dataclass
class Result:
    """What a client saw of a request."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    gpu_hit_tokens: int | None = None
    dram_hit_tokens: int | None = None

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None


class Rig:
    """Owns one scheduler, one worker and their memory. `close` it after `clean`.

    `before_update` is called once, when the next step was executed but not yet processed: there
    vLLM handles aborts. `is_spoilt`: the test broke the engine on purpose, so it is not checked.
    `has_stuck_tier`: it holds up a tier below DRAM, so steps do not wait for that.
    """

    def __init__(self, config: RigConfig) -> None:
        self.config = config
        self.clock = ManualClock(start_s=1000.0)
        self.step_s = 0.01
        self.num_steps = 0
        self.results: dict[str, Result] = {}
        self.counters: dict[str, dict[tuple[str, ...], float]] = {}
        self.samples: dict[str, dict[tuple[str, ...], list[float]]] = {}
        self.replies: dict[str, ControlReply] = {}
        self.external_queries = self.external_hits = 0
        self.script, self.is_spoilt, self.has_stuck_tier = CopyScript(), False, False
        self.before_update: Callable[[], None] | None = None
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        parts = build(config, self.clock, self.script)
        self.scheduler, self.worker, self.memory = parts
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self._fresh = watch_new_blocks(self.pool)
        self.runner = StubRunner(self.memory, self.worker)
        if self.worker is not None:
            self.runner.on_step = self.copies.tick
        self._pending: deque[tuple[Any, Any]] = deque()

    # --- parts ---

    @property
    def connector(self) -> Any:
        return self.scheduler.connector

    @property
    def side(self) -> Any:
        """Our scheduler side."""
        return self.connector._side

    @property
    def controller(self) -> Any:
        return self.side.controller

    @property
    def copies(self) -> ScriptedCopyWorker:
        worker = self.worker.connector_worker.worker
        assert isinstance(worker, ScriptedCopyWorker)
        return worker

    @property
    def dram(self) -> Any:
        """The DRAM tier's cache policy."""
        return self.connector.connector_scheduler.manager.primary_tier._policy

    @property
    def primary(self) -> Any:
        return self.connector.connector_scheduler.manager.primary_tier

    # --- requests ---

    def add(
        self,
        request_id: str,
        tokens: Sequence[int],
        *,
        max_tokens: int = 4,
        session: str | None = None,
        tag: dict[str, Any] | None = None,
        priority: int = 0,
        **fields: Any,
    ) -> Request:
        """A request arrives at the scheduler; without tokens give `prompt_embeds`."""
        extra = {"kv_transfer_params": {"agentkv": tag}} if tag is not None else None
        request = Request(
            request_id,
            list(tokens) or None,
            SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra),
            None,
            arrival_time=float(len(self.results)),
            block_hasher=self._hasher,
            session_id=session,
            priority=priority,
            **fields,
        )
        self.results[request_id] = Result(request)
        self.scheduler.add_request(request)
        return request

    def abort(self, *request_ids: str) -> None:
        for request_id in request_ids:
            self.results[request_id].finish_reason = "abort"
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def run(
        self, request_id: str, tokens: Sequence[int], *, max_tokens: int = 4, **kwargs: Any
    ) -> Result:
        """Adds a request and steps until it is finished and the engine idle."""
        self.add(request_id, tokens, max_tokens=max_tokens, **kwargs)
        self.settle()
        return self.results[request_id]

    def check_answer(self, request_id: str) -> None:
        """The request finished with the answer that right KV gives."""
        result = self.results[request_id]
        request = result.request
        assert result.finish_reason == "length", f"{request_id}: {result.finish_reason}"
        expected = answer(request.prompt_token_ids, request.max_tokens, self.memory.windows)
        assert result.tokens == expected, f"{request_id}: wrong answer"

    # --- time ---

    def step(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            self._step()

    def settle(self, max_steps: int = _MAX_STEPS) -> None:
        """Steps until the engine would sleep."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests() and not self._pending:
                return
            self._step()
            let_tiers_work(self)
        raise AssertionError(f"not idle after {max_steps} steps: {self.describe()}")

    def drain(self) -> None:
        """Processes the steps that were executed already (async scheduling), without another."""
        while self._pending:
            self._process(*self._pending.popleft())

    def step_until(self, condition: Callable[[], bool], max_steps: int = _MAX_STEPS) -> None:
        for _ in range(max_steps):
            if condition():
                return
            self._step()
        raise AssertionError(f"not so after {max_steps} steps: {self.describe()}")

    def describe(self) -> str:
        scheduler = self.scheduler
        return (
            f"running {[r.request_id for r in scheduler.running]}, "
            f"waiting {[r.request_id for r in scheduler.waiting]}, "
            f"loading {[r.request_id for r in scheduler.kv_holding_waiting]}, "
            f"{self.pool.get_num_free_blocks()} blocks free"
        )

    def _step(self) -> None:
        """vLLM's `EngineCore.step`, or `step_with_batch_queue` with async scheduling."""
        self.num_steps += 1
        is_worth_another: Any = False
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            fresh = set(self._fresh)
            self._fresh.clear()
            self._pending.append((output, self.runner.execute(output, fresh)))
            is_worth_another = output.total_num_scheduled_tokens or self.scheduler.has_requests()
        self.clock.advance(self.step_s)
        if self.config.is_async and len(self._pending) < 2 and is_worth_another:
            return
        if self._pending:
            before_update, self.before_update = self.before_update, None
            if before_update is not None:
                before_update()
            self._process(*self._pending.popleft())

    def _process(self, output: Any, result: Any) -> None:
        for client in self.scheduler.update_from_output(output, result).values():
            for one in client.outputs:
                self._record(one)
            stats = client.scheduler_stats
            if stats is not None:
                self._count(stats.kv_connector_stats)
                external = stats.connector_prefix_cache_stats
                if external is not None:
                    self.external_queries += external.queries
                    self.external_hits += external.hits

    def _record(self, output: Any) -> None:
        result = self.results[output.request_id]
        result.tokens.extend(output.new_token_ids)
        if output.prefill_stats is not None and result.gpu_hit_tokens is None:
            result.gpu_hit_tokens = output.prefill_stats.num_local_cached_tokens
            result.dram_hit_tokens = output.prefill_stats.num_external_cached_tokens
        if output.finish_reason is not None:
            result.finish_reason = str(output.finish_reason)

    def _count(self, stats: Any) -> None:
        """Gathers counters and samples as vLLM hands them to Prometheus."""
        if not stats:
            return
        self.replies.update((reply.id, reply) for reply in take_replies(stats))
        for name, values in stats["data"].items():
            kept: dict[str, Any] = {"counter": self.counters, "histogram": self.samples}
            totals = kept.get(stats["types"][name], {}).setdefault(name, {})
            for labels, value in values.items():
                totals[tuple(labels)] = totals.get(tuple(labels), type(value)()) + value

    def counter(self, name: str, *labels: str) -> float:
        """A counter's sum; without labels over all of them."""
        totals = self.counters.get(name, {})
        return totals.get(labels, 0) if labels else sum(totals.values())

    # --- looking inside ---

    def cached_blocks(self, tokens: Sequence[int], group: int = 0) -> int:
        """Blocks of this prompt that the GPU pool holds without a gap."""
        count = 0
        for block_hash in self.hashes(tokens):
            if self.pool.get_cached_block(block_hash, [group]) is None:
                break
            count += 1
        return count

    def dram_blocks(self, tokens: Sequence[int], group: int = 0) -> int:
        """Blocks of this prompt that the DRAM tier holds, ready to load."""
        keys = [make_offload_key(block_hash, group) for block_hash in self.hashes(tokens)]
        chunks = [self.dram.get(key) for key in keys]
        return sum(chunk is not None and chunk.is_ready for chunk in chunks)

    def hashes(self, tokens: Sequence[int], **fields: Any) -> list[bytes]:
        probe = Request(
            "probe",
            list(tokens),
            SamplingParams(max_tokens=1),
            None,
            block_hasher=self._hasher,
            **fields,
        )
        return list(probe.block_hashes)

    def flip_dram_byte(self, tokens: Sequence[int], block: int, *, group: int = 0) -> None:
        """Damages one stored byte of a prompt's block (counted from 0)."""
        key = make_offload_key(self.hashes(tokens)[block], group)
        chunk = self.dram.get(key)
        assert chunk is not None and chunk.is_ready
        self.copies.copies._dram[1][chunk.chunk_id, 77] ^= 1

    def drop_gpu_cache(self) -> None:
        """Empties the pool; DRAM stays."""
        assert self.scheduler.reset_prefix_cache()

    # --- end ---

    def clean(self) -> None:
        """Settles the engine, then raises `Leak` if anything is left behind."""
        if self.config.kind is not Kind.NONE:
            self.script.store_delay_steps = self.script.load_delay_steps = 0
            self.copies.release()
        self.settle()
        wait_for_tiers(self.connector)
        find_leaks(self)

    def close(self) -> None:
        self.scheduler.shutdown()
        if self.worker is not None:
            self.worker.shutdown()
