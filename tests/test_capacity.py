"""Free memory: the least of what the machine, the container and /dev/shm leave."""

import os
from pathlib import Path

import pytest

from agentkv.capacity import free_memory_bytes, total_memory_bytes

MIB = 1 << 20


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A file system with this process's cgroup line, and files below sys/fs/cgroup."""
    line = root / "proc/self/cgroup"
    line.parent.mkdir(parents=True)
    line.write_text(cgroup)
    for name, content in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


def test_this_machine_has_some_free_memory_but_not_more_than_it_has() -> None:
    assert 0 < free_memory_bytes() <= total_memory_bytes()


def test_a_container_limit_bounds_the_free_memory(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/app\n",
        {"app/memory.max": str(64 * MIB), "app/memory.current": str(24 * MIB)},
    )
    assert free_memory_bytes(root=root) == 40 * MIB


def test_page_cache_counts_as_free(tmp_path: Path) -> None:
    files = {
        "memory.max": str(64 * MIB),
        "memory.current": str(60 * MIB),
        "memory.stat": f"anon 1\ninactive_file {50 * MIB}\n",
    }
    assert free_memory_bytes(root=machine(tmp_path, "0::/\n", files)) == 54 * MIB


def test_the_limit_of_an_outer_group_counts_too(tmp_path: Path) -> None:
    files = {
        "outer/memory.max": str(32 * MIB),
        "outer/memory.current": str(30 * MIB),
        "outer/inner/memory.max": "max",
        "outer/inner/memory.current": str(1 * MIB),
    }
    assert free_memory_bytes(root=machine(tmp_path, "0::/outer/inner\n", files)) == 2 * MIB


def test_a_version_1_limit_is_found(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": str(16 * MIB),
        "memory/memory.usage_in_bytes": str(4 * MIB),
    }
    root = machine(tmp_path, "5:devices:/x\n4:cpu,memory:/not/visible/here\n", files)
    assert free_memory_bytes(root=root) == 12 * MIB


def test_a_version_1_group_without_limit_does_not_bound(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": str(4 * MIB),
    }
    unlimited = free_memory_bytes(root=machine(tmp_path, "4:memory:/\n", files))
    assert unlimited > 64 * MIB


def test_shared_memory_bounds_the_free_memory() -> None:
    stats = os.statvfs("/dev/shm")
    assert free_memory_bytes() <= stats.f_blocks * stats.f_frsize


def test_a_machine_without_these_files_still_gets_an_answer(tmp_path: Path) -> None:
    assert free_memory_bytes(root=tmp_path) > 0


@pytest.mark.parametrize("reserved_mib", [10, 1000])
def test_reserved_memory_is_taken_off_and_never_below_zero(
    tmp_path: Path, reserved_mib: int
) -> None:
    root = machine(
        tmp_path, "0::/\n", {"memory.max": str(64 * MIB), "memory.current": str(24 * MIB)}
    )
    left = free_memory_bytes(reserved_bytes=reserved_mib * MIB, root=root)
    assert left == max(0, 40 - reserved_mib) * MIB
