"""What a restart finds: everything that is whole, and nothing that is not."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiers.disk_kit import (
    BLOCK_BYTES,
    NAMESPACE,
    KiB,
    MiB,
    disk_bytes,
    entries_of,
    entry_of,
    fill,
    key_of,
    loaded,
    open_store,
    segment_files,
)

from agentkv.clock import SystemClock
from agentkv.tiers.disk import io as disk_io
from agentkv.tiers.disk.guards import StallWatch
from agentkv.tiers.disk.records import PAGE_BYTES, Record, Shape
from agentkv.tiers.disk.segments import Segment
from agentkv.tiers.disk.space import segment_path


def test_a_restart_finds_what_was_stored(tmp_path: Path) -> None:
    """A64: five restarts with the same content find it, count it and write nothing anew."""
    store = open_store(tmp_path)
    store.store(entries_of(range(20)))
    store.close()
    used_bytes = disk_bytes(tmp_path)
    for _ in range(5):
        store = open_store(tmp_path, max_write_bytes_per_s=1)
        assert store.usage().num_entries == 20
        assert store.usage().used_bytes == 20 * BLOCK_BYTES
        assert store.store(entries_of(range(20))) == [True] * 20
        assert loaded(store, range(20)) == [True] * 20
        assert store.take_failures() == {}
        store.close()
        assert disk_bytes(tmp_path) == used_bytes


def test_the_order_of_eviction_outlives_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    capacity = fill(store)
    store.close()
    store = open_store(tmp_path)
    store.store(entries_of(range(1000, 1010)))
    assert store.contains([key_of(n) for n in range(capacity)]) == [False] * 10 + [True] * (
        capacity - 10
    )
    store.close()


def test_a_clock_that_went_back_does_not_change_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    capacity = fill(store)
    store.close()
    store = open_store(tmp_path)
    monkeypatch.setattr("agentkv.tiers.disk.writer.time.time_ns", lambda: 1000)
    assert store.store([entry_of(1000)]) == [True], "key 0 went for it"
    store.close()
    store = open_store(tmp_path)
    assert all(store.store(entries_of(range(2000, 2000 + capacity - 1))))
    assert store.contains([key_of(capacity - 1), key_of(1000)]) == [False, True]
    store.close()


def test_of_two_records_of_a_key_a_delete_erases_both(tmp_path: Path) -> None:
    """A crash may leave the record of a slot that had been given to another key."""
    store = open_store(tmp_path)
    store.store(entries_of(range(3)))
    store.close()
    (path,) = segment_files(tmp_path)
    segment = Segment.open(
        0,
        path,
        BLOCK_BYTES,
        NAMESPACE.digest,
        watch=StallWatch(SystemClock()),
        is_direct=False,
    )
    old = segment.records()[0][1]
    segment.set_records({7: Record(old.key, old.data_sum, 1)})
    del segment
    store = open_store(tmp_path)
    assert store.usage().num_entries == 3
    assert all(loaded(store, range(3))), "the newer one counts"
    assert store.delete([key_of(1)]) == 1
    store.close()
    store = open_store(tmp_path)
    assert store.contains([key_of(1)]) == [False]
    store.close()


def test_deleted_entries_stay_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.store(entries_of(range(10)))
    store.delete([key_of(n) for n in range(5)])
    store.close()
    store = open_store(tmp_path)
    assert loaded(store, range(10)) == [False] * 5 + [True] * 5
    store.close()


def test_a_smaller_size_keeps_what_was_stored_last(tmp_path: Path) -> None:
    """A68: what is over the limit goes at the start, the oldest first."""
    store = open_store(tmp_path, segment_bytes=300 * KiB)
    capacity = fill(store)
    assert len(segment_files(tmp_path)) >= 4
    store.close()
    store = open_store(tmp_path, segment_bytes=300 * KiB, size_bytes=600 * KiB)
    kept = loaded(store, range(capacity))
    assert kept == sorted(kept), "the oldest are gone"
    assert capacity // 4 <= sum(kept) <= capacity // 2
    assert disk_bytes(tmp_path) <= 600 * KiB
    store.close()


def test_a_larger_size_goes_on_with_what_is_there(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    capacity = fill(store)
    store.close()
    store = open_store(tmp_path, size_bytes=2400 * KiB)
    assert all(store.store(entries_of(range(1000, 1000 + capacity))))
    assert loaded(store, [*range(capacity), *range(1000, 1000 + capacity)]) == [True] * 2 * capacity
    store.close()


def cut_to(num_bytes: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, num_bytes)


def flip(at: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            old = file.read(1)
            file.seek(at)
            file.write(bytes([old[0] ^ 1]))

    return change


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


SHAPE = Shape(BLOCK_BYTES, 65)


@pytest.mark.parametrize(
    ("damage", "num_lost", "reason"),
    [
        (cut_to(0), 10, "damaged_segment"),
        (cut_to(100), 10, "damaged_segment"),
        (cut_to(PAGE_BYTES + 64), 10, "damaged_segment"),
        (cut_to(500_000), 10, "damaged_segment"),
        (append, 10, "damaged_segment"),
        (make_directory, 10, "damaged_segment"),
        (flip(3), 10, "damaged_segment"),
        (flip(20), 10, "damaged_segment"),
        (flip(PAGE_BYTES + 64 + 30), 1, "damaged_record"),
        (flip(SHAPE.slot_offset(0)), 1, "checksum"),
        (flip(SHAPE.slot_offset(9) + BLOCK_BYTES - 1), 1, "checksum"),
    ],
)
def test_damage_is_noticed_and_costs_what_was_damaged(
    tmp_path: Path, damage: Callable[[Path], None], num_lost: int, reason: str
) -> None:
    """A66: cut, appended to, flipped, replaced by a directory: missing, counted, and mended."""
    store = open_store(tmp_path)
    store.store(entries_of(range(10)))
    store.close()
    (path,) = segment_files(tmp_path)
    damage(path)
    store = open_store(tmp_path)
    assert sum(loaded(store, range(10))) == 10 - num_lost
    assert store.take_failures() == {reason: 1}
    assert sum(loaded(store, range(10))) == 10 - num_lost
    assert store.take_failures() == {}, "a damaged entry is dropped, not found again"
    assert all(store.store(entries_of(range(10))))
    assert all(loaded(store, range(10)))
    store.close()
    store = open_store(tmp_path)
    assert all(loaded(store, range(10)))
    store.close()


def test_a_whole_block_of_zeros_is_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.store(entries_of(range(10)))
    (path,) = segment_files(tmp_path)
    with path.open("r+b") as file:
        file.seek(SHAPE.slot_offset(4))
        file.write(bytes(BLOCK_BYTES))
    assert loaded(store, range(10)) == [n != 4 for n in range(10)]
    assert store.take_failures() == {"checksum": 1}
    store.close()
    store = open_store(tmp_path)
    assert store.contains([key_of(4)]) == [False], "its record was erased"
    store.close()


def test_two_blocks_that_changed_places_are_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.store(entries_of(range(10)))
    (path,) = segment_files(tmp_path)
    raw = bytearray(path.read_bytes())
    at, size = SHAPE.slot_offset(0), BLOCK_BYTES
    raw[at : at + 2 * size] = raw[at + size : at + 2 * size] + raw[at : at + size]
    path.write_bytes(raw)
    assert loaded(store, range(10)) == [False, False, *[True] * 8]
    store.close()


def test_a_file_cut_under_a_running_store_is_a_miss(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.store(entries_of(range(10)))
    (path,) = segment_files(tmp_path)
    os.truncate(path, SHAPE.slot_offset(5) + 100)
    assert loaded(store, range(10)) == [True] * 5 + [False] * 5
    assert store.take_failures() == {"short_read": 5}
    assert all(store.store(entries_of(range(10))))
    assert all(loaded(store, range(10)))
    store.close()


def test_files_that_are_not_ours_stay(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.store(entries_of(range(3)))
    store.close()
    (path,) = segment_files(tmp_path)
    strange = [tmp_path / "notes.txt", path.parent / "seg-1.kv", path.parent / "seg-00001.kv.bak"]
    for file in strange:
        file.write_text("not ours")
    store = open_store(tmp_path)
    assert all(loaded(store, range(3)))
    assert store.take_failures() == {}
    fill_up = entries_of(range(100, 200))
    store.store(fill_up)
    store.close()
    assert [file.read_text() for file in strange] == ["not ours"] * 3


def test_a_segment_of_another_store_is_not_taken_for_ours(tmp_path: Path) -> None:
    """A05: the bytes of another namespace, under our name and in our place, are refused."""
    other = open_store(tmp_path / "a", namespace=type(NAMESPACE)({"model": "other"}))
    other.store(entries_of(range(10)))
    other.close()
    store = open_store(tmp_path / "b")
    store.store(entries_of(range(10)))
    store.close()
    shutil.copy(segment_files(tmp_path / "a")[0], segment_files(tmp_path / "b")[0])
    store = open_store(tmp_path / "b")
    assert not any(loaded(store, range(10)))
    assert store.take_failures() == {"damaged_segment": 1}
    store.close()


def test_a_start_says_which_file_it_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    store.store([entry_of(1)])
    store.close()
    (path,) = segment_files(tmp_path)
    path.write_bytes(b"junk" * 5000)
    with caplog.at_level(logging.WARNING):
        open_store(tmp_path).close()
    assert str(path) in caplog.text
    assert not path.exists()


def test_the_index_of_200_000_entries_is_read_from_tables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A59, A68: more slots than 2^16, in sparse files of 100 GB whose blocks nobody reads."""
    open_store(tmp_path, block_bytes=512 * KiB).close()
    folder = next(tmp_path.rglob("engine-0"))
    monkeypatch.setattr(disk_io, "posix_fallocate", _refuse_to_allocate)
    for number in range(100):
        _write_sparse_segment(segment_path(folder, number), number)
    store = open_store(tmp_path, block_bytes=512 * KiB, size_bytes=120_000 * MiB)
    assert store.usage().num_entries == 200_000
    wanted = [0, 65535, 65536, 199_999, 200_000]
    assert store.contains([key_of(n) for n in wanted]) == [True, True, True, True, False]
    assert disk_bytes(tmp_path) < 40 * MiB, "the files are sparse"
    assert loaded(store, [70_000]) == [False], "its block is a hole"
    assert store.take_failures() == {"checksum": 1}
    store.close()


def _refuse_to_allocate(fd: int, offset: int, num_bytes: int) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def _write_sparse_segment(path: Path, number: int) -> None:
    shape, watch = Shape(512 * KiB, 2000), StallWatch(SystemClock())
    segment = Segment.create(number, path, shape, NAMESPACE.digest, watch=watch, is_direct=False)
    first = number * shape.num_slots
    segment.set_records(
        {slot: Record(key_of(first + slot), 7, first + slot) for slot in range(shape.num_slots)}
    )
