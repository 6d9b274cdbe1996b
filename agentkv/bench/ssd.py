"""The SSD tier against fio, and against vLLM's tier of one file for each block.

What: the same bytes to and from one directory, by batches; loads in random order.
Why caches are dropped before each load, though direct I/O needs no such thing: a file system that
refuses direct I/O would be read from memory. Why new keys in each round: a tier that has an entry
does not write it again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.bench.fio import Fio, fio_program
from agentkv.bench.memory import BlockMemory
from agentkv.bench.order import batches, forget_cached, names_of, shuffled
from agentkv.bench.rounds import BenchError, Contest
from agentkv.bench.settings import BenchSettings
from agentkv.bench.vllm_files import VLLM_FS, VllmFiles
from agentkv.bench.vllm_parts import why_no_vllm
from agentkv.clock import SystemClock
from agentkv.errors import ConfigError
from agentkv.tiers.base import Entry
from agentkv.tiers.disk.guards import StallWatch
from agentkv.tiers.disk.io import takes_direct_io
from agentkv.tiers.disk.store import DiskStore
from agentkv.tiers.namespace import Namespace

NUM_BATCHES = 4
FIO = "fio"
_COPIES_ON_DISK = 3
_FREE_BYTES = 2 << 30


def ssd_contest(settings: BenchSettings, block_bytes: int, folder: Path) -> Contest:
    """In an empty directory. Raises ConfigError if it cannot be used."""
    num_blocks = settings.num_blocks(block_bytes)
    source = BlockMemory.random(num_blocks, block_bytes, settings.seed)
    target = BlockMemory(num_blocks, block_bytes)
    ours = _Disk(folder / "agentkv", settings, source, target)
    contest = Contest(ours)
    if (program := fio_program()) is None:
        contest.missing[FIO] = "fio is not installed"
    else:
        contest.peers.append(
            Fio(
                program,
                folder / "fio",
                num_bytes=source.num_bytes,
                block_bytes=block_bytes,
                num_jobs=settings.ssd_threads,
                is_direct=ours.is_direct,
                seed=settings.seed,
            )
        )
    if (reason := why_no_vllm()) is None:
        contest.peers.append(VllmFiles(folder / "vllm", settings.seed, source, target))
    else:
        contest.missing[VLLM_FS] = reason
    return contest


def check_room(folder: Path, size_bytes: int) -> None:
    """Raises ConfigError if the bench would fill the file system."""
    needed_bytes = _COPIES_ON_DISK * size_bytes + _FREE_BYTES
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"--path {folder}: {free_bytes >> 20} MiB are free, {needed_bytes >> 20} MiB are "
            "needed; name another directory, or a smaller --size"
        )


class _Disk:
    name = "agentkv"

    def __init__(
        self, folder: Path, settings: BenchSettings, source: BlockMemory, target: BlockMemory
    ) -> None:
        folder.mkdir()
        self._folder, self._seed = folder, settings.seed
        self._source, self._target = source, target
        self._num_threads = settings.ssd_threads
        self.is_direct = takes_direct_io(folder, [], StallWatch(SystemClock()))
        self._store = DiskStore(
            folder,
            size_bytes=source.num_bytes + source.num_bytes // 16 + (8 << 20),
            block_bytes=source.block_bytes,
            namespace=Namespace({"bench": str(settings.seed)}),
            num_threads=settings.ssd_threads,
            min_free_bytes=0,
        )
        self._round = 0
        self._keys: list[bytes] = []

    def store(self) -> float:
        self._store.delete(self._keys)
        self._round += 1
        names = names_of(self._seed, self._round, self._source.num_blocks)
        self._keys = [bytes.fromhex(name) for name in names]
        entries = self._entries(self._source, range(self._source.num_blocks))
        began_s = time.perf_counter()
        is_stored = [all(self._store.store(batch)) for batch in entries]
        return self._checked(time.perf_counter() - began_s, all(is_stored), "take")

    def load(self) -> float:
        self._target.wipe()
        forget_cached(self._folder)
        order = shuffled(self._seed, self._round, self._source.num_blocks)
        entries = self._entries(self._target, order)
        began_s = time.perf_counter()
        is_loaded = [all(self._store.load(batch)) for batch in entries]
        seconds = time.perf_counter() - began_s
        return self._checked(seconds, all(is_loaded) and self._target.equals(self._source), "give")

    def facts(self) -> Mapping[str, Any]:
        return {
            "threads": self._num_threads,
            "direct_io": self.is_direct,
            "batches": NUM_BATCHES,
            "load_order": "random",
        }

    def close(self) -> None:
        self._store.close()

    def _entries(self, memory: BlockMemory, order: Sequence[int]) -> list[list[Entry]]:
        views = memory.views()
        pieces = batches(order, NUM_BATCHES)
        return [[Entry(self._keys[i], views[i]) for i in piece] for piece in pieces]

    def _checked(self, seconds: float, is_done: bool, what: str) -> float:
        if not is_done:
            failures = dict(self._store.take_failures())
            raise BenchError(f"{self._folder}: the SSD tier did not {what} all blocks: {failures}")
        return seconds
