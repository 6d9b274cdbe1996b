"""Whose directory is whose: an engine's own one, and what others left behind.

What: takes an engine directory by a lock, tells which other namespaces there are, and deletes what
nobody uses when the space is needed. Why locks: two engines may be given one path, and the files
of a running one must never be touched. Where: `slab` keeps its segment files in it.

    PATH/<namespace digest>/manifest.json
    PATH/<namespace digest>/engine-<k>/lock, seg-00000.kv, ...
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentkv.errors import ConfigError
from agentkv.tiers.namespace import Namespace

_MANIFEST = "manifest.json"
_LOCK = "lock"
_MAX_ENGINES = 1024
_SEGMENT_NAME = re.compile(r"seg-(\d{5,9})\.kv")
_NAMESPACE_NAME = re.compile(r"[0-9a-f]{32}")
_ENGINE_NAME = re.compile(r"engine-\d{1,4}")
_SIBLING_IDLE_S = 24 * 3600.0
"""After this long an unused engine directory of the same namespace is nobody's: engines that start
together must not delete each other's."""


class DirectoryLock:
    """A held lock on an engine directory. Closed twice, it does nothing."""

    def __init__(self, folder: Path, fd: int) -> None:
        self.folder = folder
        self._fd = fd

    @classmethod
    def take(cls, folder: Path) -> DirectoryLock | None:
        """None if somebody else has it. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(folder / _LOCK, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
        lock = cls(folder, fd)
        if lock.is_in_place:
            return lock
        lock.close()  # Its last owner deleted the file between the two calls.
        return None

    @property
    def is_in_place(self) -> bool:
        """False if the directory or the lock file was deleted: then others can lock it too."""
        try:
            return os.path.samestat(os.stat(self.folder / _LOCK), os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class EngineDirectory:
    """This engine's directory. Not thread-safe but for `others`."""

    def __init__(self, path: Path, namespace: Namespace) -> None:
        """Raises ConfigError if there can be no such directory."""
        self._path = path
        self._namespace = namespace
        self.others = _other_namespaces(path, namespace)
        try:
            self._lock = self._take()
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be used ({error.strerror or error}); name a directory on a local "
                "disk that this user may write to"
            ) from error

    @property
    def folder(self) -> Path:
        return self._lock.folder

    def ensure(self) -> bool:
        """Takes a directory again if this one was deleted; whether it was still in place.

        Raises OSError.
        """
        if self._lock.is_in_place:
            return True
        self._lock.close()
        self._lock = self._take()
        return False

    def segments(self) -> dict[int, Path]:
        """Files with names of ours, by number."""
        return dict(_segments(self.folder))

    def idle_bytes(self) -> int:
        """What the directories take that no engine uses."""
        return sum(_disk_bytes(folder) for folder in self._idle_folders())

    def reclaim(self, max_idle_bytes: int) -> int:
        """Deletes idle directories, the oldest first, until they take no more than this.

        Returns how many were deleted. Those in use and files that are not ours stay.
        """
        num_deleted = 0
        folders = self._idle_folders()
        sizes_bytes = {folder: _disk_bytes(folder) for folder in folders}
        for folder in folders:
            if sum(sizes_bytes.values()) <= max_idle_bytes:
                break
            if _delete_idle(folder):
                num_deleted += 1
            del sizes_bytes[folder]
        return num_deleted

    def close(self) -> None:
        """Idempotent."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / _LOCK)  # So that the idle time counts from now.
        self._lock.close()

    def _take(self) -> DirectoryLock:
        home = self._path / self._namespace.digest
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(_MAX_ENGINES):
            lock = _take_patiently(home / f"engine-{number}")
            if lock is not None:
                os.utime(lock.folder / _LOCK)
                self._write_manifest(lock.folder)
                return lock
        raise OSError(f"{_MAX_ENGINES} engines use it")

    def _write_manifest(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            if (folder.parent / _MANIFEST).read_bytes() == self._namespace.manifest:
                return
        new = folder / f"{_MANIFEST}.new"  # In our own directory: engines may start together.
        new.write_bytes(self._namespace.manifest)
        new.replace(folder.parent / _MANIFEST)

    def _idle_folders(self) -> list[Path]:
        """Unlocked engine directories that may be deleted, the longest unused first."""
        found: list[tuple[float, Path]] = []
        for folder in _engine_folders(self._path):
            if folder == self.folder:
                continue
            with contextlib.suppress(OSError):
                used_s = os.stat(folder / _LOCK).st_mtime
                is_sibling = folder.parent.name == self._namespace.digest
                if not (is_sibling and time.time() - used_s < _SIBLING_IDLE_S):
                    found.append((used_s, folder))
        return [folder for _, folder in sorted(found) if _is_unlocked(folder)]


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Of a file system: what may be had, and its size."""

    free_bytes: int
    total_bytes: int

    @classmethod
    def at(cls, folder: Path) -> FreeSpace:
        """Raises OSError."""
        facts = os.statvfs(folder)
        return cls(facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize)

    def room_bytes(self, min_free_bytes: int | None = None) -> int:
        """What may be taken if so much stays free for others: by default 2 %, at least 1 GiB."""
        if min_free_bytes is None:
            min_free_bytes = max(1 << 30, self.total_bytes // 50)
        return self.free_bytes - min_free_bytes


def _take_patiently(folder: Path) -> DirectoryLock | None:
    """The lock on an engine directory, which is made if need be; None if an engine has it.

    One that only looks for idle directories holds it for a moment.
    """
    for pause_s in (0.0, 0.005, 0.02):
        time.sleep(pause_s)
        # Somebody may be deleting the directory as idle, or something else has its name.
        with contextlib.suppress(FileExistsError, NotADirectoryError, FileNotFoundError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (lock := DirectoryLock.take(folder)) is not None:
                return lock
    return None


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"seg-{number:05d}.kv"


def _segments(folder: Path) -> Iterator[tuple[int, Path]]:
    for item in _scan(folder):
        if match := _SEGMENT_NAME.fullmatch(item.name):
            yield int(match[1]), Path(item.path)


def _engine_folders(path: Path) -> Iterator[Path]:
    for home in _scan(path):
        if _NAMESPACE_NAME.fullmatch(home.name) and home.is_dir(follow_symlinks=False):
            for engine in _scan(Path(home.path)):
                if _ENGINE_NAME.fullmatch(engine.name) and engine.is_dir(follow_symlinks=False):
                    yield Path(engine.path)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError:
        return []


def _disk_bytes(folder: Path) -> int:
    num_bytes = 0
    for _, path in _segments(folder):
        with contextlib.suppress(OSError):
            num_bytes += os.lstat(path).st_blocks * 512
    return num_bytes


def _is_unlocked(folder: Path) -> bool:
    try:
        lock = DirectoryLock.take(folder)
    except OSError:
        return False
    if lock is None:
        return False
    lock.close()
    return True


def _delete_idle(folder: Path) -> bool:
    """Deletes an engine directory if nobody uses it, and its namespace's if that is the last."""
    try:
        lock = DirectoryLock.take(folder)
        if lock is None:
            return False
        try:
            for _, path in _segments(folder):
                path.unlink(missing_ok=True)
            (folder / _LOCK).unlink()
        finally:
            lock.close()
    except OSError:
        return False
    with contextlib.suppress(OSError):  # Files that are not ours keep the directories.
        folder.rmdir()
        if not any(folder.parent.glob("engine-*")):
            (folder.parent / _MANIFEST).unlink(missing_ok=True)
            folder.parent.rmdir()
    return True


def _other_namespaces(path: Path, own: Namespace) -> list[Namespace]:
    others = []
    for home in _scan(path):
        if _NAMESPACE_NAME.fullmatch(home.name) and home.name != own.digest:
            with contextlib.suppress(OSError):
                other = Namespace.from_manifest((Path(home.path) / _MANIFEST).read_bytes())
                if other is not None and other.digest == home.name:
                    others.append(other)
    return others
