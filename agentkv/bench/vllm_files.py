"""vLLM's own disk tier, which keeps a file for each block, as a peer of the SSD tier."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentkv.bench.memory import BlockMemory
from agentkv.bench.order import forget_cached, names_of, shuffled
from agentkv.bench.rounds import PeerError
from agentkv.bench.vllm_parts import copy_bench

VLLM_FS = "vllm_fs"
VLLM_THREADS = 16
"""Its default, for loads and for stores."""


class VllmFiles:
    name = VLLM_FS

    def __init__(self, folder: Path, seed: int, source: BlockMemory, target: BlockMemory) -> None:
        folder.mkdir()
        self._folder, self._seed = folder, seed
        self._source, self._target = source, target
        self._files = copy_bench().BlockFiles(
            folder, source.view(), source.block_bytes, VLLM_THREADS
        )
        self._round = 0
        self._names: list[str] = []

    def store(self) -> float:
        for name in self._names:
            self._files.path(name).unlink()
        self._round += 1
        self._names = names_of(self._seed, self._round, self._source.num_blocks)
        try:
            return float(self._files.store(self._names))
        except OSError as error:
            raise PeerError(str(error)) from None

    def load(self) -> float:
        self._target.wipe()
        forget_cached(self._folder)
        order = shuffled(self._seed, self._round, self._source.num_blocks)
        try:
            seconds = float(self._files.load(self._names, order, self._target.view()))
        except OSError as error:
            raise PeerError(str(error)) from None
        if not self._target.equals(self._source):
            raise PeerError("vLLM's disk tier brought other bytes back")
        return seconds

    def facts(self) -> Mapping[str, Any]:
        return {
            "threads": VLLM_THREADS,
            "direct_io": self._files.is_direct,
            "load_order": "random",
        }

    def close(self) -> None:
        self._files.close()
