"""What a disk store promises while all goes well."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from tiers.disk_kit import (
    BLOCK_BYTES,
    KiB,
    content_of,
    entries_of,
    entry_of,
    fill,
    key_of,
    loaded,
    memory,
    open_store,
)

from agentkv.clock import ManualClock
from agentkv.tiers.base import Entry, TierUsage


@pytest.mark.parametrize("uses_callers_memory", [True, False])
def test_what_is_stored_is_loaded_bit_by_bit(tmp_path: Path, uses_callers_memory: bool) -> None:
    store = open_store(tmp_path, uses_callers_memory=uses_callers_memory)
    assert store.store(entries_of(range(20))) == [True] * 20
    assert store.contains([key_of(3), key_of(99)]) == [True, False]
    assert loaded(store, [19, 3, 99, 0]) == [True, True, False, True]
    assert store.usage() == TierUsage(20, 20 * BLOCK_BYTES, 1200 * KiB)
    assert store.take_failures() == {}
    assert (store.name, store.block_bytes, store.is_index_local) == ("ssd", BLOCK_BYTES, True)
    store.close()


@pytest.mark.parametrize("block_bytes", [1, 100, 4095, 4097, 20000, 65536])
def test_any_size_of_block_will_do(tmp_path: Path, block_bytes: int) -> None:
    store = open_store(tmp_path, block_bytes=block_bytes)
    assert store.store(entries_of(range(8), block_bytes)) == [True] * 8
    assert loaded(store, range(8)) == [True] * 8
    store.close()
    store = open_store(tmp_path, block_bytes=block_bytes)
    assert loaded(store, range(8)) == [True] * 8
    store.close()


@pytest.mark.parametrize("shift", [0, 1, 512])
def test_memory_at_any_address_will_do(tmp_path: Path, shift: int) -> None:
    store = open_store(tmp_path)
    whole = memory(10 * BLOCK_BYTES)
    views = [whole[2 * i * BLOCK_BYTES + shift :][:BLOCK_BYTES] for i in range(4)]
    for number, view in enumerate(views):
        view[:] = content_of(key_of(number))
    assert all(store.store([Entry(key_of(n), view) for n, view in enumerate(views)]))
    whole[:] = bytes(len(whole))
    assert all(store.load([Entry(key_of(n), view) for n, view in enumerate(views)]))
    assert all(view == content_of(key_of(number)) for number, view in enumerate(views))
    between = [whole[(2 * i + 1) * BLOCK_BYTES + shift :][:BLOCK_BYTES] for i in range(4)]
    assert all(view == bytes(BLOCK_BYTES) for view in between), "only the blocks were written"
    store.close()


def test_memory_of_both_kinds_in_one_call_will_do(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    whole = memory(10 * BLOCK_BYTES)
    views = [whole[2 * i * BLOCK_BYTES + i % 2 :][:BLOCK_BYTES] for i in range(4)]
    for number, view in enumerate(views):
        view[:] = content_of(key_of(number))
    entries = [Entry(key_of(number), view) for number, view in enumerate(views)]
    assert store.store(entries) == [True] * 4
    whole[:] = bytes(len(whole))
    assert store.load(entries) == [True] * 4
    assert all(view == content_of(key_of(number)) for number, view in enumerate(views))
    store.close()


def test_read_only_memory_can_be_stored_but_not_loaded_into(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    entry = Entry(key_of(1), memoryview(content_of(key_of(1))))
    assert store.store([entry]) == [True]
    assert loaded(store, [1]) == [True]
    assert store.load([entry]) == [False]
    assert store.take_failures() == {"bad_entry": 1}
    assert store.contains([entry.key]) == [True], "the entry is not to blame"
    store.close()


@pytest.mark.parametrize(
    "entry",
    [
        Entry(b"", memory()),
        Entry(b"k" * 37, memory()),
        Entry(b"short", memory(BLOCK_BYTES - 1)),
        Entry(b"long", memory(BLOCK_BYTES + 1)),
        Entry(b"format", memory().cast("I")),
        Entry(b"strided", memory(2 * BLOCK_BYTES)[::2]),
    ],
    ids=lambda entry: entry.key.decode()[:8] or "empty",
)
def test_an_entry_that_does_not_fit_is_refused_and_the_others_are_not(
    tmp_path: Path, entry: Entry
) -> None:
    store = open_store(tmp_path)
    assert store.store([entry_of(1), entry, entry_of(2)]) == [True, False, True]
    assert store.take_failures() == {"bad_entry": 1}
    assert store.load([entry]) == [False]
    store.close()


def test_a_key_twice_in_one_call_is_one_entry(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.store([entry_of(1), entry_of(2), entry_of(1)]) == [True] * 3
    assert store.usage().num_entries == 2
    assert loaded(store, [1, 1, 2]) == [True] * 3
    store.close()


def test_storing_again_writes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_write_bytes_per_s=1, clock=ManualClock())
    assert store.store([entry_of(1)]) == [True]
    assert store.store([entry_of(1)]) == [True], "there is no room for another write"
    assert store.take_failures() == {}
    store.close()


def test_a_full_store_evicts_what_was_used_the_longest_ago(tmp_path: Path) -> None:
    """A56: three times the capacity is stored; the oldest go first."""
    store = open_store(tmp_path)
    capacity = fill(store)
    for number in range(1000, 1000 + 2 * capacity):
        assert store.store([entry_of(number)]) == [True]
        assert store.usage().num_entries == capacity
    assert loaded(store, range(1000, 1000 + 2 * capacity)) == [False] * capacity + [True] * capacity
    store.close()


def test_what_was_of_use_is_evicted_after_others(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    capacity = fill(store)
    store.touch([key_of(0), key_of(12345)])
    assert loaded(store, [1]) == [True]
    assert store.store([entry_of(2)]) == [True]
    assert all(store.store(entries_of(range(1000, 1000 + capacity - 3))))
    assert store.contains([key_of(n) for n in range(5)]) == [True, True, True, False, False]
    store.close()


def test_slots_of_deleted_entries_are_used_before_others_are_evicted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    capacity = fill(store)
    assert store.delete([key_of(5), key_of(6), key_of(9999), key_of(5)]) == 2
    assert loaded(store, [5, 6]) == [False, False]
    assert all(store.store(entries_of([1000, 1001])))
    assert store.usage().num_entries == capacity
    assert store.contains([key_of(0)]) == [True]
    store.close()


def test_more_than_fits_is_refused_from_the_end(tmp_path: Path) -> None:
    """A57: with every slot in use by the call itself there is no room, and no exception."""
    store = open_store(tmp_path)
    capacity = fill(store)
    answers = store.store(entries_of(range(1000, 1000 + capacity + 7)))
    assert answers == [True] * capacity + [False] * 7
    assert store.take_failures() == {"no_room": 7}
    store.close()


def test_a_deleted_key_can_come_back_with_other_bytes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.store([entry_of(1)])
    assert store.delete([key_of(1)]) == 1
    other = Entry(key_of(1), memory())
    assert store.store([other]) == [True]
    entry = entry_of(1)
    assert store.load([entry]) == [True]
    assert entry.data == other.data
    store.close()


def test_after_a_clear_there_is_nothing_and_all_room(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    capacity = fill(store)
    store.clear()
    assert store.usage() == TierUsage(0, 0, 1200 * KiB)
    assert not any(loaded(store, range(capacity)))
    assert all(store.store(entries_of(range(capacity))))
    store.close()
    store = open_store(tmp_path)
    assert loaded(store, range(capacity)) == [True] * capacity
    store.close()


def test_a_clear_outlives_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.store(entries_of(range(10)))
    store.clear()
    store.close()
    store = open_store(tmp_path)
    assert store.usage().num_entries == 0
    assert store.take_failures() == {}
    store.close()


def test_a_closed_store_says_no(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.store([entry_of(1)])
    store.close()
    store.close()
    assert not store.is_available
    assert store.contains([key_of(1)]) == [False]
    assert store.store([entry_of(2)]) == [False]
    assert store.load([entry_of(1)]) == [False]
    assert store.delete([key_of(1)]) == 0
    store.clear()
    store.touch([key_of(1)])
    assert store.usage() == TierUsage(0, 0, 1200 * KiB)
    store = open_store(tmp_path)
    assert loaded(store, [1]) == [True], "what a closed store is told changes nothing"
    store.close()


def test_calls_without_entries_do_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (store.store([]), store.load([]), store.contains([]), store.delete([])) == (
        [],
        [],
        [],
        0,
    )
    assert store.take_failures() == {}
    store.close()


def test_no_memory_of_the_caller_is_kept(tmp_path: Path) -> None:
    """A52: a small view that is kept would keep the whole buffer alive."""
    store = open_store(tmp_path)
    whole = mmap.mmap(-1, 1024 * BLOCK_BYTES)
    views = [memoryview(whole)[i * BLOCK_BYTES :][:BLOCK_BYTES] for i in range(200)]
    entries = [Entry(key_of(n), view) for n, view in enumerate(views)]
    store.store(entries)
    store.load(entries)
    del entries, views
    whole.close()  # Raises BufferError if there is a view of it left.
    store.close()
