"""How much memory the DRAM tier may take on this machine.

What: the least of the kernel's available memory, what the container's limit leaves, and /dev/shm.
Why: a tier sized from the machine's total is killed in a container, and vLLM keeps the tier in
/dev/shm, where a write that does not fit is a fatal signal and no exception.
Where: called once, by the process that builds vLLM's config, when it resolves `dram.size_bytes`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

# A cgroup v1 without a limit reports a huge number of bytes instead of "max".
_UNLIMITED_BYTES = 1 << 60


def free_memory_bytes(*, reserved_bytes: int = 0, root: Path = Path("/")) -> int:
    """Bytes that the DRAM tier may use, never negative.

    `reserved_bytes` is memory that is free now but promised to others, such as vLLM's own pool on
    the CPU platform. `root` is where proc, sys and dev are looked up (for tests).
    """
    bounds = [_available_bytes(), *_cgroup_bounds(root)]
    if (shm_bytes := _shm_bytes(root)) is not None:
        bounds.append(shm_bytes)
    return max(0, min(bounds) - reserved_bytes)


def total_memory_bytes() -> int:
    """The machine's physical memory."""
    return int(psutil.virtual_memory().total)


def _available_bytes() -> int:
    """Memory that can be had without swapping; half of the total where the kernel does not say."""
    memory = psutil.virtual_memory()
    return int(memory.available) if memory.available > 0 else int(memory.total) // 2


def _shm_bytes(root: Path) -> int | None:
    try:
        stats = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize


def _cgroup_bounds(root: Path) -> Iterator[int]:
    """What each memory limit above this process leaves; a limit counts for all groups below it."""
    for directory, limit_name, usage_name in _cgroup_directories(root):
        limit = _read_bytes(directory / limit_name)
        usage = _read_bytes(directory / usage_name)
        if limit is not None and usage is not None and limit < _UNLIMITED_BYTES:
            yield limit - usage + _reclaimable_bytes(directory / "memory.stat")


def _cgroup_directories(root: Path) -> Iterator[tuple[Path, str, str]]:
    """The memory cgroups of this process, innermost first, with their limit and usage files."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # Inside a container the path may be the host's: then only the mount's top exists.
        group = Path(path.lstrip("/"))
        for directory in (group, *group.parents) if group.parts else (group,):
            yield top / directory, *names


def _read_bytes(file: Path) -> int | None:
    """The number in a cgroup file; None when it is absent or says "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable_bytes(stat_file: Path) -> int:
    """Page cache counted as used that the kernel gives back on demand."""
    try:
        rows = dict(line.split() for line in stat_file.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(rows.get("total_inactive_file", rows.get("inactive_file", 0)))
