"""Stands for vLLM's model runner: writes canaries instead of computing, checks all it would read.

It drives the worker's connector in the order of `KVConnectorModelRunnerMixin`: earlier stores are
submitted and fenced, fresh blocks are poisoned, the step "computes", then loads start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch
from kit.canary import VOCABULARY, Canary, CanaryError, first_read, next_token
from kit.engine_config import BLOCK_TOKENS, HEAD_SIZE
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput


@dataclass
class Sequence_:
    """A request as the worker knows it."""

    tokens: list[int]
    tables: list[list[int]]
    canary: Canary


@dataclass(frozen=True)
class Layer:
    group: int
    window: int | None
    pages: np.ndarray  # (blocks, tokens, elements)


@dataclass
class KvMemory:
    """The KV tensors; layers of different groups overlay each other, as in vLLM."""

    layers: list[Layer] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def allocate(cls, config: KVCacheConfig) -> KvMemory:
        memory = cls()
        shape = (config.num_blocks, 1, BLOCK_TOKENS, 2 * HEAD_SIZE)
        per_group = len(config.kv_cache_groups[0].layer_names)
        pool = torch.full((per_group, *shape), float("nan"), dtype=torch.float32)
        for group, spec in enumerate(config.kv_cache_groups):
            kv_spec = spec.kv_cache_spec
            is_windowed = isinstance(kv_spec, SlidingWindowSpec)
            for index, name in enumerate(spec.layer_names):
                memory.tensors[name] = pool[index]
                pages = pool[index].numpy()[:, 0]
                window = kv_spec.sliding_window if is_windowed else None
                memory.layers.append(Layer(group, window, pages))
        return memory

    @property
    def windows(self) -> list[int | None]:
        return [layer.window for layer in self.layers]

    def poison(self, block_ids: set[int]) -> None:
        ids = sorted(block_ids)
        for layer in self.layers:
            layer.pages[ids] = np.nan


class StubRunner:
    """`is_checking` off: a wrong element is decoded instead of raising `CanaryError`."""

    def __init__(self, memory: KvMemory, worker: KVConnectorBase_V1 | None) -> None:
        self.memory = memory
        self.is_checking = True
        self.num_computed_tokens = 0
        self.on_step: Callable[[], None] = lambda: None
        self._worker = worker
        self._sequences: dict[str, Sequence_] = {}

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def execute(self, output: SchedulerOutput, fresh_block_ids: set[int]) -> ModelRunnerOutput:
        self.on_step()
        for request_id in output.finished_req_ids:
            self._sequences.pop(request_id, None)
        if self._worker is not None:
            self._worker.handle_preemptions(output.kv_connector_metadata)
        self.memory.poison(fresh_block_ids)
        self._update(output)
        if self._worker is None:
            return self._forward(output, None)
        return self._step_with_connector(output, self._worker)

    def _step_with_connector(
        self, output: SchedulerOutput, worker: KVConnectorBase_V1
    ) -> ModelRunnerOutput:
        assert not output.has_sync_kv_loads, "offloading loads are asynchronous"
        worker.bind_connector_metadata(output.kv_connector_metadata)
        transferred = KVConnectorOutput()
        result = self._forward(output, transferred)
        metadata = {} if output.total_num_scheduled_tokens else None
        worker.start_load_kv(SimpleNamespace(attn_metadata=metadata))
        worker.wait_for_save()
        transfers = worker.get_transfer_results(output.finished_req_ids)
        transferred.finished_sending = transfers.finished_sending
        transferred.finished_recving = transfers.finished_recving
        transferred.failed_recving = transfers.failed_recving
        transferred.invalid_block_ids = worker.get_block_ids_with_load_errors()
        transferred.kv_connector_stats = worker.get_kv_connector_stats()
        transferred.kv_connector_worker_meta = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        return result

    def _update(self, output: SchedulerOutput) -> None:
        for new in output.scheduled_new_reqs:
            self._sequences[new.req_id] = Sequence_(
                tokens=_prompt_of(new),
                tables=[list(ids) for ids in new.block_ids],
                canary=Canary(len(self.memory.layers)),
            )
        cached = output.scheduled_cached_reqs
        for request_id, new_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            sequence = self._sequences[request_id]
            if request_id in cached.resumed_req_ids:
                sequence.tables = [list(ids) for ids in new_ids]
            elif new_ids is not None:
                for table, ids in zip(sequence.tables, new_ids, strict=True):
                    table.extend(ids)
            if request_id in cached.all_token_ids:
                sequence.tokens = list(cached.all_token_ids[request_id])

    def _forward(
        self, output: SchedulerOutput, transferred: KVConnectorOutput | None
    ) -> ModelRunnerOutput:
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        request_ids = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for request_id in request_ids:
            num_new = output.num_scheduled_tokens[request_id]
            sampled.append(self._compute(request_id, computed[request_id], num_new))
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
            sampled_token_ids=sampled,
            kv_connector_output=transferred,
        )

    def _compute(self, request_id: str, num_computed: int, num_new: int) -> list[int]:
        sequence = self._sequences[request_id]
        self.num_computed_tokens += num_new
        end = num_computed + num_new
        assert end <= len(sequence.tokens), f"{request_id}: tokens {end} of {len(sequence.tokens)}"
        seen: list[np.ndarray] = []
        for index, layer in enumerate(self.memory.layers):
            expected = sequence.canary.of(sequence.tokens, index)[:end]
            table = sequence.tables[layer.group]
            if self.is_checking:
                first = first_read(num_computed + 1, layer.window)
                self._check(request_id, layer, table, expected, first, num_computed)
            self._write(layer, table, expected, num_computed, end)
            first = first_read(end, layer.window)
            seen.append(_gather(layer, table, first, end))
        if end < len(sequence.tokens):
            return []
        token = next_token(seen)
        sequence.tokens.append(token)
        return [token]

    def _check(
        self,
        request_id: str,
        layer: Layer,
        table: list[int],
        expected: np.ndarray,
        first: int,
        end: int,
    ) -> None:
        found = _gather(layer, table, first, end)
        wrong = np.argwhere(~(found == expected[first:end]))
        if wrong.size:
            position = first + int(wrong[0][0])
            block = table[position // BLOCK_TOKENS]
            raise CanaryError(
                f"{request_id}: group {layer.group}, position {position} (block {block}): "
                f"{len(wrong)} wrong elements before position {end}"
            )

    def _write(
        self, layer: Layer, table: list[int], expected: np.ndarray, first: int, end: int
    ) -> None:
        positions = np.arange(first, end)
        ids = np.array(table)[positions // BLOCK_TOKENS]
        is_kept = ids != 0
        layer.pages[ids[is_kept], positions[is_kept] % BLOCK_TOKENS] = expected[first:end][is_kept]


def _prompt_of(new: NewRequestData) -> list[int]:
    if new.prompt_token_ids is not None:
        return list(new.prompt_token_ids)
    return [int(row.sum()) % VOCABULARY for row in new.prompt_embeds]


def _gather(layer: Layer, table: list[int], first: int, end: int) -> np.ndarray:
    positions = np.arange(first, end)
    ids = np.array(table, dtype=np.int64)[positions // BLOCK_TOKENS]
    return layer.pages[ids, positions % BLOCK_TOKENS]
