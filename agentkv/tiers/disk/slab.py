"""The segments of one engine, and how many there may be.

What: opens what an earlier run left, adds segments while there is room, and reclaims directories
that nobody uses. Why segments: a file per block costs several times the write speed, and one big
file would take its whole size at once. Where: `disk` asks it for room and for segments by number.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentkv.clock import Clock
from agentkv.errors import ConfigError
from agentkv.tiers.base import Failures
from agentkv.tiers.disk.guards import StallWatch
from agentkv.tiers.disk.io import reason_of, takes_direct_io
from agentkv.tiers.disk.records import PAGE_BYTES, Record, Shape
from agentkv.tiers.disk.segments import DamagedSegmentError, Segment
from agentkv.tiers.disk.space import EngineDirectory, FreeSpace, segment_path

logger = logging.getLogger(__name__)

_FOLDER_BYTES = 8 * PAGE_BYTES  # Directories, manifest and lock.
_MIN_SEGMENT_BYTES = 1 << 30
_MAX_SEGMENTS = 64  # Each holds a file descriptor.
_RETRY_GROWTH_S = 10.0
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class SlabPlan:
    """What a slab may take, in bytes, and what it holds."""

    size_bytes: int
    block_bytes: int
    namespace: str
    segment_bytes: int
    min_free_bytes: int | None

    @classmethod
    def of(
        cls,
        size_bytes: int,
        block_bytes: int,
        namespace: str,
        segment_bytes: int | None,
        min_free_bytes: int | None,
    ) -> SlabPlan:
        """Raises ConfigError if not even one block would fit."""
        smallest_bytes = _FOLDER_BYTES + Shape(block_bytes, 1).disk_bytes
        if size_bytes < smallest_bytes:
            raise ConfigError(
                f"{size_bytes} bytes are too few for one block of {block_bytes} bytes; "
                f"give it at least {smallest_bytes}"
            )
        segment_bytes = segment_bytes or max(_MIN_SEGMENT_BYTES, -(-size_bytes // _MAX_SEGMENTS))
        segment_bytes = max(segment_bytes, Shape(block_bytes, 1).disk_bytes)
        return cls(size_bytes, block_bytes, namespace, segment_bytes, min_free_bytes)


class Slab:
    """Thread-safe but for `open`."""

    def __init__(
        self,
        directory: EngineDirectory,
        plan: SlabPlan,
        watch: StallWatch,
        failures: Failures,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._watch = watch
        self._failures = failures
        self._clock = clock
        self._lock = threading.Lock()  # Held while a segment is made; readers do not take it.
        self._segments: dict[int, Segment] = {}  # Replaced, never changed.
        self._next_number = 0
        self._retry_growth_at_s = float("-inf")
        self._is_direct = False

    def get(self, number: int) -> Segment | None:
        """None if it is lost."""
        return self._segments.get(number)

    @property
    def segments(self) -> Mapping[int, Segment]:
        return self._segments

    def open(self) -> list[tuple[Segment, dict[int, Record]]]:
        """What is there already, with its records; within the size allowed. Raises ConfigError."""
        folder, paths = self._directory.folder, self._directory.segments()
        try:
            self._is_direct = takes_direct_io(folder, paths.values(), self._watch)
            if not self._is_direct:
                logger.warning("agentkv: no direct I/O on %s; it goes by the page cache", folder)
            self._next_number = max(paths, default=-1) + 1
            found = [s for number, path in sorted(paths.items()) if (s := self._open(number, path))]
            kept = sorted(self._within_size(found), key=lambda s: s[0].number)
            self._segments = {segment.number: segment for segment, _ in kept}
            self._directory.reclaim(self._left_bytes())
            self._warn_if_short()
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot be written ({error.strerror}); make room or name another "
                "directory"
            ) from error
        return kept

    def grow(self, note_failure: Callable[[], None]) -> Segment | None:
        """One more segment, if the size allowed and the file system have room for it.

        Blocks while it is made. Failures are counted, and told if the device is at fault.
        """
        with self._lock:
            if self._clock.monotonic_s() < self._retry_growth_at_s:
                return None
            shape = self._largest(self._left_bytes())
            if shape is None:
                return None
            try:
                segment = self._create(shape)
            except OSError as error:
                self._failures.count(reason_of(error))
                self._retry_growth_at_s = self._clock.monotonic_s() + _RETRY_GROWTH_S
                if reason_of(error) != "disk_full":
                    note_failure()
                return None
            self._segments = {**self._segments, segment.number: segment}
            return segment

    def take_lost(self) -> list[int]:
        """Segments whose files or directory somebody deleted; they are told of once."""
        folder = self._directory.folder
        lost = [s for s in self._segments.values() if s.is_deleted or s.path.parent != folder]
        for segment in lost:
            self._forget(segment)
        return [segment.number for segment in lost]

    def delete(self, segment: Segment) -> None:
        """Deletes a segment's file. Raises OSError, but forgets it in any case."""
        self._forget(segment)
        segment.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Forgets all segments and gives the directory up; files close with their last use."""
        self._segments = {}
        self._directory.close()

    def _forget(self, segment: Segment) -> None:
        with self._lock:
            self._segments = {n: s for n, s in self._segments.items() if s is not segment}
            self._retry_growth_at_s = float("-inf")

    def _open(self, number: int, path: Path) -> tuple[Segment, dict[int, Record]] | None:
        try:
            segment = Segment.open(
                number,
                path,
                self._plan.block_bytes,
                self._plan.namespace,
                watch=self._watch,
                is_direct=self._is_direct,
            )
        except (OSError, DamagedSegmentError) as error:
            if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
                raise ConfigError(f"{path}: too many open files; raise `ulimit -n`") from error
            self._failures.count("damaged_segment")
            logger.warning("agentkv: %s is dropped: %s", path, error)
            self._unlink(path)
            return None
        records, num_damaged = segment.records()
        self._failures.count("damaged_record", num_damaged)
        return segment, records

    def _within_size(
        self, found: list[tuple[Segment, dict[int, Record]]]
    ) -> list[tuple[Segment, dict[int, Record]]]:
        """Without the segments that were stored to the longest ago, if there are too many."""
        found.sort(key=lambda s: max((r.stored_at_us for r in s[1].values()), default=0))
        kept = list(found)
        used_bytes = _FOLDER_BYTES + sum(s.shape.disk_bytes for s, _ in found)
        for segment, _ in found:
            if used_bytes <= self._plan.size_bytes:
                break
            kept.pop(0)
            used_bytes -= segment.shape.disk_bytes
            self._unlink(segment.path)
        return kept

    def _left_bytes(self) -> int:
        used_bytes = sum(segment.shape.disk_bytes for segment in self._segments.values())
        return self._plan.size_bytes - _FOLDER_BYTES - used_bytes

    def _largest(self, disk_bytes: int) -> Shape | None:
        return Shape.fitting(self._plan.block_bytes, min(disk_bytes, self._plan.segment_bytes))

    def _create(self, wanted: Shape) -> Segment:
        """Raises OSError; ENOSPC also where others need what is left of the disk."""
        if not self._directory.ensure():
            # Another place, perhaps with another run's files, which nobody has read.
            known = {segment.path for segment in self._segments.values()}
            for path in self._directory.segments().values():
                if path not in known:
                    path.unlink()
        self._directory.reclaim(self._left_bytes() - wanted.disk_bytes)
        shape = self._within_free_space(wanted)
        if shape is None:
            raise OSError(errno.ENOSPC, "the disk is nearly full")
        while True:
            number, self._next_number = self._next_number, self._next_number + 1
            try:
                return Segment.create(
                    number,
                    segment_path(self._directory.folder, number),
                    shape,
                    self._plan.namespace,
                    watch=self._watch,
                    is_direct=self._is_direct,
                )
            except FileExistsError:
                continue  # Something that is not ours has the name.

    def _within_free_space(self, wanted: Shape) -> Shape | None:
        """As much of it as the file system has room for; None if that is not worth a file."""
        free_bytes = self._free_bytes()
        if free_bytes < wanted.disk_bytes and self._directory.reclaim(0):
            free_bytes = self._free_bytes()
        shape = self._largest(min(free_bytes, wanted.disk_bytes))
        return shape if shape and shape.num_slots * 16 >= wanted.num_slots else None

    def _free_bytes(self) -> int:
        return FreeSpace.at(self._directory.folder).room_bytes(self._plan.min_free_bytes)

    def _warn_if_short(self) -> None:
        room_bytes = self._free_bytes() + self._directory.idle_bytes()
        missing_bytes = self._left_bytes() - room_bytes
        if missing_bytes > 0:
            logger.warning(
                "agentkv: %s has %d bytes less free than the tier may take; %s",
                self._directory.folder,
                missing_bytes,
                "it will be smaller"
                if room_bytes > 0
                else "nothing more is stored there: free some, or set ssd.min_free_bytes lower",
            )

    @staticmethod
    def _unlink(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("agentkv: %s cannot be deleted: %s", path, error.strerror)
