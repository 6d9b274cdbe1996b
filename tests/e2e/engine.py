"""A real vLLM engine inside the test process, stepped by hand, with the plugin on or off.

What: `Engine` starts in half a second, since nothing is spawned, and lets a test reach the pool,
the connector and the copy worker. Two can live side by side: the one without the plugin answers
what the other must answer too.
Why a swapped global: vLLM keeps one worker-side connector per process; a step of one engine must
not find that of the other.
"""

import gc
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from kit.control import control_request
from kit.copies import SteadyLink
from prometheus_client import REGISTRY
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from agentkv.connectors.cache_policy import AgentKVCachePolicy
from agentkv.connectors.connector import AgentKVConnector
from agentkv.connectors.cpu_worker import CpuCopyWorker
from agentkv.signals import ControlMessage, Event, ScopedEvent

BLOCK_TOKENS = 32  # The smallest block that vLLM's CPU attention takes.
MAX_TOKENS = 1024
STUCK_AFTER_S = 120.0
# This model computes a block about as fast as it is copied: "auto" would load or not by chance.
SETTINGS = {"dram": {"size_bytes": "16MiB"}, "min_load_tokens": 1}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `name` tells it from the others of a run; `sampling` overrides greedy."""

    name: str
    prompt: tuple[int, ...]
    num_tokens: int = 8
    session: str | None = None
    tag: Mapping[str, Any] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def params(self) -> SamplingParams:
        extra = {"kv_transfer_params": {"agentkv": dict(self.tag)}} if self.tag else None
        options: dict[str, Any] = {
            "temperature": 0.0,
            "max_tokens": self.num_tokens,
            "ignore_eos": True,
            "logprobs": 2,
            "extra_args": extra,
        }
        if "n" in self.sampling:  # Samples come one by one else.
            options["output_kind"] = RequestOutputKind.FINAL_ONLY
        return SamplingParams(**{**options, **self.sampling})


@dataclass(frozen=True, slots=True)
class Answer:
    """One sequence of a request: its tokens, their log-probabilities, what was cached.

    `margin` is the least lead of the best token over the second best, in log-probability.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    margin: float
    cached_tokens: int
    prompt_logprobs: tuple[float, ...] = ()
    siblings: tuple["Answer", ...] = ()


class StuckError(AssertionError):
    """No request got a token for a long time although some are waiting."""


class Engine:
    """`settings` are agentkv's; None starts a stock vLLM. Close it, or its thread pool stays."""

    def __init__(
        self, model: Path, settings: Mapping[str, Any] | None, *, num_blocks: int, **options: Any
    ) -> None:
        transfer = None
        if settings is not None:
            transfer = KVTransferConfig(
                kv_connector="agentkv",
                kv_role="kv_both",
                kv_connector_extra_config={**SETTINGS, **settings},
            )
        self._agent: Any = None
        self._open: set[str] = set()
        self.request_ids: set[str] = set()  # vLLM's own for all requests so far
        self.is_closed = False
        # vLLM has one set of statistics per process: the engine with the plugin gets it.
        arguments: dict[str, Any] = {
            "block_size": BLOCK_TOKENS,
            "disable_log_stats": settings is None,
            "dtype": "float32",
            "enable_prefix_caching": True,
            "enforce_eager": True,
            "kv_transfer_config": transfer,
            "max_model_len": MAX_TOKENS,
            "max_num_seqs": 8,
            "num_gpu_blocks_override": num_blocks + 1,  # One is vLLM's null block.
            "seed": 0,
        }
        # How fast a disk is on this machine must not decide what is parked.
        steady = mock.patch("agentkv.connectors.slow_tiers.LinkSpeed", SteadyLink)
        with self._active(), steady:
            self.llm = LLM(str(model), **{**arguments, **options})
        self._core: Any = self.llm.llm_engine.engine_core.engine_core

    @contextmanager
    def _active(self) -> Iterator[None]:
        outer = kv_transfer_state._KV_CONNECTOR_AGENT
        kv_transfer_state._KV_CONNECTOR_AGENT = self._agent
        try:
            yield
        finally:
            self._agent = kv_transfer_state._KV_CONNECTOR_AGENT
            kv_transfer_state._KV_CONNECTOR_AGENT = outer

    def close(self) -> None:
        """Ends the engine but leaves vLLM's process-wide groups to the other engine."""
        if self.is_closed:
            return
        self.is_closed = True
        self.llm.llm_engine.engine_core._finalizer.detach()
        with self._active():
            kv_transfer_state.ensure_kv_transfer_shutdown()
            self._core.scheduler.shutdown()
        gc.unfreeze()  # vLLM freezes what it made at the start.

    # --- what tests look at ---

    @property
    def scheduler(self) -> Any:
        return self._core.scheduler

    @property
    def connector(self) -> AgentKVConnector:
        """The scheduler's."""
        connector: AgentKVConnector = self.scheduler.connector
        return connector

    @property
    def copier(self) -> CpuCopyWorker:
        """The worker that copies between the pool and DRAM, in this process."""
        copier: CpuCopyWorker = self.connector_worker.worker
        return copier

    @property
    def connector_worker(self) -> Any:
        """vLLM's worker half of the offloading."""
        return self._agent.connector_worker

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def dram(self) -> AgentKVCachePolicy:
        """What the DRAM tier holds; `chunks` maps block keys to their places."""
        policy: AgentKVCachePolicy = self.connector.scheduler.manager.primary_tier._policy
        return policy

    @property
    def dram_file(self) -> Path:
        """Where vLLM keeps the DRAM tier."""
        engine_id = self.scheduler.vllm_config.kv_transfer_config.engine_id
        return Path(f"/dev/shm/vllm_offload_{engine_id}.mmap")

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block over all cache tensors."""
        return sum(pages.shape[1] for pages in self.copier.copies._pages)

    @property
    def loaded_blocks(self) -> float:
        """KV blocks copied from DRAM so far, by the bytes that the copies moved."""
        return self.count("vllm:kv_offload_load_bytes") / self.block_bytes

    @property
    def stored_blocks(self) -> float:
        """KV blocks copied to DRAM so far, by the bytes that the copies moved."""
        return self.count("vllm:kv_offload_store_bytes") / self.block_bytes

    def ledger(self, kind: str) -> list[dict[str, Any]]:
        side = self.connector._side
        assert side is not None
        records = side.controller._deps.ledger.records()
        return [record for record in records if record["kind"] == kind]

    def count(self, name: str, **labels: str) -> float:
        """The sum of a counter or gauge over all labels not given, as vLLM exports it."""
        return sum(
            sample.value
            for metric in REGISTRY.collect()
            if metric.name == name
            for sample in metric.samples
            if sample.name in (name, f"{name}_total") and labels.items() <= sample.labels.items()
        )

    # --- running ---

    def add(self, ask: Ask) -> None:
        with self._active():
            request_id = self.llm.llm_engine.add_request(
                ask.name,
                {"prompt_token_ids": list(ask.prompt)},
                ask.params(),
                session_id=ask.session,
            )
        self.request_ids.add(request_id)
        self._open.add(ask.name)

    def abort(self, name: str) -> None:
        """Cuts a request off; one that is over or unknown is left alone."""
        with self._active():
            self.llm.llm_engine.abort_request([name])
        self._open.discard(name)

    def step(self) -> list[RequestOutput]:
        with self._active():
            return [out for out in self.llm.llm_engine.step() if isinstance(out, RequestOutput)]

    @property
    def is_busy(self) -> bool:
        return bool(self.llm.llm_engine.has_unfinished_requests())

    def run(
        self,
        asks: Iterable[Ask],
        *,
        concurrency: int = 8,
        on_step: Callable[["Engine"], None] | None = None,
    ) -> dict[str, Answer]:
        """Runs all requests, `concurrency` at a time, and returns their answers by name.

        Raises StuckError when no request makes progress.
        """
        waiting = deque(asks)
        answers: dict[str, Answer] = {}
        progress_s = time.monotonic()
        while waiting or self.is_busy:
            while waiting and len(self._open) < concurrency:
                self.add(waiting.popleft())
            outputs = self.step()
            now_s = time.monotonic()
            if outputs:
                progress_s = now_s
            elif now_s - progress_s > STUCK_AFTER_S:
                raise StuckError(f"no token for {STUCK_AFTER_S:g} s: {sorted(self._open)}")
            for output in outputs:
                if output.finished:
                    answers[output.request_id] = _answer(output)
                    self._open.discard(output.request_id)
            if on_step is not None:
                on_step(self)
        self.settle()
        return answers

    def ask(self, ask: Ask) -> Answer:
        return self.run([ask])[ask.name]

    def settle(self) -> None:
        """Steps until the engine has nothing left to do: stores are written, reports are in."""
        deadline_s = time.monotonic() + STUCK_AFTER_S
        while self.scheduler.has_requests():
            self.step()
            if time.monotonic() > deadline_s:
                raise StuckError(f"still busy {STUCK_AFTER_S:g} s after the last answer")

    def wait_for_tiers(self) -> None:
        """Until what is being written below DRAM is written, and accounted for."""
        manager = self.connector.scheduler.manager
        deadline_s = time.monotonic() + STUCK_AFTER_S
        while manager._jobs and time.monotonic() < deadline_s:
            manager._process_finished_jobs()
            time.sleep(0.001)

    def signal(self, event: str, session: str) -> None:
        """What the API process would send; runs the engine until it would sleep again."""
        named = Event.model_validate({"event": event, "session_id": session})
        message = ControlMessage(id=f"e2e-{event}", events=(ScopedEvent(event=named),))
        with self._active():
            self._core.add_request(control_request(message))
        self.settle()

    def forget_pool(self) -> None:
        """Drops everything cached in the GPU pool, and nothing from DRAM."""
        with self._active():
            assert self.llm.reset_prefix_cache()

    def preempt_all(self) -> None:
        """Sends all running requests back to the queue, as a full pool would; empties the pool."""
        with self._active():
            assert self.llm.reset_prefix_cache(reset_running_requests=True)

    def reset(self) -> None:
        """Drops everything cached, in the pool and in DRAM."""
        with self._active():
            assert self.llm.reset_prefix_cache(reset_connector=True)


def _answer(output: RequestOutput) -> Answer:
    first, *others = (_sequence(output, completion) for completion in output.outputs)
    return replace(first, siblings=tuple(others))


def _sequence(output: RequestOutput, completion: Any) -> Answer:
    tokens = tuple(completion.token_ids)
    logprobs, margin = [], float("inf")
    for token, candidates in zip(tokens, completion.logprobs, strict=True):
        logprobs.append(candidates[token].logprob)
        best, second, *_ = sorted((c.logprob for c in candidates.values()), reverse=True)
        margin = min(margin, best - second)
    return Answer(
        tokens=tokens,
        logprobs=tuple(logprobs),
        margin=margin,
        cached_tokens=output.num_cached_tokens or 0,
        prompt_logprobs=tuple(_of_prompt(output)),
    )


def _of_prompt(output: RequestOutput) -> Iterator[float]:
    for token, candidates in zip(
        output.prompt_token_ids or (), output.prompt_logprobs or (), strict=False
    ):
        if candidates is not None:  # There is none for the first token.
            yield candidates[token].logprob


def prompt_of(seed: int, num_tokens: int) -> tuple[int, ...]:
    """Token ids that no other seed's prompt shares a block with."""
    rng = random.Random(seed)
    return tuple(rng.randrange(4, 500) for _ in range(num_tokens))


def chain(*parts: Sequence[int]) -> tuple[int, ...]:
    """Prompts put together."""
    return tuple(token for part in parts for token in part)
