"""Requests that were preempted outside a step.

Only `reset_prefix_cache(reset_running_requests=True)` does that. vLLM would admit such a request
again within the same step, and its offloading fails an assertion when that finds something to load
(`build_connector_meta` takes every job of a preempted request for a store). It has to wait for one
step.
"""

from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.request import Request


class Preemptions:
    """Owned by the scheduler thread; its length is the number of requests it remembers."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def note(self, preempted: Iterable[Request]) -> None:
        """A step was put together, and preempted these."""
        for request in preempted:
            self._counts[request.request_id] = request.num_preemptions

    def is_new(self, request: Request) -> bool:
        """Whether a request was preempted after the last step was put together."""
        return bool(request.num_preemptions > self._counts.get(request.request_id, 0))

    def forget(self, request_id: str) -> None:
        self._counts.pop(request_id, None)
