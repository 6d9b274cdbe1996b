"""The DRAM tier's copies against plain memcpy.

What: the plugin's copy worker moves scattered blocks of several layers and sums them; the peer
copies as many bytes from one end to the other, in pieces, on as many threads.
Why that peer: no copy can be faster than memcpy of memory that is in use already.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from agentkv.bench.memory import BlockMemory, Bytes
from agentkv.bench.rounds import BenchError, Contest
from agentkv.bench.settings import BenchSettings
from agentkv.bench.vllm_parts import copy_bench

NUM_LAYERS = 16
_PIECE_BYTES = 4 << 20  # As the copy worker's tasks.


def dram_contest(settings: BenchSettings, block_bytes: int) -> Contest:
    """Needs vLLM."""
    num_blocks = settings.num_blocks(block_bytes)
    ours = _Copies(settings, num_blocks, block_bytes)
    return Contest(ours, [_Memcpy(num_blocks * block_bytes, settings.copy_threads)])


class _Copies:
    name = "agentkv"

    def __init__(self, settings: BenchSettings, num_blocks: int, block_bytes: int) -> None:
        self._num_threads = settings.copy_threads
        self._copies = copy_bench().EngineCopies(
            num_blocks=num_blocks,
            block_bytes=block_bytes,
            num_layers=NUM_LAYERS,
            num_threads=settings.copy_threads,
            seed=settings.seed,
        )

    def store(self) -> float:
        return float(self._copies.store())

    def load(self) -> float:
        seconds = float(self._copies.load())
        if not self._copies.is_intact():
            raise BenchError("the DRAM tier's copies did not bring back what was stored")
        return seconds

    def facts(self) -> Mapping[str, Any]:
        return {"threads": self._num_threads, "layers": NUM_LAYERS, "order": "scattered"}

    def close(self) -> None:
        self._copies.close()


class _Memcpy:
    name = "memcpy"

    def __init__(self, num_bytes: int, num_threads: int) -> None:
        self._upper: Bytes = np.zeros(num_bytes, np.uint8)
        self._upper.fill(1)  # Zeroed memory is not there until it is written to.
        self._lower = BlockMemory(1, num_bytes).array
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, "bench-memcpy")

    def store(self) -> float:
        return self._copy(self._lower, self._upper)

    def load(self) -> float:
        return self._copy(self._upper, self._lower)

    def facts(self) -> Mapping[str, Any]:
        return {"threads": self._num_threads, "piece_bytes": _PIECE_BYTES, "order": "in order"}

    def close(self) -> None:
        self._threads.shutdown()

    def _copy(self, target: Bytes, source: Bytes) -> float:
        began_s = time.perf_counter()
        pieces = [slice(i, i + _PIECE_BYTES) for i in range(0, len(source), _PIECE_BYTES)]
        list(self._threads.map(lambda piece: np.copyto(target[piece], source[piece]), pieces))
        return time.perf_counter() - began_s
