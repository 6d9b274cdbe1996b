"""Public bug reports about KV caches laid out in another way than the copies take them for.

Each test is named after its report in `tests/BUG_REPORTS.md`. The worker's connector is vLLM's,
with our copy worker: it is given tensors, and every byte of every block must come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from kit.engine_config import RigConfig, kv_cache_config, vllm_config
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import GPULoadStoreSpec
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

NUM_BLOCKS, BLOCK_TOKENS, HEADS, HEAD = 9, 16, 2, 8
LAYERS = ("full.0", "full.1")
PAGE_BYTES = 2 * BLOCK_TOKENS * HEADS * HEAD * 4
Caches = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def a_small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


def kv_config(dtype: torch.dtype, head_size: int = HEAD) -> KVCacheConfig:
    config = kv_cache_config(RigConfig(pool_blocks=NUM_BLOCKS - 1))
    group = config.kv_cache_groups[0]
    spec = replace(
        group.kv_cache_spec,
        num_kv_heads=HEADS,
        head_size=head_size,
        head_size_v=head_size,
        dtype=dtype,
    )
    group.kv_cache_spec = spec
    for tensor in config.kv_cache_tensors:
        tensor.size = NUM_BLOCKS * len(LAYERS) * spec.page_size_bytes
        tensor.layer_stride = NUM_BLOCKS * spec.page_size_bytes
        tensor.block_stride = spec.page_size_bytes
    return config


def per_layer(*shape: int, dtype: torch.dtype = torch.float32) -> Caches:
    return {layer: torch.zeros(shape, dtype=dtype) for layer in LAYERS}


def across_layers() -> Caches:
    """One tensor whose blocks hold all layers, side by side."""
    whole = torch.zeros((NUM_BLOCKS, len(LAYERS), 2, BLOCK_TOKENS, HEADS, HEAD))
    return {layer: whole[:, number] for number, layer in enumerate(LAYERS)}


def blocks_of(tensor: torch.Tensor, dim: int) -> list[torch.Tensor]:
    return [tensor.select(dim, block) for block in range(NUM_BLOCKS)]


def fill(tensor: torch.Tensor, seed: int) -> None:
    """Every byte of it is a canary."""
    rng = np.random.default_rng(seed)
    content = rng.bytes(math.prod(tensor.shape) * tensor.element_size())
    tensor.copy_(torch.frombuffer(bytearray(content), dtype=tensor.dtype).reshape(tensor.shape))


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


class Worker:
    """A worker's connector over the given caches."""

    def __init__(self, caches: Caches, config: KVCacheConfig) -> None:
        engine = vllm_config(RigConfig(pool_blocks=NUM_BLOCKS - 1, dram_blocks=32))
        self._connector: Any = KVConnectorFactory.create_connector(
            engine, KVConnectorRole.WORKER, config
        )
        self._connector.register_kv_caches(caches)
        self._worker = self._connector.connector_worker.worker

    def move(self, *, is_store: bool) -> None:
        """All blocks to DRAM, or back; the places there are in another order."""
        gpu = GPULoadStoreSpec(list(range(NUM_BLOCKS)), group_sizes=[NUM_BLOCKS], block_indices=[0])
        dram = CPULoadStoreSpec([(7 * block + 3) % 31 for block in range(NUM_BLOCKS)])
        if is_store:
            self._worker.submit_store(1, gpu, dram)
        else:
            self._worker.submit_load(2, dram, gpu)
        self._worker.wait({1, 2})
        assert self._worker.take_refused() == []

    def close(self) -> None:
        self._connector.shutdown()


def round_trip(caches: Caches, dim: int, config: KVCacheConfig) -> None:
    """Through DRAM and back, with everything overwritten meanwhile."""
    worker = Worker(caches, config)
    try:
        wanted: dict[tuple[str, int], bytes] = {}
        for number, (layer, tensor) in enumerate(caches.items()):
            for block, view in enumerate(blocks_of(tensor, dim)):
                fill(view, 100 * number + block)
                wanted[layer, block] = raw(view)
        worker.move(is_store=True)
        for tensor in caches.values():
            tensor.view(torch.uint8).fill_(0xFF) if tensor.is_contiguous() else tensor.fill_(0)
        worker.move(is_store=False)
        for layer, tensor in caches.items():
            for block, view in enumerate(blocks_of(tensor, dim)):
                assert raw(view) == wanted[layer, block], f"{layer}, block {block}"
    finally:
        worker.close()


SHAPES: dict[str, tuple[Callable[[], Caches], int]] = {
    "N,2,B,H,D": (lambda: per_layer(NUM_BLOCKS, 2, BLOCK_TOKENS, HEADS, HEAD), 0),
    "N,B,H,2D": (lambda: per_layer(NUM_BLOCKS, BLOCK_TOKENS, HEADS, 2 * HEAD), 0),
    "N,H,B,2D": (lambda: per_layer(NUM_BLOCKS, HEADS, BLOCK_TOKENS, 2 * HEAD), 0),
    "N,L,2,B,H,D": (across_layers, 0),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a103_every_byte_of_a_block_comes_back_whatever_its_shape(shape: str) -> None:
    make, dim = SHAPES[shape]
    round_trip(make(), dim, kv_config(torch.float32))


def test_a103_a_cache_whose_blocks_are_not_first_is_refused() -> None:
    """Keys and values in two halves of the tensor: half of each block would be copied."""
    with pytest.raises(AssertionError):  # vLLM's own, at start.
        Worker(per_layer(2, NUM_BLOCKS, BLOCK_TOKENS, HEADS, HEAD), kv_config(torch.float32))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn, torch.bfloat16])
def test_a104_pages_are_bytes_and_scales_inside_them_come_along(dtype: torch.dtype) -> None:
    """For each token and head the data, then a scale of four bytes."""
    head_size = 60 + 4
    shape = (NUM_BLOCKS, 2, BLOCK_TOKENS, HEADS, head_size)
    round_trip(per_layer(*shape, dtype=dtype), 0, kv_config(dtype, head_size))


def test_a_byte_that_was_not_copied_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: half of each page, as in the report."""
    from agentkv.connectors.host_copies import HostCopies, PageCopies

    original = HostCopies._copy

    def half(self: HostCopies, tensor: int, copies: PageCopies, *, kind: int) -> None:
        pages = self._pages[tensor]
        kept = pages[:, PAGE_BYTES // 2 :].copy()
        original(self, tensor, copies, kind=kind)
        if kind == 0:
            pages[:, PAGE_BYTES // 2 :] = kept

    monkeypatch.setattr(HostCopies, "_copy", half)
    make, dim = SHAPES["N,2,B,H,D"]
    with pytest.raises(AssertionError, match="block"):
        round_trip(make(), dim, kv_config(torch.float32))
