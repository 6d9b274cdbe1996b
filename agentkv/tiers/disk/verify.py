"""Reads every entry of a directory of the SSD tier and compares it with its sum.

What: damaged files, records and entries by name; on demand they are dropped. An engine finds the
same when it loads them; this finds it before. Why directories in use are left out: their slots
change under the reading, and a new block with an old sum would look damaged.
Where: `agentkv store verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentkv.clock import SystemClock
from agentkv.tiers.disk.guards import StallWatch
from agentkv.tiers.disk.inspect import NamespaceFacts, held_still, inspect_disk
from agentkv.tiers.disk.read_segment import Table, opened, read_into, read_table
from agentkv.tiers.disk.records import DataSums
from agentkv.tiers.disk.segments import DamagedSegmentError, Segment
from agentkv.tiers.disk.space import DirectoryLock, _segments


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not what it was stored as.

    `slot` is None for a whole file; `key` is the entry's, in hexadecimal, where it is known.
    """

    path: Path
    problem: str
    slot: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class EngineVerdict:
    """Of one engine's directory; with `is_in_use` nothing of it was read."""

    folder: Path
    num_sound: int
    damages: tuple[Damage, ...]
    num_dropped: int = 0
    is_in_use: bool = False


OnEntry = Callable[[], None]


def verify_disk(
    path: Path, *, drop_damaged: bool = False, on_entry: OnEntry = lambda: None
) -> list[EngineVerdict]:
    """Reads all of it; blocks for as long as the disk takes. `on_entry` is told of each entry.

    Raises ConfigError if the directory is not there or cannot be read.
    """
    engines = [e for namespace in inspect_disk(path) for e in namespace.engines]
    return [_verify(e.folder, drop_damaged=drop_damaged, on_entry=on_entry) for e in engines]


def num_verifiable(namespaces: Sequence[NamespaceFacts]) -> int:
    """Entries that no engine uses now."""
    return sum(e.num_entries for n in namespaces for e in n.engines if not e.is_locked)


def _verify(folder: Path, *, drop_damaged: bool, on_entry: OnEntry) -> EngineVerdict:
    if not drop_damaged:
        with held_still(folder) as is_free:
            return _examine(folder, on_entry) if is_free else _in_use(folder)
    try:
        lock = DirectoryLock.take(folder)
    except OSError:
        lock = None
    if lock is None:
        return _in_use(folder)
    try:
        verdict = _examine(folder, on_entry)
        num_dropped = _drop(folder.parent.name, verdict.damages)
        return EngineVerdict(folder, verdict.num_sound, verdict.damages, num_dropped)
    finally:
        lock.close()


def _in_use(folder: Path) -> EngineVerdict:
    return EngineVerdict(folder, 0, (), is_in_use=True)


def _examine(folder: Path, on_entry: OnEntry) -> EngineVerdict:
    num_sound, damages = 0, []
    for _, path in sorted(_segments(folder)):
        table = read_table(path, folder.parent.name)
        if isinstance(table, str):
            damages.append(Damage(path, table))
            continue
        found = list(_damages(path, table, folder.parent.name, on_entry))
        num_sound += len(table.records) - sum(damage.key is not None for damage in found)
        damages += found
    return EngineVerdict(folder, num_sound, tuple(damages))


def _damages(path: Path, table: Table, digest: str, on_entry: OnEntry) -> Iterator[Damage]:
    for slot in table.damaged_slots:
        yield Damage(path, "its record is damaged", slot)
    sums = DataSums(digest)
    block = memoryview(bytearray(table.shape.block_bytes))
    try:
        with opened(path) as fd:
            for slot, record in sorted(table.records.items()):
                problem = _problem(fd, block, table.shape.slot_offset(slot))
                if problem is None and sums.of(record.key, block) != record.data_sum:
                    problem = "its bytes are not those that were stored"
                if problem is not None:
                    yield Damage(path, problem, slot, record.key.hex())
                on_entry()
    except OSError as error:
        yield Damage(path, f"it cannot be read ({error.strerror})")


def _problem(fd: int, block: memoryview, offset: int) -> str | None:
    try:
        return None if read_into(fd, block, offset) else "its end is missing"
    except OSError as error:
        return f"the disk cannot read it ({error.strerror})"


def _drop(digest: str, damages: Sequence[Damage]) -> int:
    """Erases records of damaged entries, deletes damaged files; returns how many. Under the lock.

    What cannot be dropped stays, and fails when it is loaded.
    """
    num_dropped = 0
    for path in dict.fromkeys(damage.path for damage in damages):
        of_file = [damage for damage in damages if damage.path == path]
        try:
            if any(damage.slot is None for damage in of_file):
                path.unlink()
            else:
                slots = [damage.slot for damage in of_file if damage.slot is not None]
                _erase(path, digest, slots)
        except (OSError, DamagedSegmentError):
            continue
        num_dropped += len(of_file)
    return num_dropped


def _erase(path: Path, digest: str, slots: Sequence[int]) -> None:
    """Raises OSError and DamagedSegmentError."""
    table = read_table(path, digest)
    if isinstance(table, str):
        raise DamagedSegmentError(table)
    watch = StallWatch(SystemClock())
    segment = Segment.open(0, path, table.shape.block_bytes, digest, watch=watch, is_direct=False)
    segment.records()  # Marks what is damaged as to be erased with the rest.
    segment.set_records({slot: None for slot in slots if slot < segment.shape.num_slots})
