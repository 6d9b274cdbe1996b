"""Writes entries and erases them, in the order that makes a crash harmless.

What: an entry's data goes first, then its record, then it enters the index; an erased entry leaves
the index first, then its record. Why apart: this order is what the tier's safety rests on.
Where: `disk` hands over reserved slots and places to erase.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from agentkv.tiers.base import Failures
from agentkv.tiers.disk.guards import Breaker
from agentkv.tiers.disk.index import Place, Reservation, SlotIndex
from agentkv.tiers.disk.io import reason_of
from agentkv.tiers.disk.records import Record
from agentkv.tiers.disk.segments import Segment
from agentkv.tiers.disk.slab import Slab
from agentkv.tiers.disk.transfer import Block, Transfers

logger = logging.getLogger(__name__)


class EntryWriter:
    """Thread-safe. Calls block for as long as the device takes; failures are counted."""

    def __init__(
        self,
        slab: Slab,
        index: SlotIndex,
        transfers: Transfers,
        breaker: Breaker,
        failures: Failures,
    ) -> None:
        self._slab = slab
        self._index = index
        self._transfers = transfers
        self._breaker = breaker
        self._failures = failures
        self._stamp_lock = threading.Lock()
        self._last_stamp_us = 0

    def start_after(self, stamp_us: int) -> None:
        """What is written from now on is newer than what was found."""
        self._last_stamp_us = max(self._last_stamp_us, stamp_us)

    def write(
        self, reservations: Sequence[Reservation], sources: Mapping[bytes, memoryview]
    ) -> None:
        """Makes entries of reservations; those that fail are left to be given up."""
        blocks: dict[Reservation, Block] = {}
        for reservation in reservations:
            key, place = reservation.key, reservation.place
            if (segment := self._slab.get(place.segment)) is not None:
                blocks[reservation] = Block(key, sources[key], segment, place.slot)
        self._transfers.write(list(blocks.values()))
        self._write_records(blocks.values())
        self._note(blocks.values())
        cancelled = [
            reservation.place
            for reservation, block in blocks.items()
            if not block.failure and not self._index.commit(reservation, block.data_sum)
        ]
        self._failures.count("not_erased", self.erase(cancelled))

    def erase(self, places: Iterable[Place]) -> int:
        """Erases the records of slots that belong to the caller; of how many it could not.

        A killed process does not bring them back; a power loss may, with the right bytes.
        """
        num_left = 0
        for segment, slots in self._by_segment(places).items():
            try:
                segment.set_records(dict.fromkeys(slots))
            except OSError:
                num_left += len(slots)
        return num_left

    def erase_all(self) -> None:
        """Erases all records; not even a power loss brings them back."""
        for segment in self._slab.segments.values():
            try:
                segment.erase_all()
            except OSError as error:
                self._failures.count(reason_of(error))
                self._delete(segment)

    def _delete(self, segment: Segment) -> None:
        self._index.forget_segment(segment.number)
        try:
            self._slab.delete(segment)
        except OSError as error:
            self._failures.count("not_erased")
            logger.error(
                "agentkv: %s can neither be erased nor deleted (%s): a restart would find it again",
                segment.path,
                error.strerror,
            )

    def _write_records(self, blocks: Collection[Block]) -> None:
        """Where no block was written, what the slot held before is erased."""
        by_segment: dict[Segment, dict[int, Record | None]] = defaultdict(dict)
        for block in blocks:
            record = Record(block.key, block.data_sum, self._next_stamp_us())
            by_segment[block.segment][block.slot] = None if block.failure else record
        reasons: dict[Segment, str] = {}
        for segment, records in by_segment.items():
            try:
                segment.set_records(records)
            except OSError as error:
                reasons[segment] = reason_of(error)
        for block in blocks:
            block.failure = block.failure or reasons.get(block.segment)

    def _note(self, blocks: Iterable[Block]) -> None:
        failures = [block.failure for block in blocks]
        for reason in filter(None, failures):
            self._failures.count(reason)
        if any(failures):
            self._breaker.note_failure()
        elif failures:
            self._breaker.note_success()

    def _next_stamp_us(self) -> int:
        """The wall clock, but never back, so that the newest of two records can be told."""
        with self._stamp_lock:
            self._last_stamp_us = max(self._last_stamp_us + 1, time.time_ns() // 1000)
            return self._last_stamp_us

    def _by_segment(self, places: Iterable[Place]) -> Mapping[Segment, list[int]]:
        by_segment: dict[Segment, list[int]] = defaultdict(list)
        for place in places:
            if (segment := self._slab.get(place.segment)) is not None:
                by_segment[segment].append(place.slot)
        return by_segment
