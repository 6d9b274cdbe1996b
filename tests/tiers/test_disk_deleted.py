"""Files that somebody deletes under a running store: misses, and it starts over."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from tiers.disk_device import Device, stalled, until
from tiers.disk_kit import (
    KiB,
    disk_bytes,
    entries_of,
    fill,
    key_of,
    loaded,
    open_store,
    segment_files,
)

from agentkv.clock import ManualClock


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def test_deleted_files_are_misses_and_the_store_heals(tmp_path: Path) -> None:
    """A63, A79: all files go under a running store; sizes go to zero, and it starts over."""
    store = open_store(tmp_path)
    fill(store)
    for path in segment_files(tmp_path):
        path.unlink()
    assert not any(loaded(store, range(20)))
    assert store.usage().num_entries == 0
    assert store.contains([key_of(1)]) == [False], "the index has learnt it"
    assert store.take_failures() == {"lost_file": 1}
    assert all(store.store(entries_of(range(20))))
    assert all(loaded(store, range(20)))
    assert disk_bytes(tmp_path) <= 1200 * KiB + 4096
    store.close()


def test_a_deleted_directory_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    store.store(entries_of(range(20)))
    shutil.rmtree(path)
    assert all(store.store(entries_of(range(10, 30))))
    assert loaded(store, range(30)) == [False] * 10 + [True] * 20
    assert (path / next(path.iterdir()).name / "manifest.json").exists()
    second = open_store(path)
    assert not any(loaded(second, range(30))), "its place is locked again"
    second.close()
    store.close()
    store = open_store(path)
    assert loaded(store, range(30)) == [False] * 10 + [True] * 20
    store.close()


def test_a_directory_that_others_took_meanwhile_is_left_to_them(tmp_path: Path) -> None:
    path = tmp_path / "store"
    first = open_store(path)
    first.store(entries_of(range(20)))
    shutil.rmtree(path)
    second = open_store(path)
    second.store(entries_of(range(20)))
    assert all(first.store(entries_of(range(100, 120))))
    assert all(loaded(first, range(100, 120)))
    assert all(loaded(second, range(20)))
    assert len(list(path.rglob("engine-*"))) == 2
    first.close()
    second.close()


def test_a_store_whose_lock_file_was_deleted_gives_its_place_up(tmp_path: Path) -> None:
    first = open_store(tmp_path, segment_bytes=300 * KiB)
    first.store(entries_of(range(5)))
    next(tmp_path.rglob("lock")).unlink()
    second = open_store(tmp_path, segment_bytes=300 * KiB)
    assert all(loaded(second, range(5))), "it took the place, and what was there"
    first.store(entries_of(range(100, 130)))  # Needs another segment, so it looks at its lock.
    assert not any(loaded(first, range(5)))
    assert all(first.store(entries_of(range(200, 205))))
    assert all(loaded(first, range(200, 205)))
    assert all(loaded(second, range(5)))
    assert len(list(tmp_path.rglob("engine-*"))) == 2
    first.close()
    second.close()


def test_the_place_taken_instead_is_emptied_first(tmp_path: Path) -> None:
    first, second = open_store(tmp_path), open_store(tmp_path)
    fill(second)
    second.close()
    shutil.rmtree(next(tmp_path.rglob("engine-0")))
    third = open_store(tmp_path)
    fill(first)
    (folder,) = tmp_path.rglob("engine-1")
    assert disk_bytes(folder) <= 1200 * KiB, "its own files and those it found there"
    first.close()
    third.close()


def test_where_no_directory_can_be_made_nothing_is_stored(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "store"
    store = open_store(path, clock=clock)
    store.store(entries_of(range(5)))
    shutil.rmtree(path)
    path.write_text("in the way")
    assert store.store(entries_of(range(5))) == [False] * 5
    assert not any(loaded(store, range(5)))
    path.unlink()
    clock.advance(11)
    assert all(store.store(entries_of(range(5))))
    store.close()


def test_an_entry_deleted_while_it_is_read_is_a_miss(tmp_path: Path, device: Device) -> None:
    """A62: the delete comes between the check and the end of the read; nothing is raised."""
    store = open_store(tmp_path)
    store.store(entries_of(range(3)))
    with stalled(device, lambda: loaded(store, range(3))) as answers:
        removing = threading.Thread(target=store.delete, args=([key_of(1)],))
        removing.start()
        until(lambda: store.contains([key_of(1)]) == [False])
    removing.join()
    assert answers == [[True, False, True]]
    assert store.take_failures() == {}
    store.close()
