"""vLLM's thread pool twice: threads that only load, and threads that only store.

In the one pool each thread helps out with the other kind, and a turn that returns would wait for a
store to end if all threads happen to store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool

Tasks = Iterable[Callable[[], object]]


class SplitPool:
    """Owned by the scheduler thread."""

    def __init__(self, num_threads: int, name: str) -> None:
        """Half of the threads load, half store; at least one each."""
        num_stores = max(1, num_threads // 2)
        num_loads = max(1, num_threads - num_stores)
        self._loads = DualQueueThreadPool(num_loads, 0, f"agentkv-{name}")
        self._stores = DualQueueThreadPool(0, num_stores, f"agentkv-{name}")

    def load(self, job_id: int, num_tasks: int, tasks: Tasks) -> None:
        self._loads.enqueue_load(job_id, num_tasks, tasks)

    def store(self, job_id: int, num_tasks: int, tasks: Tasks) -> None:
        self._stores.enqueue_store(job_id, num_tasks, tasks)

    def take_finished(self) -> list[int]:
        """Ids of the jobs of which all tasks have ended since the last call."""
        finished = [*self._loads.get_finished(), *self._stores.get_finished()]
        return [job_id for job_id, _, _ in finished]

    def wait_idle(self) -> None:
        """Blocks until nothing runs or is queued."""
        self._loads.wait_idle()
        self._stores.wait_idle()

    def shutdown(self) -> None:
        """Forgets what is queued, waits for what runs."""
        self._loads.shutdown()
        self._stores.shutdown()
