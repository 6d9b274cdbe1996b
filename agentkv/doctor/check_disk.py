"""How fast the directory of the SSD tier really is: a short write and read past the page cache."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from agentkv.config_tiers import SsdConfig
from agentkv.config_values import format_size
from agentkv.doctor.checks import Check, fail, ok, warn
from agentkv.tiers.disk.space import FreeSpace

MEASURED_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_MAX_S = 3.0
_SLOW_BYTES_PER_S = 0.5e9
_NOT_A_DISK = frozenset({"tmpfs", "ramfs", "nfs", "nfs4", "cifs", "fuse.sshfs"})


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes a second. `is_direct`: the page cache had no part in it."""

    write: float
    read: float
    is_direct: bool


def disk_checks(ssd: SsdConfig) -> list[Check]:
    """Room and speed at `ssd.path`; the file that is written is deleted again."""
    assert ssd.path is not None
    path = ssd.path.expanduser()
    folder = next((each for each in (path, *path.parents) if each.is_dir()), Path("/"))
    try:
        room_bytes = FreeSpace.at(folder).room_bytes(ssd.min_free_bytes)
        speed = measure(folder)
    except OSError as error:
        said = f"{folder}: {error.strerror}"
        return [fail("ssd.path", said, "a directory that this user can write to")]
    return [_room_check(ssd, folder, room_bytes), _speed_check(folder, speed)]


def _room_check(ssd: SsdConfig, folder: Path, room_bytes: int) -> Check:
    room = format_size(max(0, room_bytes))
    said = f"{folder}: {room} to be had for {format_size(ssd.size_bytes)}"
    kind = _file_system(folder)
    if kind in _NOT_A_DISK:
        return warn("ssd.path", f"{said}, but it is a {kind}", "a directory on a local disk")
    if room_bytes < ssd.size_bytes:
        mend = "a smaller ssd.size_bytes or ssd.min_free_bytes, or a larger disk"
        return warn("ssd.path", said, mend)
    return ok("ssd.path", f"{said} ({kind})")


def _speed_check(folder: Path, speed: Speed) -> Check:
    way = "direct I/O" if speed.is_direct else "through the page cache"
    said = f"write {speed.write / 1e9:.2f} GB/s, read {speed.read / 1e9:.2f} GB/s ({way})"
    if min(speed.write, speed.read) < _SLOW_BYTES_PER_S:
        mend = "a local NVMe disk: below that, computing again is often quicker than loading"
        return warn("ssd speed", said, mend)
    return ok("ssd speed", said)


def _file_system(folder: Path) -> str:
    """The kind of the mount that the folder lies on."""
    resolved = str(folder.resolve())
    mounts = [
        part for part in psutil.disk_partitions(all=True) if _is_in(resolved, part.mountpoint)
    ]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


def _is_in(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")


def measure(folder: Path, num_bytes: int = MEASURED_BYTES) -> Speed:
    """Raises OSError where nothing can be written."""
    file = folder / f".agentkv-doctor-{os.getpid()}"
    with mmap.mmap(-1, _CHUNK_BYTES) as page:  # Direct I/O wants memory that begins with a page.
        page.write(os.urandom(_CHUNK_BYTES))
        try:
            fd, is_direct = _open(file)
            try:
                write = _rate(lambda at: os.pwrite(fd, page, at), num_bytes, lambda: os.fsync(fd))
                if not is_direct:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                read = _rate(lambda at: os.preadv(fd, [page], at), num_bytes)
            finally:
                os.close(fd)
        finally:
            with suppress(OSError):
                file.unlink()
    return Speed(write, read, is_direct)


def _open(file: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        return os.open(file, flags | os.O_DIRECT, 0o600), True
    except OSError:
        with suppress(FileNotFoundError):
            file.unlink()
        return os.open(file, flags, 0o600), False


def _rate(
    move: Callable[[int], int], num_bytes: int, end: Callable[[], None] = lambda: None
) -> float:
    """Chunk after chunk from the beginning, until all is moved or time is up."""
    start_s = time.monotonic()
    done = 0
    while done < num_bytes and time.monotonic() - start_s < _MAX_S:
        moved = move(done)
        if moved <= 0:
            break
        done += moved
    end()
    return done / max(1e-9, time.monotonic() - start_s)
