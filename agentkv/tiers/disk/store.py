"""The SSD tier: blocks in the slots of a few large files.

What: a `TierStore` on a local directory, of a fixed size in real bytes, that survives restarts.
Why it is safe at any moment: data is written before its record, a record's sum covers its slot and
the data's sum covers key and bytes, and each load checks both; so after a crash an entry is there
bit by bit, or it is missing. Where: `connectors` calls it from threads of its own.

Follow an entry: `index` gives it a slot, `transfer` writes its bytes, `segments` its
record, `slab` knows the files, `space` the directory, `guards` when not to try.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

from agentkv.clock import Clock, SystemClock
from agentkv.tiers.base import MAX_KEY_BYTES, Entry, Failures, TierUsage
from agentkv.tiers.disk.guards import Breaker, Gate, StallWatch, WriteRate
from agentkv.tiers.disk.index import Holding, Place, Reservation, SlotIndex
from agentkv.tiers.disk.records import DataSums, Shape
from agentkv.tiers.disk.slab import Slab, SlabPlan
from agentkv.tiers.disk.space import EngineDirectory
from agentkv.tiers.disk.transfer import Block, Transfers
from agentkv.tiers.disk.writer import EntryWriter
from agentkv.tiers.namespace import Namespace

_CLOSE_WAIT_S = 5.0


class DiskStore:
    """See `TierStore`. Blocks as long as the device takes, and raises only when it is made."""

    def __init__(
        self,
        path: Path,
        *,
        size_bytes: int,
        block_bytes: int,
        namespace: Namespace,
        max_write_bytes_per_s: int | None = None,
        num_threads: int = 4,
        min_free_bytes: int | None = None,
        segment_bytes: int | None = None,
        uses_callers_memory: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Opens the store and reads the tables of what an earlier run left.

        `size_bytes` bounds all files together; `min_free_bytes` stay free for others, by default
        1 GiB or 2 % of the file system. `uses_callers_memory` spares a copy where the device can
        use entries' memory as it is: worth it only if that lies in large pages. Raises ConfigError
        for what the user must mend.
        """
        clock = clock or SystemClock()
        plan = SlabPlan.of(size_bytes, block_bytes, namespace.digest, segment_bytes, min_free_bytes)
        self._block_bytes, self._size_bytes = block_bytes, size_bytes
        self._slot_bytes = Shape(block_bytes, 1).slot_bytes
        self._failures = Failures()
        self._watch = StallWatch(clock)
        self._reads, self._writes = Breaker(clock), Breaker(clock)
        self._write_rate = WriteRate(max_write_bytes_per_s, self._slot_bytes, clock)
        self._gate = Gate()
        self._growing = threading.Lock()
        self._index = SlotIndex()
        self._directory = EngineDirectory(path, namespace)
        self._slab = Slab(self._directory, plan, self._watch, self._failures, clock)
        self._transfers = Transfers(
            DataSums(namespace.digest), num_threads, uses_callers_memory=uses_callers_memory
        )
        self._writer = EntryWriter(
            self._slab, self._index, self._transfers, self._writes, self._failures
        )
        try:
            self._restore()
        except BaseException:
            self._end()
            raise

    # --- questions, answered from memory ---

    @property
    def name(self) -> str:
        return "ssd"

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    @property
    def is_index_local(self) -> bool:
        return True

    @property
    def is_available(self) -> bool:
        """Also True while it can only be read from."""
        if self._gate.is_closed or self._reads.is_open or self._watch.is_stalled:
            return False
        return not self._writes.is_open or len(self._index) > 0

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        return self._index.has(keys) if self.is_available else [False] * len(keys)

    def watch(self) -> list[bytes]:
        return self._index.watch()

    def take_lost(self) -> set[bytes]:
        return self._index.take_lost()

    def touch(self, keys: Collection[bytes]) -> None:
        self._index.touch(keys)

    def usage(self) -> TierUsage:
        num_entries = 0 if self._gate.is_closed else len(self._index)
        return TierUsage(num_entries, num_entries * self._slot_bytes, self._size_bytes)

    def take_failures(self) -> Mapping[str, int]:
        """Reasons, each counted per entry unless it says otherwise.

        A load: `checksum`, `short_read`, `io_error`. A store: `io_error`, `disk_full` (also once
        for each time that the files could not grow), `no_room`, `write_rate`. Either: `bad_entry`,
        `unavailable` (closed, broken or stalled). At the start or later: `damaged_record`,
        `damaged_segment`, `lost_file` (both per file), `not_erased` (a restart may find it again).
        """
        return self._failures.take()

    def other_namespaces(self) -> list[Namespace]:
        """Whose entries lay beside ours at the start: see `explain_misses`."""
        return list(self._directory.others)

    # --- what does I/O ---

    def store(self, entries: Sequence[Entry]) -> list[bool]:
        with self._gate.passing() as is_let_in:
            if not is_let_in or self._writes.is_open or self._watch.is_stalled:
                self._failures.count("unavailable", len(entries))
            else:
                self._store(entries)
            return self.contains([entry.key for entry in entries])

    def load(self, entries: Sequence[Entry]) -> list[bool]:
        with self._gate.passing() as is_let_in:
            if not (is_let_in and self.is_available):
                self._failures.count("unavailable", len(entries))
                return [False] * len(entries)
            self._forget_lost()
            holdings = self._index.pin(entry.key for entry in entries)
            try:
                return self._load(entries, holdings)
            finally:
                self._index.unpin(holding for holding in holdings if holding is not None)

    def delete(self, keys: Collection[bytes]) -> int:
        with self._gate.passing() as is_let_in:
            if not is_let_in:
                return 0
            removed, cancelled = self._index.remove(keys)
            num_left = self._writer.erase(holding.place for holding in removed)
            self._failures.count("not_erased", num_left)
            self._index.unpin(removed)
            _wait_for(cancelled)
            return len(removed)

    def clear(self) -> None:
        with self._gate.passing() as is_let_in:
            if not is_let_in:
                return
            removed, cancelled = self._index.remove_all()
            _wait_for(cancelled)
            self._writer.erase_all()
            self._index.unpin(removed)

    def close(self) -> None:
        """Waits a few seconds for running calls; if the device is stuck, the last of them ends."""
        self._gate.close(self._end, _CLOSE_WAIT_S)

    # --- how ---

    def _store(self, entries: Sequence[Entry]) -> None:
        self._forget_lost()
        sources: dict[bytes, memoryview] = {}
        for entry in entries:
            if self._fits(entry, is_load=False):
                sources.setdefault(entry.key, entry.data)
        absent = self._index.absent(sources)
        num_admitted = self._write_rate.take(len(absent))
        self._failures.count("write_rate", len(absent) - num_admitted)
        self._grow_for(num_admitted)
        over_rate = set(absent[num_admitted:])
        reserved = self._index.reserve([key for key in sources if key not in over_rate])
        self._failures.count("no_room", reserved.num_refused)
        self._write_rate.give_back(num_admitted - len(reserved.mine))
        try:
            self._writer.write(reserved.mine, sources)
        finally:
            self._index.give_up(reserved.mine)
        _wait_for(reserved.under_way)

    def _grow_for(self, num_blocks: int) -> None:
        if self._index.num_free >= num_blocks:
            return
        # Else a call that finds no more room to grow would not find the slots of the last growth.
        with self._growing:
            while self._index.num_free < num_blocks:
                segment = self._slab.grow(self._writes.note_failure)
                if segment is None:
                    break
                self._index.add_slots(segment.number, segment.shape.num_slots)

    def _load(self, entries: Sequence[Entry], holdings: Sequence[Holding | None]) -> list[bool]:
        blocks = [self._block(*pair) for pair in zip(entries, holdings, strict=True)]
        self._transfers.read([block for block in blocks if block is not None])
        failures = [block.failure for block in blocks if block is not None]
        for reason in filter(None, failures):
            self._failures.count(reason)
        if "io_error" in failures:
            self._reads.note_failure()
        elif failures:
            self._reads.note_success()
        pairs = list(zip(holdings, blocks, strict=True))
        damaged = [holding for holding, block in pairs if holding and block and block.failure]
        self._index.drop(damaged)
        self._writer.erase(holding.place for holding in damaged)
        return [bool(h and block and not block.failure and not h.is_dropped) for h, block in pairs]

    def _block(self, entry: Entry, holding: Holding | None) -> Block | None:
        if holding is None or not self._fits(entry, is_load=True):
            return None
        segment = self._slab.get(holding.place.segment)
        if segment is None:
            return None
        return Block(entry.key, entry.data, segment, holding.place.slot, holding.data_sum)

    def _fits(self, entry: Entry, *, is_load: bool) -> bool:
        data = entry.data
        fits = (
            0 < len(entry.key) <= MAX_KEY_BYTES
            and data.nbytes == self._block_bytes
            and (data.format, data.ndim, data.contiguous) == ("B", 1, True)
            and not (is_load and data.readonly)
        )
        self._failures.count("bad_entry", not fits)
        return fits

    def _forget_lost(self) -> None:
        """Somebody may have deleted our files: what was in them is missing, not broken."""
        for number in self._slab.take_lost():
            self._failures.count("lost_file")
            self._index.forget_segment(number)

    def _restore(self) -> None:
        """Takes over what an earlier run left."""
        found: list[tuple[int, Holding]] = []
        for segment, records in self._slab.open():
            self._index.add_slots(segment.number, segment.shape.num_slots, records)
            for slot, record in records.items():
                holding = Holding(record.key, Place(segment.number, slot), record.data_sum)
                found.append((record.stored_at_us, holding))
        found.sort(key=itemgetter(0))
        replaced = self._index.restore(holding for _, holding in found)
        self._writer.erase(holding.place for holding in replaced)
        self._writer.start_after(found[-1][0] if found else 0)

    def _end(self) -> None:
        self._index.remove_all()
        self._transfers.close()
        self._slab.close()


def _wait_for(reservations: Iterable[Reservation]) -> None:
    """Until other calls are done with them."""
    for reservation in reservations:
        reservation.over.wait()
