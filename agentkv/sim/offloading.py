"""What vLLM's offloading connector stores in DRAM, and when: step by step, while turns compute.

From vLLM 0.32 (`offloading/scheduler.py`, `kv_offload/cpu/manager.py`): a step offers the full
blocks that it will have computed. What DRAM lacks of them is stored, all of it or, where not
enough can be evicted, none until the next step. A turn that loaded offers nothing up to the end of
what it loaded, any other also what it found in the pool. When a turn ends, what it loaded and
offered becomes the most recently used, the root last.
Where: both keepers have one; `engine` tells them.
"""

from __future__ import annotations

from agentkv.sim.machine import Machine, Request


class Offloading:
    """Keeps what each running turn has loaded and offered."""

    def __init__(self, machine: Machine) -> None:
        self._dram = machine.dram
        self._block_tokens = machine.block_tokens
        self._used: dict[str, tuple[int, int]] = {}

    def scheduled(self, request: Request) -> None:
        """A turn got its blocks and may begin to load."""
        if self._dram.num_blocks:
            end = request.gpu_hit + request.dram_hit
            span = (request.gpu_hit, end) if request.dram_hit else (0, 0)
            self._used[request.request_id] = span

    def computing(self, request: Request, num_tokens: int) -> None:
        """After the next step so many tokens of the turn are computed."""
        self._offer(request, num_tokens // self._block_tokens)

    def finished(self, request: Request, *, is_stored: bool = True) -> None:
        """`is_stored` False: nothing of this turn was to be stored."""
        if is_stored:
            self._offer(request, len(request.chain))
        start, end = self._used.pop(request.request_id, (0, 0))
        self._dram.touch(request.chain[start:end])

    def _offer(self, request: Request, end: int) -> None:
        span = self._used.get(request.request_id)
        if span is not None and span[1] < end and self._dram.offer(request.chain[span[1] : end]):
            self._used[request.request_id] = (span[0], end)
