"""Blocks of DRAM that are not what was stored there: dropped, so that no look-up finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vllm.v1.kv_offload.base import OffloadKey

from .cache_policy import AgentKVCachePolicy


class DamagedBlocks:
    """Owned by the scheduler thread; its length is the number still to be dropped."""

    def __init__(self, dram: AgentKVCachePolicy, drop: Callable[[OffloadKey], bool]) -> None:
        """`drop` removes a block unless a copy uses it just now; tells whether it is gone."""
        self._dram = dram
        self._drop = drop
        self._keys: set[OffloadKey] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, chunk_ids: Iterable[int]) -> None:
        keys = (self._dram.key_of_chunk(chunk_id) for chunk_id in chunk_ids)
        self._keys.update(key for key in keys if key is not None)

    def drop(self) -> None:
        """A block that another load still reads is dropped after it."""
        if self._keys:
            self._keys = {key for key in self._keys if not self._drop(key)}

    def clear(self) -> None:
        self._keys.clear()
