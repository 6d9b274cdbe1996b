"""What lies in a directory of the SSD tier, read without changing it, also while engines use it.

What: namespaces with their manifests, their engines' directories, whether an engine is at work, and
what the tables of the segment files say. Why locks are tried shared and let go at once: an engine
that starts at this moment must get its directory; it tries several times.
Where: the command line shows it; `verify` and `prune` start from it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentkv.errors import ConfigError
from agentkv.tiers.disk.read_segment import read_table
from agentkv.tiers.disk.space import _LOCK, _MANIFEST, _engine_folders, _segments
from agentkv.tiers.namespace import Namespace


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment file. `problem` says why it cannot be read; None if it can."""

    path: Path
    disk_bytes: int
    num_slots: int = 0
    block_bytes: int = 0
    num_entries: int = 0
    num_damaged_records: int = 0
    stored_at_s: tuple[float, ...] = field(default=(), repr=False)
    problem: str | None = None

    @property
    def entry_bytes(self) -> int:
        return self.num_entries * self.block_bytes


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine's directory."""

    folder: Path
    is_locked: bool
    """An engine uses it now."""

    used_s: float
    """When it was last used, as `time.time`."""

    segments: tuple[SegmentFacts, ...]

    @property
    def num_entries(self) -> int:
        return sum(segment.num_entries for segment in self.segments)

    @property
    def entry_bytes(self) -> int:
        return sum(segment.entry_bytes for segment in self.segments)

    @property
    def disk_bytes(self) -> int:
        return sum(segment.disk_bytes for segment in self.segments)

    @property
    def num_slots(self) -> int:
        return sum(segment.num_slots for segment in self.segments)


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """One model's and layout's entries; `manifest` is None if it is lost or damaged."""

    digest: str
    manifest: Namespace | None
    engines: tuple[EngineFacts, ...]

    @property
    def is_locked(self) -> bool:
        return any(engine.is_locked for engine in self.engines)

    @property
    def num_entries(self) -> int:
        return sum(engine.num_entries for engine in self.engines)

    @property
    def entry_bytes(self) -> int:
        return sum(engine.entry_bytes for engine in self.engines)

    @property
    def disk_bytes(self) -> int:
        return sum(engine.disk_bytes for engine in self.engines)


def inspect_disk(path: Path) -> list[NamespaceFacts]:
    """Reads the tables, some megabytes for each 100 GB; blocks for as long as that takes.

    Raises ConfigError if the directory is not there or cannot be read.
    """
    check_directory(path)
    by_home: dict[Path, list[Path]] = {}
    for folder in _engine_folders(path):
        by_home.setdefault(folder.parent, []).append(folder)
    return [
        NamespaceFacts(
            digest=home.name,
            manifest=_manifest(home),
            engines=tuple(_engine(folder) for folder in sorted(folders)),
        )
        for home, folders in sorted(by_home.items())
    ]


def check_directory(path: Path) -> None:
    """Raises ConfigError."""
    if not path.is_dir():
        raise ConfigError(f"{path}: there is no such directory; name the one of ssd.path")
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"{path}: no right to read it")


@contextmanager
def held_still(folder: Path) -> Iterator[bool]:
    """Whether no engine uses the directory; none takes it as long as the context lasts.

    An engine that starts meanwhile takes another directory.
    """
    try:
        fd = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield True  # Whoever uses it has made a lock file first.
        return
    except OSError:
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        is_ours = False
    else:
        is_ours = True
    try:
        yield is_ours
    finally:
        os.close(fd)


def _engine(folder: Path) -> EngineFacts:
    with held_still(folder) as is_free:
        pass
    digest = folder.parent.name
    segments = tuple(_segment(path, digest) for _, path in sorted(_segments(folder)))
    times_s = [_changed_s(folder / _LOCK), *(_changed_s(segment.path) for segment in segments)]
    used_s = max(times_s) or _changed_s(folder)
    return EngineFacts(folder, not is_free, used_s, segments)


def _segment(path: Path, digest: str) -> SegmentFacts:
    disk_bytes = 0
    with contextlib.suppress(OSError):
        disk_bytes = os.lstat(path).st_blocks * 512
    table = read_table(path, digest)
    if isinstance(table, str):
        return SegmentFacts(path, disk_bytes, problem=table)
    return SegmentFacts(
        path,
        disk_bytes,
        num_slots=table.shape.num_slots,
        block_bytes=table.shape.block_bytes,
        num_entries=len(table.records),
        num_damaged_records=len(table.damaged_slots),
        stored_at_s=tuple(record.stored_at_us / 1e6 for record in table.records.values()),
    )


def _manifest(home: Path) -> Namespace | None:
    """None also for one of other fields than the digest says."""
    try:
        namespace = Namespace.from_manifest((home / _MANIFEST).read_bytes())
    except OSError:
        return None
    return namespace if namespace is not None and namespace.digest == home.name else None


def _changed_s(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def ages_s(namespaces: Sequence[NamespaceFacts]) -> list[float]:
    """How long ago each entry was stored, the newest first."""
    now_s = time.time()
    return sorted(
        max(0.0, now_s - stored_s)
        for namespace in namespaces
        for engine in namespace.engines
        for segment in engine.segments
        for stored_s in segment.stored_at_s
    )
