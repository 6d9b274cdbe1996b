"""Whose load was refused by the CPU worker, in the terms in which vLLM wants to hear it.

A refused page costs its turn the KV behind it, so vLLM is told: by block where there is one KV
group, by request where there are several (it recomputes the whole). A prefetch has nobody who could
recompute: its stand-in is reported to our own scheduler side. Where: `connector`, worker role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentkv import metrics
from agentkv.metrics import Recorder

from .cpu_worker import RefusedPage
from .pool_load import REQUEST_PREFIX


class RefusedLoads:
    """Collects between two reports. Owned by the worker's thread."""

    def __init__(self, num_groups: int, recorder: Recorder) -> None:
        self._num_groups = num_groups
        self._recorder = recorder
        self._block_ids: set[int] = set()
        self._chunks: list[int] = []
        self._requests: set[str] = set()
        self._prefetches: list[str] = []

    def note(self, pages: Iterable[RefusedPage], owners: Mapping[int, str]) -> None:
        """These pages were refused; `owners`: the request id of each load job."""
        for page in pages:
            self._chunks.append(page.chunk_id)
            self._recorder.count(metrics.LOAD_FAILURES, "checksum")
            owner = owners.get(page.job_id)
            if owner is not None and owner.startswith(REQUEST_PREFIX):
                self._prefetches.append(owner)
            elif self._num_groups == 1:
                self._block_ids.add(page.block_id)
            elif owner is not None:
                self._requests.add(owner)

    def take_requests(self, received: set[str]) -> set[str]:
        """Those among them that failed: vLLM takes that in the pass in which it hears of both."""
        failed = self._requests & received
        self._requests -= failed
        return failed

    def take_block_ids(self) -> set[int]:
        """KV blocks that turns have to recompute."""
        block_ids, self._block_ids = self._block_ids, set()
        return block_ids

    def take_chunks(self) -> list[int]:
        """DRAM chunks at fault."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def take_prefetches(self) -> list[str]:
        """Stand-ins of prefetches of which a page was refused."""
        prefetches, self._prefetches = self._prefetches, []
        return prefetches
