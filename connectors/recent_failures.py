"""Blocks that could not be loaded just now: not asked for at every step, or a turn would wait."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable

from vllm.v1.kv_offload.base import OffloadKey

_FAILED_FOR_S = 30.0


class RecentFailures:
    """Owned by the scheduler thread. A block is in it for half a minute after it failed."""

    def __init__(self) -> None:
        self._until_s: OrderedDict[OffloadKey, float] = OrderedDict()

    def __contains__(self, key: OffloadKey) -> bool:
        if not self._until_s:
            return False
        now_s = time.monotonic()
        while self._until_s and next(iter(self._until_s.values())) <= now_s:
            self._until_s.popitem(last=False)
        return key in self._until_s

    def add(self, keys: Iterable[OffloadKey]) -> None:
        until_s = time.monotonic() + _FAILED_FOR_S
        for key in keys:
            self._until_s[key] = until_s
            self._until_s.move_to_end(key)

    def discard(self, key: OffloadKey) -> None:
        self._until_s.pop(key, None)

    def clear(self) -> None:
        self._until_s.clear()
