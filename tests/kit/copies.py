"""`CpuCopyWorker` under a script: copies that start late, never, or go wrong; steady speeds.

A late copy has not begun: its bytes move only when its delay is over, so a block that is reused too
early is really overwritten under it. `wait` (vLLM's fence) forces the jobs it is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, TransferResult

from agentkv.connectors.cpu_worker import CpuCopyWorker
from agentkv.connectors.host_copies import HostCopies, PageCopies
from agentkv.cost_model import LinkSpeed

FOREVER = 1 << 30
BYTES_PER_S = 4e9
_TIER_BYTES_PER_S = 1e9


class SteadyLink(LinkSpeed):
    """To a tier below DRAM: real times would make decisions depend on the machine."""

    def __init__(self, measured_bytes_per_s: float) -> None:
        super().__init__(_TIER_BYTES_PER_S)

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Always as fast as is said above."""


@dataclass
class CopyScript:
    """Delays in engine steps from the moment vLLM submits the job."""

    store_delay_steps: int = 0
    load_delay_steps: int = 0
    is_failing: bool = False


@dataclass
class _Late:
    is_store: bool
    steps_left: int
    gpu: GPULoadStoreSpec
    dram: LoadStoreSpec


class ScriptedCopyWorker(CpuCopyWorker):
    """Copies finish within the step in which they start, so that a run repeats exactly."""

    def __init__(self, *args: Any, script: CopyScript, **kwargs: Any) -> None:
        self.script = script
        self.num_stores = 0
        self.num_loads = 0
        self.loaded_jobs: list[int] = []
        self._late: dict[int, _Late] = {}
        super().__init__(*args, **kwargs)

    @property
    def num_late(self) -> int:
        return len(self._late)

    def late_jobs(self, *, is_store: bool) -> list[int]:
        return [job_id for job_id, late in self._late.items() if late.is_store is is_store]

    def tick(self) -> None:
        """An engine step has passed."""
        for job_id, late in list(self._late.items()):
            late.steps_left -= 1
            if late.steps_left <= 0:
                self.release(job_id)

    def release(self, *job_ids: int) -> None:
        """Starts late jobs now; without ids: all."""
        for job_id in job_ids or tuple(self._late):
            late = self._late.pop(job_id)
            if late.is_store:
                super().submit_store(job_id, late.gpu, late.dram)
            else:
                super().submit_load(job_id, late.dram, late.gpu)
            super().wait({job_id})

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        if job_id >= 0:
            self.num_stores += 1
        self._submit_late(job_id, _Late(True, self.script.store_delay_steps, src_spec, dst_spec))
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        if job_id >= 0:
            self.num_loads += 1
            self.loaded_jobs.append(job_id)
        self._submit_late(job_id, _Late(False, self.script.load_delay_steps, dst_spec, src_spec))
        return True

    def wait(self, job_ids: set[int]) -> None:
        for job_id in job_ids & self._late.keys():
            self.release(job_id)
        super().wait(job_ids)

    def get_finished(self) -> list[TransferResult]:
        results = super().get_finished()
        for result in results:
            # Real times would make decisions depend on the machine.
            result.transfer_time = (result.transfer_size or 0) / BYTES_PER_S
        return results

    def _submit_late(self, job_id: int, late: _Late) -> None:
        self._late[job_id] = late
        if job_id < 0 or late.steps_left <= 0:
            self.release(job_id)

    def _run_task(self, job: Any, copies: PageCopies) -> None:
        with fail_loads(self.copies) if self.script.is_failing else contextlib.nullcontext():
            super()._run_task(job, copies)


@contextlib.contextmanager
def fail_loads(copies: HostCopies) -> Iterator[None]:
    """Every load raises, as from a broken machine."""

    def broken(_: PageCopies) -> PageCopies:
        raise OSError("scripted")

    copies.load = broken  # type: ignore[method-assign]
    try:
        yield
    finally:
        del copies.load  # type: ignore[method-assign]
