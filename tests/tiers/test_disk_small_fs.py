"""A small file system that is really full. Needs the right to mount one: see `conftest`."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiers.disk_kit import KiB, MiB, entries_of, loaded, open_store

from agentkv.clock import ManualClock
from agentkv.errors import ConfigError


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@contextlib.contextmanager
def small_file_system(path: Path, num_bytes: int) -> Iterator[None]:
    """A real one that can be filled."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(path)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_makes_the_tier_smaller(tmp_path: Path, clock: ManualClock) -> None:
    with small_file_system(tmp_path / "small", 2 * MiB):
        path = tmp_path / "small" / "store"
        store = open_store(path, size_bytes=64 * MiB, segment_bytes=500 * KiB, clock=clock)
        answers = store.store(entries_of(range(200)))
        num_stored = sum(answers)
        assert 80 < num_stored < 128
        assert store.take_failures() == {"disk_full": 1, "no_room": 200 - num_stored}
        assert all(store.store(entries_of(range(1000, 1050)))), "it goes on with what it has"
        assert all(loaded(store, range(1000, 1050)))
        assert store.take_failures() == {}
        store.close()


def test_others_that_fill_the_disk_do_no_harm(tmp_path: Path, clock: ManualClock) -> None:
    with small_file_system(tmp_path / "small", 2 * MiB):
        path = tmp_path / "small" / "store"
        store = open_store(path, size_bytes=64 * MiB, segment_bytes=500 * KiB, clock=clock)
        assert all(store.store(entries_of(range(20))))
        ballast = tmp_path / "small" / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        assert all(store.store(entries_of(range(100, 120)))), "in the room it had made sure of"
        assert all(loaded(store, range(100, 120)))
        store.take_failures()
        ballast.unlink()
        clock.advance(11)
        assert all(store.store(entries_of(range(200, 260)))), "it grows when there is room again"
        assert store.take_failures() == {}
        store.close()


def test_a_start_on_a_full_disk_says_so(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 64 * KiB):
        with contextlib.suppress(OSError):
            (tmp_path / "small" / "ballast").write_bytes(bytes(MiB))
        with pytest.raises(ConfigError, match="No space left"):
            open_store(tmp_path / "small" / "store")


def test_on_a_full_disk_an_earlier_run_s_files_can_be_used(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 2 * MiB):
        path = tmp_path / "small" / "store"
        store = open_store(path, segment_bytes=500 * KiB, size_bytes=4 * MiB)
        assert all(store.store(entries_of(range(20))))
        store.close()
        ballast = tmp_path / "small" / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        store = open_store(path, segment_bytes=500 * KiB, size_bytes=4 * MiB)
        assert all(loaded(store, range(20)))
        assert all(store.store(entries_of(range(100, 120))))
        store.close()
