"""Moves blocks between memory and slots, several at a time.

What: sorts blocks into runs of neighbouring slots, moves each run by one system call, on a few
threads, and makes or checks the blocks' sums on the way.
Why threads: one thread does not keep an SSD busy, and sums of one run are made while another is
under way. Loads have threads of their own: they must not queue behind stores.
Why a copy on the way: a device takes one large page faster than hundreds of small ones, by more
than the copy costs (measured on a virtual disk: 2.5 times for loads).
Where: `disk` hands blocks over and looks at what became of each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from agentkv.tiers.disk.io import BounceMemory, copy_bytes, is_page_aligned, reason_of
from agentkv.tiers.disk.records import DataSums
from agentkv.tiers.disk.segments import Segment

_MAX_RUN_BYTES = 1 << 20
_MAX_RUN_BLOCKS = 256  # Below IOV_MAX.


@dataclass(slots=True, eq=False)
class Block:
    """A slot, and the memory its bytes come from or go to."""

    key: bytes
    data: memoryview
    segment: Segment
    slot: int
    data_sum: int = 0
    failure: str | None = None
    """Why it was not moved, as counted; None if it was."""


class Transfers:
    """Thread-safe. Calls block for as long as the device takes; they raise nothing."""

    def __init__(self, sums: DataSums, num_threads: int, *, uses_callers_memory: bool) -> None:
        self._sums = sums
        self._uses_callers_memory = uses_callers_memory
        self._bounce = BounceMemory()
        # The calling thread is one of them.
        self._num_threads = num_threads
        helpers = max(1, num_threads - 1)
        self._load_threads = ThreadPoolExecutor(helpers, thread_name_prefix="agentkv-disk-load")
        self._store_threads = ThreadPoolExecutor(helpers, thread_name_prefix="agentkv-disk-store")

    def write(self, blocks: Sequence[Block]) -> None:
        """Writes blocks to their slots and sets their sums or failures."""
        self._all_runs(self._store_threads, self._write_run, blocks)

    def read(self, blocks: Sequence[Block]) -> None:
        """Reads blocks from their slots and sets the failures of those that are not right."""
        self._all_runs(self._load_threads, self._read_run, blocks)

    def close(self) -> None:
        """Ends the threads; does not wait for them."""
        self._load_threads.shutdown(wait=False)
        self._store_threads.shutdown(wait=False)

    def _all_runs(
        self,
        threads: ThreadPoolExecutor,
        move: Callable[[Sequence[Block]], None],
        blocks: Sequence[Block],
    ) -> None:
        runs = deque(self._runs(blocks))

        def work() -> None:
            while run := _next(runs):
                move(run)

        helpers: list[Future[None]] = []
        for _ in range(min(len(runs), self._num_threads) - 1):
            try:
                helpers.append(threads.submit(work))
            except RuntimeError:  # The process ends, or can have no more threads.
                break
        work()
        for helper in helpers:
            if not helper.cancel():  # It may not have begun, and then has nothing left to do.
                helper.result()

    def _write_run(self, run: Sequence[Block]) -> None:
        segment, views = run[0].segment, [block.data for block in run]
        try:
            if not self._goes_directly(run[0]):
                views = self._bounce_views(run)
                for block, view in zip(run, views, strict=True):
                    copy_bytes(block.data, view)
            for block, view in zip(run, views, strict=True):
                # The sum is of what is written, also if the caller changes its memory meanwhile.
                block.data_sum = self._sums.of(block.key, view[: len(block.data)])
            segment.write_slots(run[0].slot, views)
        except OSError as error:
            for block in run:
                block.failure = reason_of(error)

    def _read_run(self, run: Sequence[Block]) -> None:
        segment, views = run[0].segment, [block.data for block in run]
        is_direct = self._goes_directly(run[0])
        try:
            if not is_direct:
                views = self._bounce_views(run)
            num_bytes = segment.read_slots(run[0].slot, views)
        except OSError:
            self._read_again(run)
            return
        for index, (block, view) in enumerate(zip(run, views, strict=True)):
            if num_bytes < (index + 1) * segment.shape.slot_bytes:
                block.failure = "short_read"
            elif self._sums.of(block.key, view[: len(block.data)]) != block.data_sum:
                block.failure = "checksum"
            elif not is_direct:
                copy_bytes(view[: len(block.data)], block.data)

    def _bounce_views(self, run: Sequence[Block]) -> list[memoryview]:
        """A slot's worth for each; neighbours, so that the device sees one piece."""
        slot_bytes = run[0].segment.shape.slot_bytes
        memory = self._bounce.of(len(run) * slot_bytes)
        return [memory[start : start + slot_bytes] for start in range(0, len(memory), slot_bytes)]

    def _goes_directly(self, block: Block) -> bool:
        shape = block.segment.shape
        if not self._uses_callers_memory or shape.slot_bytes != shape.block_bytes:
            return False
        return not block.segment.is_direct or is_page_aligned(block.data)

    def _runs(self, blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
        """Blocks of neighbouring slots that can be moved by one call."""
        ordered = sorted(blocks, key=lambda block: (block.segment.number, block.slot))
        start = 0
        for end in range(1, len(ordered) + 1):
            if end == len(ordered) or not self._continues(ordered, start, end):
                yield ordered[start:end]
                start = end

    def _continues(self, ordered: Sequence[Block], start: int, end: int) -> bool:
        first, last, block = ordered[start], ordered[end - 1], ordered[end]
        num_blocks = end - start + 1
        return (
            block.segment is last.segment
            and block.slot == last.slot + 1
            and num_blocks <= _MAX_RUN_BLOCKS
            and num_blocks * first.segment.shape.slot_bytes <= _MAX_RUN_BYTES
            and self._goes_directly(block) == self._goes_directly(first)
        )

    def _read_again(self, run: Sequence[Block]) -> None:
        """One bad sector must not take the blocks beside it along."""
        for block in run:
            if len(run) > 1:
                self._read_run([block])
            else:
                block.failure = "io_error"


def _next(runs: deque[Sequence[Block]]) -> Sequence[Block]:
    """Empty when none is left."""
    try:
        return runs.popleft()
    except IndexError:
        return ()
