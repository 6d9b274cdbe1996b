"""Whether this machine has the memory that the settings ask for."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from agentkv.capacity import free_memory_bytes
from agentkv.config import DramConfig
from agentkv.config_values import format_size
from agentkv.doctor.checks import Check, fail, ok, warn

_MIN_USEFUL_BYTES = 1 << 30
_SHM_MEND = "docker run --shm-size=…, an emptyDir of medium Memory, or a smaller dram.size_bytes"


def memory_checks(dram: DramConfig, root: Path = Path("/")) -> Iterator[Check]:
    """Free memory, /dev/shm and the limit on locked memory, for a DRAM tier of this size."""
    free_bytes = free_memory_bytes(root=root)
    wanted_bytes = wanted(dram, free_bytes)
    yield _free_check(dram, free_bytes, wanted_bytes)
    yield _shm_check(root, wanted_bytes)
    yield locked_check(
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], wanted_bytes, has_gpu=_has_gpu(root)
    )


def wanted(dram: DramConfig, free_bytes: int) -> int:
    """The size of one engine's tier, as the start would choose it."""
    if isinstance(dram.size_bytes, int):
        return dram.size_bytes
    return min(int(free_bytes * dram.auto_fraction), dram.auto_max_bytes)


def _free_check(dram: DramConfig, free_bytes: int, wanted_bytes: int) -> Check:
    said = f"{format_size(free_bytes)} free for a DRAM tier of {format_size(wanted_bytes)}"
    if wanted_bytes > free_bytes:
        return fail("memory", said, "take less: dram.size_bytes: auto, or a smaller size")
    if wanted_bytes < _MIN_USEFUL_BYTES:
        mend = "free some, raise the container's limit, or give vLLM less (VLLM_CPU_KVCACHE_SPACE)"
        return warn("memory", f"{said}: holds little KV", mend)
    how = " (auto)" if not isinstance(dram.size_bytes, int) else ""
    return ok("memory", said + how)


def _shm_check(root: Path, wanted_bytes: int) -> Check:
    try:
        stats = os.statvfs(root / "dev/shm")
    except OSError as error:
        return fail("/dev/shm", f"cannot be used: {error.strerror}", "vLLM keeps the tier there")
    size, free = stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
    said = f"{format_size(free)} free of {format_size(size)}"
    if wanted_bytes > free:
        return fail(
            "/dev/shm", f"{said}, the DRAM tier takes {format_size(wanted_bytes)}", _SHM_MEND
        )
    if size < _MIN_USEFUL_BYTES:
        return warn("/dev/shm", f"{said}: the DRAM tier cannot be larger", _SHM_MEND)
    return ok("/dev/shm", said)


def locked_check(limit_bytes: int, wanted_bytes: int, *, has_gpu: bool) -> Check:
    """A GPU copies from locked memory; where it cannot be locked, copies take a slower way."""
    is_unlimited = limit_bytes == resource.RLIM_INFINITY
    said = "no limit" if is_unlimited else f"limited to {format_size(limit_bytes)}"
    if is_unlimited or limit_bytes >= wanted_bytes:
        return ok("locked memory", said)
    if not has_gpu:
        return ok("locked memory", f"{said}; only GPUs and RDMA need more")
    mend = "ulimit -l unlimited (docker run --ulimit memlock=-1)"
    return warn("locked memory", f"{said}, less than the DRAM tier", mend)


def _has_gpu(root: Path) -> bool:
    return any((root / "dev" / name).exists() for name in ("nvidiactl", "kfd"))
